"""From a candidate to a promoted version, and everything that can come between."""

from dataclasses import replace

import pytest

from collm.errors import AdapterError, CollmError, UnknownAdapterError
from collm.training.events import TrainingSnapshot, TrainReport
from collm.types import BASE, VersionId
from factories.deciders import JOB, World, held_out_report


def test_candidate_is_written_then_decided_then_served():
    world = World()
    world.worker.is_held = True
    candidate = world.learn(1)
    world.turn()
    assert (world.worker.num_held, world.active) == (1, None)
    world.worker.write_held()
    assert world.store.infos() == ()
    world.handle()
    (info,) = world.store.infos()
    assert (info.version, info.is_active) == ("a@1", False)
    world.worker.write_held()
    assert world.active is None
    before = world.num_refreshes
    world.handle()
    assert world.active == "a@1"
    assert world.store.state(VersionId("a@1")) is candidate
    assert world.folder.log == ["published a@1", "promoted a@1"]
    assert world.num_refreshes == before + 1
    assert world.trainer.calls == [("watch", "a", "a@1", None)]


def test_newer_candidate_replaces_one_that_is_not_written_yet():
    world = World()
    world.learn(1)
    newer = world.learn(2)
    world.turn()
    assert world.store.state(VersionId("a@1")) is newer
    world.turn()
    assert world.folder.log == ["published a@1", "promoted a@1"]


def test_evaluation_without_a_candidate_keeps_the_one_before():
    world = World()
    candidate = world.learn(1)
    world.learner.handle([held_out_report(step=2, loss=3.0)])
    world.turn()
    assert world.store.state(VersionId("a@1")) is candidate


def test_one_candidate_is_on_its_way_at_a_time():
    world = World()
    world.worker.is_held = True
    world.learn(1)
    world.turn()
    world.learn(2)
    world.turn()
    assert world.worker.num_held == 1


def test_promotions_keep_their_distance_from_time_zero_on():
    world = World(min_promotion_interval_s=5.0)
    world.promote_learned(1)
    world.promote_learned(2)
    assert world.active == "a@1"
    world.clock.advance(4.9)
    world.turn()
    assert world.active == "a@1"
    world.clock.advance(0.1)
    world.turn()
    assert world.active == "a@2"


def test_staged_version_waits_for_a_slot_and_a_newer_one_takes_its_place():
    world = World(num_slots=2)
    world.promote_learned(1)
    binding = world.store.pin("a")
    world.promote_learned(2)
    blocker = world.store.pin("a")
    assert world.store.num_free_slots == 0
    first = world.ask(7, 7)
    world.turn()
    assert not first.done()
    second = world.ask(8, 8)
    with pytest.raises(CollmError, match="a@7 was not promoted: a newer version replaced it"):
        first.result(0)
    world.roll_back()
    with pytest.raises(CollmError, match="rolled back"):
        second.result(0)
    world.store.unpin(blocker)
    world.store.unpin(binding)
    third = world.ask(9, 9)
    assert third.result(0).version == "a@9"


def test_version_from_outside_rebases_training_and_drops_its_candidate():
    world = World()
    world.promote_learned(1)
    old = world.store.state(VersionId("a@1"))
    world.worker.is_held = True
    world.learn(2)
    reply = world.ask(9, 9)
    world.worker.write_held()
    world.handle()
    assert reply.result(0).version == "a@9"
    assert reply.result(0).is_active
    new = world.store.state(VersionId("a@9"))
    assert world.trainer.redirections == [("rebase", "a", old, new)]
    world.turn()
    assert world.worker.num_held == 0


def test_version_of_an_adapter_that_nobody_trains_is_served():
    world = World()
    assert world.ask(1, 1, adapter="b").result(0).is_active
    assert world.trainer.redirections == []
    assert world.roll_back("b").result(0).version == BASE


def test_version_that_is_active_already_is_confirmed_and_training_left_alone():
    world = World()
    world.promote_learned(1)
    assert world.ask(1, 1).result(0).version == "a@1"
    assert world.trainer.redirections == []
    assert world.folder.log == ["published a@1", "promoted a@1"]


def test_version_that_cannot_be_served_is_refused_with_the_reason():
    world = World()
    world.promote_learned(1)
    world.promote_learned(2)
    with pytest.raises(AdapterError, match="a@1 exists already with other content"):
        world.ask(1, 9).result(0)
    assert world.active == "a@2"
    world.promote_learned(3)
    assert world.active == "a@3"


def test_request_during_another_promotion_is_refused():
    world = World()
    world.worker.is_held = True
    first = world.ask(1, 1)
    second = world.ask(2, 2)
    with pytest.raises(AdapterError, match="a@2 was not promoted: another version"):
        second.result(0)
    world.worker.write_held()
    world.handle()
    assert first.result(0).version == "a@1"


def test_rollback_returns_serving_at_once_and_training_with_it():
    world = World()
    world.promote_learned(1)
    world.promote_learned(2)
    world.worker.is_held = True
    reply = world.roll_back()
    assert world.active == "a@1"
    assert world.trainer.redirections == [("reset", "a", world.store.state(VersionId("a@1")))]
    assert not reply.done()
    world.worker.write_held()
    assert reply.result(0).version == "a@1"
    assert world.folder.log[-1] == "rolled back to a@1: asked for"


def test_rollback_drops_the_candidate():
    world = World()
    world.promote_learned(1)
    world.promote_learned(2)
    world.learn(3)
    world.roll_back()
    world.turn()
    assert world.active == "a@1"
    assert "published a@3" not in world.folder.log


