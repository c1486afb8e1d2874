"""What becomes of jobs: in training, in their rows, and when they are told to stop."""

import math
from concurrent.futures import Future

import pytest

from collm.errors import StateError, UnknownAdapterError
from collm.gate.trial import Verdict
from collm.replica.inbox import (
    AddSamples,
    CancelJob,
    PauseJob,
    RemoveSample,
    ResumeJob,
)
from collm.store.jobs import JobStatus
from collm.training.events import (
    BaselineReport,
    JobFinished,
    ShadowReset,
    TrainingSnapshot,
    TrainReport,
)
from collm.types import BASE, Evaluation, LearningState, VersionId
from factories.deciders import JOB, World, held_out_report


def step(number, num_tokens=30):
    return TrainReport(
        adapter="a",
        step=number,
        num_tokens=num_tokens,
        num_samples=2,
        loss=2.5,
        grad_norm=1.0,
        was_skipped=False,
    )


def send(world, kind, job_id=JOB):
    reply = Future()
    world.put(kind(adapter="a", job_id=job_id, reply=reply))
    return reply


def row(world):
    return world.folder.changes[JOB]


def test_job_that_is_added_runs_and_its_adapter_can_be_named():
    world = World()
    assert world.trainer.adapters == ("a",)
    assert row(world)["status"] is JobStatus.RUNNING
    assert world.store.resolve("a") == BASE
    assert world.folder.notes == ["info: training begins"]
    assert world.learner.snapshot()["a"]["job"] == JOB


def test_adapter_of_a_job_can_be_named_before_the_jobs_row_says_that_it_runs():
    world, seen = World(), []
    send(world, CancelJob)
    world.folder.changes.clear()
    world.on_refresh = lambda: seen.append((world.store.resolve("a"), row(world).get("status")))
    world.add_job()
    assert seen == [(BASE, None)]
    assert row(world)["status"] is JobStatus.RUNNING


def state(world):
    return world.deciders.jobs.learning()["a"]


def baseline(number, loss, num_samples):
    return BaselineReport(
        adapter="a", step=number, loss=loss, error=loss / 4.0, num_samples=num_samples
    )


def test_evaluation_is_a_point_where_training_was_when_the_shadow_was_copied():
    world = World()
    assert state(world) == LearningState(tokens_per_step=30, micro_batch_tokens=20, is_joint=False)
    world.learner.handle([step(number) for number in range(1, 6)])
    world.learner.handle([held_out_report(step=3, loss=1.5)])
    assert state(world).evaluation == Evaluation(num_tokens=90, loss=1.5, num_samples=3)
    world.learner.handle([baseline(5, 1.25, 8)])
    assert state(world).evaluation == Evaluation(num_tokens=150, loss=1.25, num_samples=8)


def test_evaluation_that_is_not_finite_is_no_point():
    world = World()
    world.learner.handle([baseline(0, math.inf, 8)])
    assert state(world).evaluation is None


def test_a_quality_is_as_sure_as_the_loss_it_was_made_from():
    world = World()
    world.learner.handle([baseline(0, 0.5, 8)])
    quality = world.deciders.jobs.qualities()["a"]
    assert (quality.value, quality.noise) == (2.0, 2.0 * 0.25)


def test_paused_job_does_not_learn():
    world = World()
    send(world, PauseJob)
    assert world.deciders.jobs.learning() == {}
    send(world, ResumeJob)
    assert state(world).evaluation is None


def test_quality_is_that_of_the_version_that_was_promoted():
    world = World()
    world.learner.handle([held_out_report(loss=3.0, active_loss=2.0)])
    assert world.deciders.jobs.qualities()["a"].value == 0.5
    world.promote_learned(1)  # a candidate of loss 1
    assert world.deciders.jobs.qualities()["a"].value == 1.0


def test_job_built_before_another_version_became_active_goes_on_from_that():
    world = World()
    world.promote_learned(1)
    send(world, CancelJob)
    world.folder.changes.clear()
    world.add_job(base=None)
    assert world.trainer.redirections == [("reset", "a", world.store.state(VersionId("a@1")))]
    send(world, CancelJob)
    world.folder.changes.clear()
    world.add_job(base="a@1")
    assert len(world.trainer.redirections) == 1


def test_job_built_before_the_first_version_was_taken_back_begins_afresh():
    world = World()
    world.promote_learned(1)
    send(world, CancelJob)
    world.roll_back()
    world.folder.changes.clear()
    world.add_job(base="a@1")
    assert world.trainer.redirections == [("reset", "a", None)]


@pytest.mark.parametrize(("started_at_s", "told"), [(None, ["warn: too few"]), (5.0, [])])
def test_warnings_are_told_when_a_job_begins_and_not_after_a_restart(started_at_s, told):
    world = World()
    send(world, CancelJob)
    world.folder.changes.clear()
    world.folder.notes.clear()
    world.add_job(warnings=("too few",), started_at_s=started_at_s)
    assert world.folder.notes == ["info: training begins", *told]


def test_paused_job_comes_back_paused():
    world = World()
    send(world, CancelJob)
    world.folder.changes.clear()
    world.add_job(status=JobStatus.PAUSED)
    assert world.trainer.calls[-1] == ("pause", "a")
    assert "status" not in row(world)


def test_pause_and_resume_reach_training_and_the_row():
    world = World()
    assert send(world, PauseJob).result(0).status is JobStatus.PAUSED
    assert world.trainer.calls == [("pause", "a")]
    assert send(world, ResumeJob).result(0).status is JobStatus.RUNNING
    assert world.trainer.calls[-1] == ("resume", "a")
    assert world.learner.snapshot()["a"]["status"] == "running"


