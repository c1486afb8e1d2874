"""Faults reported of comparable systems: adapters that come and go while requests run.

``docs/decisions/faults-of-others.md`` lists them all, and where each is tested.
"""

import gc
import math
import weakref
from concurrent.futures import Future

import pytest
import torch

from collm.engine.config import SchedulerConfig
from collm.errors import QueueFullError, StateError
from collm.lora.store import version_id
from collm.replica.inbox import Keep, Published, Release
from factories.checkpoints import tiny_checkpoint
from factories.engines import build_engine, random_adapter, random_tokens
from factories.replicas import build_rig, greedy
from factories.versions import answer_alone, ask_for, load, unload


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


def rig_of(checkpoint, **fields):
    return build_rig(build_engine(checkpoint, **({"num_blocks": 300} | fields)))


def ask(rig, name, model, **fields):
    """Submit a request that arrives now."""
    prompt = fields.pop("prompt", random_tokens(9, 3))
    rig.submit(greedy(name, prompt, model, arrived_at_s=rig.clock.now_s(), **fields))


def serve(rig, name, model, **fields):
    ask(rig, name, model, **fields)
    rig.run_until(lambda: rig.has_ended(name))
    return rig.tokens(name)


def has_begun(rig, name):
    return bool(rig.tokens(name)) or rig.has_ended(name)


# Coming and going


def test_unload_leaves_neither_slot_nor_host_memory(checkpoint):
    rig = rig_of(checkpoint)
    reply = ask_for(rig, "a", "1", state := random_adapter(rig.engine.spec, seed=1))
    factors = weakref.ref(state.flat)
    del state
    rig.run_until(reply.done)
    ask(rig, "r", "a", max_tokens=20)
    rig.step()
    unload(rig)
    assert factors() is not None, "a request still uses it"
    rig.run_until(lambda: rig.has_ended("r"))
    rig.step()
    gc.collect()
    assert factors() is None
    assert rig.store.num_free_slots == rig.engine.bank.num_slots
    assert rig.engine.blocks.num_cached == 0
    assert rig.learner.snapshot() == {}


def test_repeated_loads_grow_no_memory(checkpoint):
    """Counts live tensors and other objects after 40 loads and unloads, and after 120 more."""
    rig = rig_of(checkpoint)

    def cycle(numbers):
        for number in numbers:
            load(rig, str(number), seed=number % 3)
            serve(rig, f"r{number}", "a", max_tokens=2)
            unload(rig)
            for record in (rig.events, rig.quanta_before, rig.archive.folder.log):
                record.clear()

    def count():
        gc.collect()
        things = gc.get_objects()
        return sum(issubclass(type(thing), torch.Tensor) for thing in things), len(things)

    cycle(range(40))
    num_tensors, num_objects = count()
    cycle(range(40, 160))
    num_tensors_after, num_objects_after = count()
    assert num_tensors_after == num_tensors
    assert num_objects_after - num_objects < 60, "less than one for two loads"


def test_reloads_never_overflow_the_slots_and_wait_for_one(checkpoint):
    """One slot for the active version, one for the held, one for the next; requests hold all."""
    rig = rig_of(checkpoint, num_slots=3)
    replies = {}
    for number in range(1, 9):
        replies[number] = ask_for(
            rig, "a", str(number), random_adapter(rig.engine.spec, seed=number)
        )
        rig.step()
        if number < 4:
            ask(rig, f"r{number}", "a", max_tokens=60)
        for _ in range(3):
            rig.step()
            assert len(rig.store.infos()) <= 3
    assert not replies[8].done(), "three versions answer requests"
    rig.run_until(replies[8].done)
    assert replies[8].result(0).version == "a@8"
    for number in (4, 5, 6, 7):
        assert "a newer version replaced it" in str(replies[number].exception(0))
    for number in (1, 2, 3):
        rig.run_until(lambda number=number: rig.has_ended(f"r{number}"))
        expected = answer_alone(checkpoint, number, random_tokens(9, 3), 60)
        assert rig.tokens(f"r{number}") == expected
    assert len(rig.store.infos()) == 2


# Requests in flight


def test_requests_in_flight_and_in_the_queue_end_well_while_newer_versions_load(checkpoint):
    rig = rig_of(checkpoint, config=SchedulerConfig(max_running=2))
    load(rig, "1", seed=1)
    names = [f"r{number}" for number in range(10)]
    for name in names:
        ask(rig, name, "a", max_tokens=12)
    for label in ("2", "3", "4", "5", "6"):
        for _ in range(8):
            rig.step()
        load(rig, label, seed=int(label))
    rig.run_until(lambda: rig.has_ended(*names))
    for name in names:
        assert all(event.error is None for event in rig.events[name])
        (version,) = rig.versions(name)
        seed = int(version.partition("@")[2])
        assert rig.tokens(name) == answer_alone(checkpoint, seed, random_tokens(9, 3), 12)
    assert rig.versions("r0") == {"a@1"}
    assert len({version for name in names for version in rig.versions(name)}) >= 3


