"""Promotions every few steps under many streams: each request is served by one version alone."""

import gc
import itertools
import tracemalloc
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from collm.engine.config import SchedulerConfig
from collm.lora.state import AdapterState
from collm.types import BASE, Request, VersionId
from factories.checkpoints import tiny_checkpoint
from factories.engine import request
from factories.engines import Engine, build_engine, generate, random_adapter, random_tokens

NUM_STREAMS = 32
NUM_OUTPUT = 10
STEPS_PER_SWAP = 3
MODELS = ("a", "b", "base", "a")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("storm"), "llama")


def stream(number: int, now_s: float) -> Request:
    """Few prompts that begin alike, so that versions meet in the prefix cache."""
    prompt = random_tokens(16, seed=0) + random_tokens(1 + number % 9, seed=number % 5)
    return request(
        f"s{number}",
        prompt,
        model=MODELS[number % len(MODELS)],
        arrived_at_s=now_s,
        temperature=0.0,
        max_tokens=NUM_OUTPUT + number % 7,
    )


class Storm:
    """Keeps 32 streams going and publishes versions of two adapters in turn."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.states: dict[VersionId, AdapterState] = {}
        self.requests: dict[str, Request] = {}
        self.num_swaps = self.num_refused = 0
        self._numbers = itertools.count()
        self._labels = itertools.count(1)

    def swap(self, adapter: str) -> None:
        """Publish a new version unless all slots are in use, as a replica does."""
        label = next(self._labels)
        state = random_adapter(self.engine.spec, rank=1 + label % 4, seed=label)
        version = VersionId(f"{adapter}@{label}")
        if not self.engine.store.try_stage(adapter, version, state):
            self.num_refused += 1
            return
        self.states[version] = state
        self.engine.store.promote(version)
        self.num_swaps += 1

    def refill(self) -> None:
        scheduler = self.engine.scheduler
        while scheduler.num_running + scheduler.num_waiting < NUM_STREAMS:
            new = stream(next(self._numbers), self.engine.now_s)
            self.requests[new.request_id] = new
            self.engine.add(new)

    def run(self, num_steps: int) -> None:
        for step in range(num_steps):
            if step % STEPS_PER_SWAP == 0:
                self.swap("ab"[step // STEPS_PER_SWAP % 2])
            self.refill()
            self.engine.step()
        self.engine.drain()


def test_every_answer_in_a_swap_storm_is_that_of_its_own_version(folder):
    # A pool for about half of the streams: preemption goes on all the time.
    config = SchedulerConfig(max_running=NUM_STREAMS)
    engine = build_engine(folder, num_blocks=140, num_slots=6, max_rank=4, config=config)
    storm = Storm(engine)
    for adapter in "ab":
        storm.swap(adapter)
    storm.run(60)
    assert storm.num_swaps >= 10
    versions_of = {
        name: {event.version for event in engine.events[name, 0]} for name in storm.requests
    }
    assert all(len(versions) == 1 for versions in versions_of.values())
    served = defaultdict(list)
    for name, (version,) in versions_of.items():
        served[version].append(storm.requests[name])
    assert len(served) >= 8, "requests met many versions"
    _assert_answers_of_frozen_versions(storm, served, build_engine(folder, num_blocks=512))
    assert any(engine.last(name).num_cached_tokens for name in storm.requests)
    assert len(engine.store.infos()) + engine.store.num_free_slots == 6
    assert {info.adapter for info in engine.store.infos()} == {"a", "b"}
    assert len(engine.store.infos()) == 4, "active and held ones alone are left"


def _assert_answers_of_frozen_versions(
    storm: Storm, served: dict[VersionId, list[Request]], frozen: Engine
) -> None:
    """Ask an engine that holds nothing but this one version all the while."""
    for version, asked in served.items():
        adapter, _, label = version.partition("@")
        if version != BASE:
            frozen.publish(adapter, label, storm.states[version])
        answers = generate(frozen, asked)
        for name, tokens in answers.items():
            assert storm.engine.tokens(name) == tokens, (name, version)
        if version != BASE:
            frozen.store.unload(adapter)


def test_memory_is_flat_over_a_thousand_swaps(folder):
    """Counts live tensors and Python memory after 300 swaps and after 1,000 more."""
    engine = build_engine(folder, num_slots=4, max_rank=2)
    states = [random_adapter(engine.spec, 2, seed) for seed in range(3)]

    def swap(numbers: range) -> None:
        for number in numbers:
            engine.publish("a", str(number), states[number % 3])
            if number % 20 == 0:
                one = request(str(number), random_tokens(9, number), model="a", max_tokens=2)
                generate(engine, [one])
                engine.events.clear()

    def usage() -> tuple[int, int]:
        gc.collect()
        num_tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
        return num_tensors, tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        swap(range(300))
        num_tensors, num_bytes = usage()
        swap(range(300, 1_300))
        num_tensors_after, num_bytes_after = usage()
    finally:
        tracemalloc.stop()
    assert num_tensors_after == num_tensors
    assert num_bytes_after - num_bytes < 50_000, "50 bytes a swap: the interpreter's own lists"
    assert len(engine.store.infos()) == 2
    assert engine.blocks.num_cached <= 6, "blocks of freed versions are gone"
