"""What a coordinator allots: applied between steps, corrected here, kept when the front is gone."""

import pytest

from collm.federated.allotment import AdapterAllotment, Allotment
from collm.replica.inbox import Follow
from factories.checkpoints import tiny_checkpoint
from factories.engines import build_engine
from factories.replicas import build_rig, greedy, learnable_job
from factories.training import job_config


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def rig(checkpoint):
    engine = build_engine(checkpoint)
    configs = (job_config("a", tokens_per_step=64), job_config("b", tokens_per_step=64))
    return build_rig(engine, [learnable_job(engine.decoder, config) for config in configs])


def allotment(number=1, credit=0.2, valid_s=100.0, **adapters):
    adapters = adapters or {"a": (0.75, 256), "b": (0.25, 128)}
    return Allotment(
        number=number,
        valid_s=valid_s,
        adapters={
            name: AdapterAllotment(
                credit_share=credit / len(adapters), time_share=share, tokens_per_step=tokens
            )
            for name, (share, tokens) in adapters.items()
        },
    )


def follow(rig, message):
    rig.inbox.put(Follow(message))
    rig.step()


def sizes(rig):
    return {
        name: rig.trainer._jobs[name]._learning.tokens_per_step for name in rig.trainer.adapters
    }


def test_allotment_sets_credit_and_sizes_of_steps(rig):
    follow(rig, allotment())
    assert rig.allotments.number == 1
    assert rig.credit.full_share == pytest.approx(0.2)
    assert sizes(rig) == {"a": 256, "b": 128}


def test_training_time_is_divided_as_allotted(rig):
    follow(rig, allotment(a=(0.75, 64), b=(0.25, 64)))
    rig.trainer.ran.clear()
    rig.trainer.max_pause = 4_000
    rig.step()
    times = {name: sum(q.adapter == name for q in rig.trainer.ran) for name in ("a", "b")}
    assert 2.0 < times["a"] / times["b"] < 4.5


def test_misses_shrink_the_credit_without_any_front(rig):
    follow(rig, allotment())
    rig.credit.missed()
    rig.credit.missed()
    assert rig.credit.share == pytest.approx(0.05)
    assert rig.allotments.credit_scale == pytest.approx(0.25)
    for _ in range(50):
        rig.credit.met()
    assert rig.credit.share == pytest.approx(0.2)


def test_new_allotment_does_not_forget_the_misses(rig):
    follow(rig, allotment(1))
    rig.credit.missed()
    follow(rig, allotment(2, credit=0.4))
    assert rig.credit.share == pytest.approx(0.2)


def test_allotment_stays_until_it_expires_and_own_settings_come_back(rig):
    follow(rig, allotment(valid_s=100.0))
    rig.clock.advance(90.0)
    rig.step()
    assert rig.allotments.number == 1
    rig.clock.advance(11.0)
    rig.step()
    assert rig.allotments.number == 0
    assert rig.credit.full_share == 0.0
    assert sizes(rig) == {"a": 64, "b": 64}


def test_repetition_renews_an_allotment(rig):
    follow(rig, allotment(valid_s=100.0))
    rig.clock.advance(90.0)
    follow(rig, allotment(valid_s=100.0))
    rig.clock.advance(90.0)
    rig.step()
    assert rig.allotments.number == 1


def test_own_credit_is_the_least_there_is(checkpoint):
    rig = build_rig(build_engine(checkpoint), credit_share=0.1)
    follow(rig, allotment(credit=0.02))
    assert rig.credit.full_share == pytest.approx(0.1)


def test_job_that_comes_later_gets_its_part(checkpoint):
    engine = build_engine(checkpoint)
    rig = build_rig(engine)
    follow(rig, allotment(a=(1.0, 512)))
    rig.add_job(learnable_job(engine.decoder, job_config("a", tokens_per_step=64)))
    rig.step()
    assert sizes(rig) == {"a": 512}


def test_requests_are_served_the_same_under_an_allotment(rig):
    follow(rig, allotment())
    rig.submit(greedy("r", [5, 6, 7], max_tokens=3))
    rig.run_until(lambda: rig.has_ended("r"))
    assert len(rig.tokens("r")) == 3


def test_board_shows_what_is_in_force(rig):
    assert rig.allotments.snapshot()["allotment"] is None
    follow(rig, allotment(7))
    shown = rig.allotments.snapshot()
    assert shown["allotment"] == allotment(7).to_json()
    assert 0.0 < shown["expires_in_s"] <= 100.0
    assert shown["credit_share"] == pytest.approx(0.2)