def test_publishing_another_label_ends_no_request(checkpoint):
    rig = rig_of(checkpoint)
    load(rig, "1", seed=1)
    ask(rig, "r", "a", max_tokens=40)
    ask(rig, "by label", "a@1", max_tokens=40)
    rig.step()
    kept, released = Future(), Future()
    label = version_id("a", "2.site.1")
    published = Published(
        adapter="a",
        version=label,
        state=random_adapter(rig.engine.spec, seed=2),
        metadata={},
        numbers={},
        is_local=False,
        reply=kept,
    )
    rig.inbox.put(Keep(published))
    rig.run_until(kept.done)
    ask(rig, "other", label, max_tokens=6)
    rig.run_until(lambda: rig.has_ended("other"))
    rig.inbox.put(Release(label, released))
    rig.run_until(released.done)
    assert not rig.has_ended("r")
    rig.run_until(lambda: rig.has_ended("r", "by label"))
    expected = answer_alone(checkpoint, 1, random_tokens(9, 3), 40)
    assert rig.tokens("r") == rig.tokens("by label") == expected
    assert rig.tokens("other") == answer_alone(checkpoint, 2, random_tokens(9, 3), 6)


def test_base_only_and_adapter_rows_of_one_batch_each_get_their_own_weights(checkpoint):
    rig = rig_of(checkpoint)
    seeds = {"base": None, "a": 1, "b": 2}
    for adapter in "ab":
        load(rig, "1", seed=seeds[adapter], adapter=adapter)
    mixed = [(f"{model} {number}", model) for number in range(3) for model in ("a", "base", "b")]
    for number, (name, model) in enumerate(mixed):
        ask(rig, name, model, prompt=random_tokens(5 + number % 4, 7), max_tokens=16)
    rig.run_until(lambda: rig.has_ended(*(name for name, _ in mixed)))
    for number, (name, model) in enumerate(mixed):
        prompt = random_tokens(5 + number % 4, 7)
        assert rig.tokens(name) == answer_alone(checkpoint, seeds[model], prompt, 16), name


# Nobody starves


def test_flood_of_one_adapters_requests_keeps_another_waiting_for_those_ahead_alone(checkpoint):
    """Nobody who came later is served earlier, and the full queue keeps a place for the other."""
    limits = SchedulerConfig(max_running=4, max_waiting=16)
    rig = rig_of(checkpoint, config=limits)
    for adapter in "ab":
        load(rig, "1", seed=1, adapter=adapter)
    num_flood, num_steps, last_ahead = 0, 0, math.inf
    while not has_begun(rig, "other"):
        for _ in range(3):
            ask(rig, f"flood {num_flood}", "a", max_tokens=6)
            num_flood += 1
        if num_flood == 60:
            ask(rig, "other", "b", max_tokens=6)
            last_ahead = num_flood
        begun = [number for number in range(num_flood) if rig.tokens(f"flood {number}")]
        rig.step()
        num_steps += num_flood > last_ahead
        assert num_steps < 1_000
    assert any(is_refused(rig, f"flood {n}") for n in range(num_flood)), "the queue is full"
    assert rig.events["other"][0].error is None
    assert max(begun) < last_ahead, "nobody who came later began in an earlier step"
    num_rounds = math.ceil((limits.max_running + limits.max_waiting) / limits.max_running)
    assert num_steps <= num_rounds * 8, "six tokens, and a step to take each one's place"


def is_refused(rig, name):
    return any(isinstance(event.error, QueueFullError) for event in rig.events[name])


def test_flood_of_one_adapters_versions_leaves_another_the_next_free_slot(checkpoint):
    """Every version of the flood has a request that holds its slot."""
    rig = rig_of(checkpoint, num_slots=4)
    other, activated = None, []
    for step in range(400):
        if other is not None and other.done():
            break
        ask_for(rig, "a", str(step), random_adapter(rig.engine.spec, seed=step))
        rig.step()
        if (active := rig.store.active("a")) not in activated:
            activated.append(active)
            ask(rig, f"r{active}", "a", max_tokens=40)
        if step == 60:
            num_before = len(activated)
            other = ask_for(rig, "b", "1", random_adapter(rig.engine.spec, seed=9))
    assert num_before >= 4, "all slots are taken"
    assert other.result(0).version == "b@1"
    assert len(activated) <= num_before + 1, "one that had waited before it"


def test_full_slots_refuse_a_newcomer_with_the_reason_and_serve_everybody_else(checkpoint):
    rig = rig_of(checkpoint, num_slots=2)
    load(rig, "1", seed=1)
    load(rig, "2", seed=2)
    reply = ask_for(rig, "b", "1", random_adapter(rig.engine.spec, seed=3))
    expected = answer_alone(checkpoint, 2, random_tokens(9, 3), 6)
    assert serve(rig, "meanwhile", "a", max_tokens=6) == expected
    rig.clock.advance(20.0)
    rig.step()
    with pytest.raises(StateError, match=r"a@1 \(held for rollback\), a@2 \(active\)"):
        reply.result(0)
    assert serve(rig, "afterwards", "a", max_tokens=6) == expected
