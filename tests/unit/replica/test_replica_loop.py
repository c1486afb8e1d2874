"""The order of things in a step, and what a failure ends; a tiny engine, a clock that is told."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from collm.engine.config import SchedulerConfig
from collm.replica.inbox import Finish, Rollback, Stop
from collm.types import BASE, FinishReason, RequestId
from factories.checkpoints import tiny_checkpoint
from factories.engines import build_engine
from factories.replicas import QUANTUM_S, build_rig, greedy, learnable_job
from factories.training import job_config

FAILURE = RuntimeError("made to fail")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def rig(checkpoint):
    return rig_with_jobs(checkpoint, "a", "b")


def rig_with_jobs(checkpoint, *adapters, **fields):
    engine = build_engine(checkpoint)
    jobs = [learnable_job(engine.decoder, job_config(adapter, **fields)) for adapter in adapters]
    return build_rig(engine, jobs)


def fail(*_):
    raise FAILURE


def test_request_is_served_and_recorded(checkpoint):
    rig = rig_with_jobs(checkpoint)
    rig.submit(greedy("r", [5, 6, 7], max_tokens=3))
    rig.run_until(lambda: rig.has_ended("r"))
    assert len(rig.tokens("r")) == 3
    assert rig.versions("r") == {BASE}
    rig.board.refresh()
    rig.engine.assert_idle()


def test_step_without_anything_to_do_is_empty(checkpoint):
    report = rig_with_jobs(checkpoint).step()
    assert (report.num_tokens, report.num_quanta) == (0, 0)


def test_blocks_are_checked_whenever_nothing_is_served_also_while_it_learns(rig, monkeypatch):
    num_before = []
    check = rig.engine.scheduler.check
    monkeypatch.setattr(
        rig.engine.scheduler, "check", lambda: (num_before.append(len(rig.trainer.ran)), check())
    )
    report = rig.loop.step()
    assert report.num_quanta > 0
    assert num_before == [0]
    rig.submit(greedy("r", [5, 6, 7], max_tokens=3))
    rig.loop.step()
    assert num_before == [0], "a step that serves is not held up"


def test_tokens_leave_before_training_starts(rig):
    order = []
    rig.trainer.on_run = lambda quantum: order.append(len(rig.tokens("r")))
    rig.submit(greedy("r", [5, 6, 7], max_tokens=3))
    rig.step()
    rig.step()
    assert order[0] == 1
    assert sorted(set(order)) == [1, 2]


def test_with_requests_running_training_takes_the_longest_quantums_time_at_most(rig):
    rig.trainer.max_pause = 1_000
    rig.submit(greedy("r", [5, 6, 7], max_tokens=20))
    for _ in range(19):
        assert rig.step().num_quanta * QUANTUM_S <= 0.04
    assert len(rig.trainer.ran) > 10


def test_training_rests_while_a_prompt_is_computed(rig):
    rig.engine.prefill_limit.num_tokens = 2
    rig.submit(greedy("r", [5, 6, 7, 8, 9, 10, 11, 12], max_tokens=20))
    assert [rig.step().num_quanta for _ in range(3)] == [0, 0, 0]
    rig.run_until(lambda: rig.has_ended("r"))
    assert rig.trainer.ran


def test_request_that_waits_for_a_place_does_not_keep_training_waiting(checkpoint):
    engine = build_engine(checkpoint, config=SchedulerConfig(max_running=1))
    rig = build_rig(engine, [learnable_job(engine.decoder, job_config("a"))])
    rig.trainer.max_pause = 1_000
    rig.submit(greedy("r", [5, 6, 7], max_tokens=40), greedy("s", [5, 6, 8], max_tokens=2))
    rig.run_until(lambda: len(rig.tokens("r")) == 30)
    assert not rig.tokens("s")
    assert len(rig.trainer.ran) > 10


def test_replica_without_requests_learns_publishes_and_saves(checkpoint):
    """The pause of an idle replica lasts until a message comes: nothing else may wait for that."""
    rig = rig_with_jobs(checkpoint, "a", evaluate_every=1, learning_rate=1e-2)
    rig.trainer.max_pause = 3_000
    rig.step()
    rig.step()
    assert len(rig.trainer.ran) < 3_000
    assert rig.archive.folder.log[:2] == ["published a@1", "promoted a@1"]
    rig.run_until(lambda: len(rig.archive.snapshots) > 0)
    assert len(rig.archive.snapshots) >= len(rig.trainer.ran) // 1_000 - 1
    assert rig.board.view.numbers["adapters"]["a"]["step"] > 0


def test_finish_ends_a_choice_and_its_blocks_return(checkpoint):
    rig = rig_with_jobs(checkpoint)
    rig.submit(greedy("r", [5, 6, 7], max_tokens=50))
    rig.step()
    rig.inbox.put(Finish(RequestId("r"), 0))
    rig.step()
    assert rig.events["r"][-1].finish_reason is FinishReason.STOP
    rig.engine.assert_idle()


def test_stop_ends_the_loop_although_training_never_ends(rig):
    rig.trainer.max_pause = 10_000_000
    rig.trainer.on_run = lambda quantum: rig.inbox.put(Stop())
    rig.loop.run()
    assert len(rig.trainer.ran) == 1
    rig.inbox.put(Stop())
    rig.loop.run()
    assert len(rig.trainer.ran) == 1


def test_step_that_fails_ends_its_requests_and_the_next_ones_are_served(checkpoint):
    rig = rig_with_jobs(checkpoint)
    rig.runner.on_launch = fail
    rig.submit(greedy("r", [5, 6, 7]))
    rig.step()
    assert rig.events["r"][-1].error is FAILURE
    rig.engine.assert_idle()
    rig.runner.on_launch = lambda plan: None
    rig.submit(greedy("s", [5, 6, 7]))
    rig.run_until(lambda: rig.has_ended("s"))
    assert len(rig.tokens("s")) == 8


def test_quantum_that_fails_ends_its_job_while_others_learn_and_requests_are_served(rig):
    def fail_a(quantum):
        if quantum.adapter == "a":
            raise FAILURE

    rig.trainer.on_run = fail_a
    rig.submit(greedy("r", [5, 6, 7], max_tokens=12))
    rig.run_until(lambda: rig.has_ended("r"))
    assert len(rig.tokens("r")) == 12
    assert rig.trainer.adapters == ("b",)
    assert {quantum.adapter for quantum in rig.trainer.ran} == {"b"}
    progress = rig.learner.snapshot()
    assert progress["a"]["error"] == "RuntimeError: made to fail"
    assert progress["b"]["error"] is None


def test_program_that_fails_before_its_first_quantum_ends_its_job(rig, monkeypatch):
    job = rig.trainer._jobs["a"]
    monkeypatch.setattr(job, "next_program", fail)
    rig.submit(greedy("r", [5, 6, 7], max_tokens=12))
    rig.run_until(lambda: rig.has_ended("r"))
    assert rig.trainer.adapters == ("b",)
    assert rig.trainer.ran


def test_what_fails_elsewhere_ends_the_loop(rig, monkeypatch):
    monkeypatch.setattr(rig.engine.scheduler, "schedule", fail)
    with pytest.raises(RuntimeError, match="made to fail"):
        rig.loop.run()


def test_rollback_message_reaches_the_learner(rig):
    reply = Future()
    rig.inbox.put(Rollback("a", reply))
    rig.step()
    assert reply.exception(0) is not None


def test_training_that_the_budget_keeps_waiting_is_seen(rig):
    rig.loop._budget = SimpleNamespace(
        begin=lambda *_, **__: None, allows=lambda *_: False, spent=lambda *_: None
    )
    report = rig.step()
    assert (report.num_quanta, report.is_held_back) == (0, True)


def test_replica_without_jobs_holds_nothing_back(checkpoint):
    assert not rig_with_jobs(checkpoint).step().is_held_back
