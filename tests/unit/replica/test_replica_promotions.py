"""How long somebody who asks for a version waits for a slot, and what is on an adapter's way."""

from concurrent.futures import Future

import pytest

from collm.errors import AdapterError, StateError
from collm.replica.inbox import Unload
from factories.deciders import World


def full_world():
    """Two slots, both needed: one active, one held, and requests on each."""
    world = World(num_slots=2)
    for seed in (1, 2):
        world.promote_learned(seed)
        world.store.pin("a")
    return world


def test_asked_for_version_is_refused_when_no_slot_becomes_free_in_time():
    world = full_world()
    reply = world.ask(9, 9)
    world.clock.advance(9.9)
    world.turn()
    assert not reply.done()
    world.clock.advance(0.2)
    world.turn()
    with pytest.raises(StateError, match=r"a@9 is on disk, but no adapter slot .* a@2 \(active"):
        reply.result(0)
    assert world.active == "a@2"
    world.turn()
    assert world.learner.snapshot()["a"]["promotions"] == 2


def test_asked_for_version_gets_a_slot_that_becomes_free_in_time():
    world = World(num_slots=2)
    world.promote_learned(1)
    old = world.store.pin("a")
    world.promote_learned(2)
    world.roll_back()
    world.promote_learned(3)
    world.store.pin("a")
    reply = world.ask(9, 9)
    world.clock.advance(5.0)
    world.turn()
    assert not reply.done()
    world.roll_back()
    world.store.unpin(old)
    assert reply.done()


def test_other_adapters_promotion_waits_for_no_minimum_interval():
    world = World(num_slots=3, min_promotion_interval_s=600.0)
    world.promote_learned(1)
    pinned = world.store.pin("a")
    world.ask(2, 2)
    assert world.active == "a@2"
    world.ask(3, 3)
    assert world.active == "a@3"
    reply = world.ask(4, 4)
    assert not reply.done()
    world.store.unpin(pinned)
    world.turn()
    assert reply.result(0).version == "a@4"


def test_own_candidate_waits_for_a_slot_as_long_as_it_takes():
    world = full_world()
    world.promote_learned(3)
    world.clock.advance(1_000.0)
    world.turn()
    assert world.active == "a@2"
    assert world.folder.log[-1] == "published a@3"


def test_slot_that_became_free_in_time_is_given_however_late_the_loop_looks():
    world = World(num_slots=3)
    for seed in (1, 2):
        world.promote_learned(seed)
    world.ask(1, 1, "b")
    reply = world.ask(9, 9)
    world.turn()
    assert not reply.done()
    world.store.unload("b")
    world.clock.advance(20.0)
    world.turn()
    assert reply.result(0).version == "a@9"


def test_adapter_is_settled_when_nothing_is_on_its_way():
    world = World()
    promotions = world.learner._promotions
    assert promotions.is_settled("a")
    world.worker.is_held = True
    world.learn(1)
    assert not promotions.is_settled("a")
    world.turn()
    assert not promotions.is_settled("a")
    world.worker.write_held()
    world.handle()
    assert not promotions.is_settled("a")
    world.worker.write_held()
    world.handle()
    assert promotions.is_settled("a")


def test_withdrawing_leaves_what_somebody_asked_for():
    world = World()
    world.worker.is_held = True
    reply = world.ask(9, 9)
    world.learn(1)
    world.learner._promotions.withdraw("a")
    world.worker.is_held = False
    world.worker.write_held()
    world.handle()
    world.turn()
    assert reply.result(0).version == "a@9"
    assert "published a@1" not in world.folder.log


def test_asked_for_version_waits_for_a_candidate_that_is_being_recorded():
    world = World()
    world.learn(1)
    world.learner.tend()
    world.worker.is_held = True
    world.handle()
    first, second = world.ask(8, 8), world.ask(9, 9)
    with pytest.raises(AdapterError, match="a@9 was not promoted: another version"):
        second.result(0)
    assert not first.done()
    world.worker.is_held = False
    world.worker.write_held()
    world.handle()
    assert first.result(0).version == "a@8"
    assert world.folder.log == ["published a@1", "promoted a@1", "promoted a@8"]


def test_asked_for_version_waits_for_a_candidate_whose_record_fails():
    world = World()
    world.learn(1)
    world.learner.tend()
    world.worker.is_held = True
    world.handle()
    reply = world.ask(8, 8)
    world.worker.is_held = False
    world.worker.fail_held(OSError("disk full"))
    world.handle()
    assert reply.result(0).version == "a@8"


def test_version_that_waits_for_a_record_is_refused_by_a_rollback():
    world = World()
    world.promote_learned(1)
    world.promote_learned(2)
    world.learn(3)
    world.learner.tend()
    world.worker.is_held = True
    world.handle()
    reply = world.ask(9, 9)
    world.roll_back()
    with pytest.raises(AdapterError, match="was rolled back"):
        reply.result(0)


def test_own_candidate_does_not_overtake_a_version_that_waits_for_a_slot():
    world = full_world()
    reply = world.ask(9, 9)
    world.learn(3)
    world.turn()
    assert not reply.done()
    world.roll_back()


def test_withdrawing_leaves_a_candidate_whose_promotion_may_be_on_record():
    """Or else a restart would serve what was not served before."""
    world = World()
    world.learn(1)
    world.learner.tend()
    world.worker.is_held = True
    world.handle()
    world.learner._promotions.withdraw("a")
    world.worker.write_held()
    world.handle()
    assert world.active == "a@1"
    assert world.folder.log == ["published a@1", "promoted a@1"]


def test_adapter_that_waits_longest_gets_the_slot_that_becomes_free():
    """However many versions of another come meanwhile."""
    world = World(num_slots=3)
    pins = []
    for seed in (1, 2, 3):
        world.ask(seed, seed)
        pins.append(world.store.pin("a"))
    first, other = world.ask(4, 4), world.ask(1, 9, "b")
    second = world.ask(5, 5)
    assert "a newer version replaced it" in str(first.exception(0))
    world.store.unpin(pins[0])
    world.turn()
    assert second.result(0).version == "a@5", "it took the place of the one it replaced"
    world.store.pin("a")
    third = world.ask(6, 6)
    world.store.unpin(pins[1])
    late = world.ask(7, 7)
    assert other.result(0).version == "b@1"
    assert third.done()
    assert not late.done()


def test_adapter_that_is_unloaded_leaves_nothing_behind():
    world = World()
    world.ask(1, 1, "b")
    assert "b" in world.learner.snapshot()
    world.put(Unload("b", Future()))
    assert "b" not in world.learner.snapshot()
