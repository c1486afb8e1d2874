"""Rollbacks, unloads and pins: in force at once, answered when they are on disk."""

from concurrent.futures import Future

import pytest

from collm.errors import StateError, UnknownAdapterError
from collm.replica.inbox import CancelJob, Keep, Release, ReturnToBase, Unload
from collm.training.events import Regression
from collm.types import BASE, VersionId
from factories.deciders import JOB, World, foreign


@pytest.fixture
def world():
    """A world without a job, in which ``a@1`` and ``a@2`` were promoted."""
    world = World()
    for seed in (1, 2):
        world.promote_learned(seed)
    world.put(CancelJob(adapter="a", job_id=JOB, reply=Future()))
    return world


def unload(world, adapter="a"):
    reply = Future()
    world.put(Unload(adapter, reply))
    return reply


def keep(world, label, seed):
    reply = Future()
    world.put(Keep(foreign(label, seed, reply=reply)))
    return reply


def test_unload_is_in_force_at_once_and_answered_when_it_is_on_disk(world):
    world.worker.is_held = True
    reply = unload(world)
    with pytest.raises(UnknownAdapterError):
        world.store.resolve("a")
    assert world.store.num_free_slots == world.store._bank.num_slots
    assert not reply.done()
    world.worker.write_held()
    assert reply.result(0) is None
    assert world.folder.log[-1] == "unloaded a"


def test_unload_of_an_adapter_in_training_is_refused():
    world = World()
    world.promote_learned(1)
    with pytest.raises(StateError, match="'a' is being trained; cancel its job first"):
        unload(world).result(0)
    assert world.active == "a@1"


def test_unload_of_what_is_not_loaded_is_unknown(world):
    with pytest.raises(UnknownAdapterError, match="'b' is not loaded"):
        unload(world, "b").result(0)


def test_unload_overtakes_a_promotion_that_is_being_recorded(world):
    world.worker.is_held = True
    asked = world.ask(9, 9)
    unload(world)
    with pytest.raises(Exception, match="was unloaded"):
        asked.result(0)
    while world.worker.num_held:
        world.worker.write_held()
        world.handle()
    assert world.active is None
    assert world.store.infos() == ()
    # The disk, which is written in this order, ends without an active version.
    assert world.folder.log[-2:] == ["promoted a@9", "unloaded a"]


def test_unloaded_adapter_can_be_promoted_again(world):
    unload(world)
    assert world.ask(2, 2).result(0).is_active


def test_kept_version_can_be_named_and_the_reply_comes_with_its_row(world):
    world.worker.is_held = True
    reply = keep(world, 7, 7)
    assert world.store.resolve("a@7") == "a@7"
    assert not reply.done()
    world.worker.write_held()
    assert not reply.result(0).is_active
    assert world.folder.log[-1] == "pinned a@7"
    world.worker.is_held = False
    released = Future()
    world.put(Release(VersionId("a@7"), released))
    assert released.result(0) is None
    with pytest.raises(UnknownAdapterError):
        world.store.resolve("a@7")
    assert world.folder.log[-1] == "unpinned a@7"


def test_keeping_without_a_free_slot_says_what_holds_them(world):
    for label in (7, 8):
        keep(world, label, label)
    with pytest.raises(StateError, match=r"a@9 .*occupied by: .*a@7 \(pinned\)"):
        keep(world, 9, 9).result(0)
    assert "pinned a@9" not in world.folder.log


def test_unload_lets_go_of_pins_as_well(world):
    keep(world, 7, 7)
    unload(world)
    assert world.store.infos() == ()
    assert "unpinned a@7" in world.folder.log


def test_first_version_is_taken_back_and_without_a_job_the_name_goes(world):
    assert [world.roll_back().result(0).version for _ in range(2)] == ["a@1", "base"]
    assert world.folder.log[-1] == "a returned to the base: asked for"
    with pytest.raises(UnknownAdapterError, match="'a' does not exist; available: tiny"):
        world.store.resolve("a")
    assert world.store.infos() == ()


def return_to_base(world):
    reply = Future()
    world.put(ReturnToBase("a", "asked", "rolled back", {}, reply))
    return reply


def test_return_to_the_base_is_in_force_at_once_and_answered_when_it_is_on_disk(world):
    world.worker.is_held = True
    reply = return_to_base(world)
    assert (world.active, world.store.infos()) == (None, ())
    assert not reply.done()
    world.worker.write_held()
    assert reply.result(0) is None
    assert world.folder.log[-1] == "a returned to the base: rolled back"
    num_rows = len(world.folder.log)
    assert return_to_base(world).result(0) is None
    assert len(world.folder.log) == num_rows


def test_return_to_the_base_overtakes_a_first_promotion_that_is_being_recorded():
    world = World()
    world.worker.is_held = True
    asked = world.ask(9, 9)
    reply = return_to_base(world)
    with pytest.raises(Exception, match="was rolled back"):
        asked.result(0)
    while world.worker.num_held:
        world.worker.write_held()
        world.handle()
    assert reply.result(0) is None
    assert (world.active, world.store.resolve("a")) == (None, BASE)
    # The disk, which is written in this order, ends without an active version.
    assert world.folder.log[-2:] == ["promoted a@9", "a returned to the base: rolled back"]


def test_regression_of_the_first_version_returns_to_the_base_by_itself():
    world = World()
    world.promote_learned(1)
    numbers = {"active": "a@1", "previous": "base", "evidence": 120.0}
    world.learner.handle([Regression(adapter="a", numbers=numbers)])
    assert (world.active, world.store.resolve("a")) == (None, "base")
    assert world.folder.log[-1] == "a returned to the base: regression on live feedback"


def test_regression_on_live_feedback_rolls_back_by_itself():
    world = World()
    for seed in (1, 2):
        world.promote_learned(seed)
    numbers = {"active": "a@2", "previous": "a@1", "evidence": 120.0}
    world.learner.handle([Regression(adapter="a", numbers=numbers)])
    assert world.active == "a@1"
    assert world.folder.log[-1] == "rolled back to a@1: regression on live feedback"
    assert world.folder.kept_places == ["a"]
    assert world.trainer.redirections == [("reset", "a", world.store.state(VersionId("a@1")))]


def test_regression_of_a_version_that_is_active_no_more_changes_nothing():
    world = World()
    for seed in (1, 2, 3):
        world.promote_learned(seed)
    world.learner.handle([Regression(adapter="a", numbers={"active": "a@2"})])
    assert world.active == "a@3"


def test_regression_with_nothing_to_return_to_changes_nothing(caplog):
    world = World()
    for seed in (1, 2, 3):
        world.promote_learned(seed)
    world.roll_back()
    world.learner.handle([Regression(adapter="a", numbers={"active": "a@2"})])
    assert world.active == "a@2"