def test_rollback_drops_the_candidate_that_is_being_written():
    world = World()
    world.promote_learned(1)
    world.promote_learned(2)
    world.worker.is_held = True
    world.learn(3)
    world.turn()
    world.roll_back()
    while world.worker.num_held:
        world.worker.write_held()
        world.handle()
    world.turn()
    assert world.active == "a@1"
    world.worker.is_held = False
    world.promote_learned(4)
    assert world.active == "a@4"


def test_rollback_overtakes_a_promotion_that_is_being_recorded():
    world = World()
    world.promote_learned(1)
    world.promote_learned(2)
    world.worker.is_held = True
    asked = world.ask(9, 9)
    rolled_back = world.roll_back()
    with pytest.raises(CollmError, match="rolled back"):
        asked.result(0)
    world.worker.write_held()
    world.handle()
    assert world.active == "a@1"
    world.worker.write_held()
    assert rolled_back.result(0).version == "a@1"
    # The disk, which is written in this order, ends at the same version.
    assert world.folder.log[-2:] == ["promoted a@9", "rolled back to a@1: asked for"]
    world.worker.is_held = False
    world.promote_learned(3)
    assert world.active == "a@3"


def test_rollback_of_the_first_version_returns_serving_and_training_to_the_base():
    world = World()
    world.promote_learned(1)
    world.learn(2)
    info = world.roll_back().result(0)
    assert (info.version, info.adapter, info.slot, info.is_active) == (BASE, "a", None, True)
    assert (world.active, world.store.resolve("a")) == (None, BASE)
    assert world.trainer.redirections == [("reset", "a", None)]
    assert world.folder.log[-1] == "a returned to the base: asked for"
    assert world.folder.kept_places == ["a"]
    assert "info: base is active (rolled back); before: a@1" in world.folder.notes
    world.turn()
    assert world.active is None, "the candidate came from what was taken back"
    world.promote_learned(3)
    assert world.active is not None


@pytest.mark.parametrize("adapter", ["a", "b"])
def test_rollback_without_a_version_is_refused(adapter):
    with pytest.raises(UnknownAdapterError, match="no earlier version"):
        World().roll_back(adapter).result(0)


def test_candidate_that_could_not_be_written_is_tried_again_later():
    world = World()
    world.worker.is_held = True
    candidate = world.learn(1)
    world.turn()
    world.worker.fail_held(OSError("disk full"))
    world.handle()
    world.turn()
    assert world.worker.num_held == 0
    world.clock.advance(30.0)
    world.worker.is_held = False
    world.turn()
    assert world.store.state(world.active) is candidate


def test_promotion_that_could_not_be_recorded_is_refused_and_not_served():
    world = World()
    world.worker.is_held = True
    reply = world.ask(1, 1)
    world.worker.fail_held(OSError("disk full"))
    world.handle()
    with pytest.raises(AdapterError, match=r"could not be written: disk full"):
        reply.result(0)
    assert world.active is None
    world.worker.is_held = False
    assert world.ask(1, 1).result(0).is_active


def test_rollback_that_could_not_be_recorded_is_in_force_and_says_so():
    world = World()
    world.promote_learned(1)
    world.promote_learned(2)
    world.worker.is_held = True
    reply = world.roll_back()
    world.worker.fail_held(OSError("disk full"))
    with pytest.raises(CollmError, match=r"a@1 is active again, but a restart .* disk full"):
        reply.result(0)
    assert world.active == "a@1"


def test_client_that_left_does_not_stop_a_promotion():
    world = World()
    world.worker.is_held = True
    reply = world.ask(1, 1)
    reply.cancel()
    world.worker.write_held()
    world.handle()
    assert world.active == "a@1"


def test_training_that_cannot_follow_ends_and_serving_goes_on():
    world = World()
    world.promote_learned(1)
    world.trainer.error = RuntimeError("did not converge")
    assert world.ask(9, 9).result(0).is_active
    assert world.trainer.adapters == ()
    assert world.learner.snapshot()["a"]["error"] == "RuntimeError: did not converge"
    world.trainer.error = None
    assert world.roll_back().result(0).version == "a@1"


def test_snapshots_are_asked_for_at_their_interval_and_archived():
    world = World()
    world.turn()
    assert world.trainer.calls == []
    world.clock.advance(15.0)
    world.turn()
    world.turn()
    assert world.trainer.calls == [("snapshots",)]
    snapshot = TrainingSnapshot(adapter="a", tensors={}, meta={})
    world.learner.handle([snapshot])
    assert world.archive.snapshots == [snapshot]


def test_progress_adds_up_and_holds_only_what_json_can():
    world = World()
    report = TrainReport(
        adapter="a",
        step=1,
        num_tokens=30,
        num_samples=2,
        loss=2.5,
        grad_norm=1.0,
        was_skipped=False,
    )
    skipped = replace(report, step=2, loss=float("nan"), was_skipped=True)
    world.learner.handle([report, skipped])
    world.learner.handle([held_out_report(2, loss=float("nan"), active_loss=float("inf"))])
    assert world.learner.snapshot()["a"] == {
        "active": None,
        "job": JOB,
        "status": "running",
        "step": 2,
        "done_share": None,
        "training_tokens": 60,
        "training_samples": 4,
        "training_loss": None,
        "held_out_loss": None,
        "active_held_out_loss": None,
        "held_out_exact_match": None,
        "active_exact_match": None,
        "promotions": 0,
        "skipped_steps": 1,
        "error": None,
    }


def test_loss_shown_of_what_is_served_is_never_that_of_the_version_before():
    world = World()
    world.learn(1, loss=1.5)
    world.turn()
    assert world.learner.snapshot()["a"]["active"] == "a@1"
    assert world.learner.snapshot()["a"]["active_held_out_loss"] == 1.5
    world.ask(2, 9)
    world.turn()
    assert world.learner.snapshot()["a"]["active"] == "a@2"
    assert world.learner.snapshot()["a"]["active_held_out_loss"] is None
