"""A version that queued requests were promised outlives any number of promotions, and no longer."""

import pytest

from collm.engine.config import SchedulerConfig
from collm.replica.inbox import Abort
from collm.types import FinishReason, RequestId
from factories.checkpoints import tiny_checkpoint
from factories.engines import build_engine, random_adapter, random_tokens
from factories.replicas import build_rig, greedy


@pytest.fixture
def rig(tmp_path):
    """A replica that runs one sequence at a time; ``a@1`` is active."""
    folder = tiny_checkpoint(tmp_path, "llama")
    config = SchedulerConfig(max_running=1)
    rig = build_rig(build_engine(folder, num_slots=4, max_rank=2, config=config))
    rig.engine.publish("a", "1", random_adapter(rig.engine.spec, rank=2, seed=1))
    return rig


def names(number):
    return [f"r{index}" for index in range(number)]


def asked(model, number=3):
    return [
        greedy(name, random_tokens(6, seed), model, max_tokens=8)
        for seed, name in enumerate(names(number))
    ]


def promote_three(rig):
    """Publish ``a@2`` to ``a@4``: without a hold, ``a@1`` is freed by the second."""
    for label in "234":
        rig.engine.publish("a", label, random_adapter(rig.engine.spec, rank=2, seed=int(label)))


def loaded(rig):
    return {info.version for info in rig.store.infos()}


@pytest.mark.parametrize("is_call", [True, False], ids=["one-call", "named-version"])
def test_queued_requests_are_answered_by_the_version_they_were_promised(rig, is_call):
    if is_call:
        rig.submit_call(*asked("a"))
    else:
        rig.submit(*asked("a@1"))
    rig.step()
    promote_three(rig)
    rig.run_until(lambda: rig.has_ended(*names(3)))
    assert [rig.versions(name) for name in names(3)] == [{"a@1"}] * 3
    assert [len(rig.tokens(name)) for name in names(3)] == [8] * 3
    assert loaded(rig) == {"a@3", "a@4"}
    rig.engine.assert_idle()


def test_aborting_a_queued_call_frees_the_version_that_it_held(rig):
    rig.submit(greedy("busy", random_tokens(6, 9), max_tokens=40))
    rig.step()
    rig.submit_call(*asked("a"))
    rig.step()
    promote_three(rig)
    assert "a@1" in loaded(rig)
    for name in names(3):
        rig.inbox.put(Abort(RequestId(name)))
    rig.step()
    assert {rig.events[name][-1].finish_reason for name in names(3)} == {FinishReason.ABORT}
    assert loaded(rig) == {"a@3", "a@4"}
