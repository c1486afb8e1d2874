"""What is watched on fresh feedback: what was found better, and nothing that somebody chose."""

import re
from concurrent.futures import Future

import pytest

from collm.gate.trial import Verdict
from collm.replica.inbox import CancelJob, ReturnToBase, Unload
from collm.store.decisions import Decision, DecisionKind
from collm.types import VersionId
from factories.deciders import JOB, World

BETTER = {"verdict": Verdict.BETTER.value}


def cancel_job(world):
    world.put(CancelJob(adapter="a", job_id=JOB, reply=Future()))


def promote_for_round(world, label, seed, numbers=BETTER):
    """Promote what a round made, as its coordinator asks."""
    world.ask(label, seed, numbers=numbers, metadata={"round": str(label), "members": "r0, r1"})


def decision(version, numbers=BETTER, kind=DecisionKind.PROMOTION):
    return Decision(
        decided_at_s=0.0,
        kind=kind,
        adapter="a",
        version=version and VersionId(version),
        previous=None,
        reason="",
        numbers=numbers,
    )


def test_what_a_job_promoted_is_watched_and_what_somebody_chose_is_not():
    world = World()
    world.promote_learned(1)
    assert world.trainer.watched == {"a": ("a@1", None)}
    assert not world.trainer.is_joint
    world.promote_learned(2)
    assert world.trainer.watched == {"a": ("a@2", "a@1")}
    world.ask(9, 9)
    assert world.trainer.watched == {}
    world.promote_learned(3)
    world.roll_back()
    assert world.trainer.watched == {}


def test_what_a_round_promoted_is_watched_for_all_members():
    world = World()
    promote_for_round(world, 1, 1)
    assert world.trainer.watched == {"a": ("a@1", None)}
    assert world.trainer.is_joint
    promote_for_round(world, 2, 2)
    assert world.trainer.watched == {"a": ("a@2", "a@1")}


def test_what_the_coordinator_returns_to_is_not_watched():
    world = World()
    for label in (1, 2):
        promote_for_round(world, label, label)
    promote_for_round(world, 1, 1, numbers={"evidence": 120.0, "num_samples": 9})
    assert world.active == "a@1"
    assert world.trainer.watched == {}


def num_rollbacks(world, cause):
    """Return how many an alarm would see."""
    text = world.metrics.render().decode()
    counts = re.findall(rf'^collm_rollbacks_total{{.*cause="{cause}".*}} (.+)$', text, re.M)
    return sum(map(float, counts))


def test_what_the_coordinator_takes_back_is_counted_by_its_cause():
    world = World()
    for label in (1, 2):
        promote_for_round(world, label, label)
    world.ask(1, 1, numbers={}, cause="asked")
    assert (num_rollbacks(world, "asked"), num_rollbacks(world, "regression")) == (1, 0)
    promote_for_round(world, 2, 2)
    assert (num_rollbacks(world, "asked"), num_rollbacks(world, "regression")) == (1, 0)
    world.ask(1, 1, numbers={"evidence": 120.0}, cause="regression")
    assert (num_rollbacks(world, "asked"), num_rollbacks(world, "regression")) == (1, 1)
    reply = Future()
    world.put(ReturnToBase("a", "regression", "whatever it is called", {}, reply))
    assert reply.result(0) is None
    assert (num_rollbacks(world, "asked"), num_rollbacks(world, "regression")) == (1, 2)


def test_watch_outlives_its_job_and_ends_with_the_adapter():
    world = World()
    world.promote_learned(1)
    cancel_job(world)
    assert world.trainer.watched == {"a": ("a@1", None)}
    reply = Future()
    world.put(Unload("a", reply))
    assert reply.result(0) is None
    assert world.trainer.watched == {}


def test_candidate_that_is_on_record_when_its_job_ends_is_watched():
    world = World()
    world.learn(1)
    world.worker.is_held = True
    world.turn()
    world.worker.write_held()
    world.handle()
    cancel_job(world)
    while world.worker.num_held:
        world.worker.write_held()
    world.worker.is_held = False
    world.handle()
    world.turn()
    assert world.trainer.adapters == ()
    assert world.active == "a@1", "its promotion was being recorded"
    assert world.trainer.watched == {"a": ("a@1", None)}


def test_watch_that_fails_ends_alone():
    world = World()
    world.promote_learned(1)
    world.trainer.is_watching = True
    world.learner.training_failed("a", RuntimeError("no memory"))
    assert world.trainer.adapters == ("a",)
    assert world.trainer.watched == {}


def restarted(num_promoted, standing):
    """Take up again what stands on record when so many versions were promoted."""
    world = World()
    for seed in range(1, num_promoted + 1):
        world.promote_learned(seed)
    cancel_job(world)
    world.trainer.calls.clear()
    world.deciders.watches.resume(standing)
    return world


@pytest.mark.parametrize(("num_promoted", "previous"), [(1, None), (2, "a@1")])
def test_version_that_was_found_better_is_watched_again_after_a_restart(num_promoted, previous):
    version = f"a@{num_promoted}"
    world = restarted(num_promoted, decision(version))
    assert world.trainer.watched == {"a": (version, previous)}
    assert not world.trainer.is_joint


def test_version_that_a_round_promoted_is_watched_again_for_all_members():
    world = World()
    promote_for_round(world, 1, 1)
    world.trainer.calls.clear()
    world.deciders.watches.resume(decision("a@1"))
    assert world.trainer.watched == {"a": ("a@1", None)}
    assert world.trainer.is_joint


@pytest.mark.parametrize(
    "standing",
    [
        decision("a@1"),
        decision("a@2", numbers={}),
        decision("base", numbers={"evidence": 120.0}, kind=DecisionKind.ROLLBACK),
        decision(None, numbers={}, kind=DecisionKind.UNLOAD),
    ],
    ids=["is not served", "was asked for", "was returned to", "was unloaded"],
)
def test_version_is_not_watched_again_that(standing):
    assert restarted(2, standing).trainer.watched == {}


def test_version_with_none_before_it_is_not_watched_again():
    world = World()
    for seed in (1, 2, 3):
        world.promote_learned(seed)
    world.roll_back()
    world.deciders.watches.resume(decision("a@2"))
    assert world.trainer.watched == {}