def test_step_that_a_pause_completes_is_counted_before_the_pause_is_told():
    world = World()
    world.learner.handle([step(1)])
    world.trainer.half_done = (step(2),)
    seen = []
    world.on_refresh = lambda: seen.append(world.learner.snapshot()["a"])
    assert send(world, PauseJob).result(0).status is JobStatus.PAUSED
    assert [(row["status"], row["step"]) for row in seen] == [("paused", 2)]


def test_job_that_is_not_trained_can_be_neither_paused_nor_resumed():
    world = World()
    for kind in (PauseJob, ResumeJob):
        with pytest.raises(StateError, match="ftjob-9 is not being trained"):
            send(world, kind, "ftjob-9").result(0)
    assert world.trainer.calls == []


def test_cancelled_job_trains_no_more_and_what_it_published_stays():
    world = World()
    world.promote_learned(1)
    world.learn(2)
    world.learner.handle([step(1)])
    record = send(world, CancelJob).result(0)
    assert (record.status, record.num_trained_tokens) == (JobStatus.CANCELLED, 30)
    assert world.trainer.adapters == ()
    world.turn()
    assert world.active == "a@1"
    assert "published a@2" not in world.folder.log
    assert world.folder.discarded == ["a"]
    with pytest.raises(StateError):
        send(world, CancelJob).result(0)


def test_cancelled_job_that_published_nothing_leaves_no_name():
    world = World()
    send(world, CancelJob)
    with pytest.raises(UnknownAdapterError):
        world.store.resolve("a")


def test_job_that_was_not_added_yet_is_cancelled_in_its_row():
    world = World()
    record = send(world, CancelJob, "ftjob-9").result(0)
    assert record.status is JobStatus.CANCELLED
    assert world.trainer.adapters == ("a",)


def test_samples_go_to_training_whether_a_job_runs_or_a_watch_alone():
    world = World()
    world.put(AddSamples("a", ("sample",)))
    world.put(RemoveSample("a", "fb-1"))
    assert world.trainer.calls == [
        ("add samples", "a", ("sample",)),
        ("remove sample", "a", "fb-1"),
    ]
    send(world, CancelJob)
    world.put(AddSamples("a", ("sample",)))
    assert world.trainer.calls[-1] == ("add samples", "a", ("sample",))


def test_promotion_is_a_checkpoint_of_its_job_and_is_watched():
    world = World()
    world.learner.handle([step(1)])
    world.promote_learned(4)
    assert world.folder.job_checkpoints == [("a@1", 4)]
    assert row(world)["result"] == "a@1"
    assert world.trainer.calls == [("watch", "a", "a@1", None)]


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (Verdict.WORSE, "worse on held-out samples"),
        (Verdict.NOT_SHOWN, "not shown to be better on held-out samples"),
        (Verdict.SLICE_WORSE, "worse on a slice of the held-out samples"),
        (Verdict.NOT_FINITE, "its loss is not finite"),
    ],
)
def test_refused_candidate_is_a_decision_with_its_numbers_and_an_event(verdict, reason):
    world = World()
    world.learner.handle([held_out_report(step=7, verdict=verdict)])
    ((adapter, why, numbers),) = world.folder.refusals
    assert (adapter, why, numbers["step"]) == ("a", reason, 7)
    assert numbers["verdict"] == verdict
    assert world.folder.notes[-1].endswith(str(verdict))


def test_new_start_of_a_shadow_is_a_decision_and_a_warning():
    world = World()
    world.learner.handle([ShadowReset(adapter="a", step=5, reason="three worse in a row")])
    ((_, why, numbers),) = world.folder.refusals
    assert "three worse in a row" in why
    assert numbers == {"step": 5}
    assert world.folder.notes[-1].startswith("warn: ")


def test_first_measurement_of_what_is_served_is_shown():
    world = World()
    world.learner.handle([baseline(0, 3.0, 4)])
    assert world.learner.snapshot()["a"]["active_held_out_loss"] == 3.0
    assert world.folder.refusals == []


def test_finished_job_succeeds_once_its_last_candidate_is_served():
    world = World()
    world.worker.is_held = True
    world.learn(3)
    world.learner.handle([JobFinished(adapter="a", step=3)])
    world.turn()
    assert row(world)["status"] is JobStatus.RUNNING
    for _ in range(2):
        world.worker.write_held()
        world.handle()
    world.worker.is_held = False
    world.turn()
    assert row(world)["status"] is JobStatus.SUCCEEDED
    assert row(world)["result"] == "a@1"
    assert world.trainer.adapters == ()
    world.turn()


def test_job_whose_training_fails_says_why_in_its_row():
    world = World()
    world.learner.training_failed("a", RuntimeError("out of memory"))
    assert row(world)["status"] is JobStatus.FAILED
    assert row(world)["error"] == {
        "code": "training_failed",
        "message": "RuntimeError: out of memory",
    }
    assert "error: RuntimeError: out of memory" in world.folder.notes


def test_tokens_add_up_over_a_jobs_lives_and_are_saved_with_its_checkpoints():
    world = World()
    send(world, CancelJob)
    world.folder.changes.clear()
    world.add_job(num_trained_tokens=100)
    world.learner.handle([step(1), step(2)])
    assert "num_trained_tokens" not in row(world)
    world.learner.handle([TrainingSnapshot(adapter="a", tensors={}, meta={})])
    assert row(world)["num_trained_tokens"] == 160
