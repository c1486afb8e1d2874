"""A whole replica, swapped a thousand times while it serves, stays as large as it was."""

import asyncio
import gc
from collections import Counter
from contextlib import aclosing

import pytest

from collm.lora.peft_folder import PEFT_CONFIG, PEFT_WEIGHTS, save_peft
from collm.model.checkpoint import Checkpoint
from collm.replica.config import ReplicaConfig
from collm.replica.process_memory import resident_bytes
from collm.types import FinishReason
from factories.checkpoints import tiny_checkpoint
from factories.engines import random_adapter, random_tokens
from factories.replicas import greedy, open_tiny_replica

NUM_STREAMS, NUM_WARM, NUM_SWAPS = 32, 300, 1_000
NUM_FILES = 3
MAX_GROWTH_BYTES = 12 << 20
"""12 KiB a swap, where one version's factors alone take more. The heap breathes by a few MiB."""


class Storm:
    """Streams that follow each other on one adapter, whose versions come from files."""

    def __init__(self, replica, files):
        self.replica = replica
        self.files = files
        self.ended = Counter()
        self.versions = set()
        self._num_swaps = 0

    async def stream(self, number):
        count = 0
        while True:
            count += 1
            prompt = random_tokens(12, seed=count % 7)
            request = greedy(
                f"s{number}-{count}", prompt, "tutor", arrived_at_s=self.replica.client.now_s()
            )
            (events,) = self.replica.client.submit(request)
            served_by = set()
            async with aclosing(events):
                async for event in events:
                    served_by.add(event.version)
                    if event.finish_reason is not None:
                        self.ended[event.finish_reason] += 1
            assert len(served_by) == 1
            self.versions |= served_by

    async def swap(self, times):
        for _ in range(times):
            config, weights = self.files[self._num_swaps % len(self.files)]
            await self.replica.adapters.import_folder("tutor", config, weights, promote=True)
            self._num_swaps += 1

    async def run(self):
        """Return the bytes in memory after the warm-up and after the swaps that count."""
        await self.swap(1)
        streams = [asyncio.create_task(self.stream(number)) for number in range(NUM_STREAMS)]
        sizes = []
        for times in (NUM_WARM, NUM_SWAPS):
            await self.swap(times)
            assert not any(stream.done() for stream in streams)
            gc.collect()
            sizes.append(resident_bytes())
        for stream in streams:
            stream.cancel()
        ends = await asyncio.gather(*streams, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        return sizes


@pytest.fixture
def storm(tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "model", "llama")
    spec, files = Checkpoint(checkpoint).spec, []
    for seed in range(NUM_FILES):
        folder = tmp_path / f"adapter-{seed}"
        folder.mkdir()
        save_peft(random_adapter(spec, rank=4, seed=seed), folder, "tiny")
        files.append(((folder / PEFT_CONFIG).read_bytes(), folder / PEFT_WEIGHTS))
    config = ReplicaConfig(
        data_dir=str(tmp_path / "data"), threads=1, min_promotion_interval_s=0.0, max_versions=3
    )
    replica = open_tiny_replica(checkpoint, tmp_path / "data", replica=config)
    yield Storm(replica, files)
    replica.close()


@pytest.mark.skipif(resident_bytes() is None, reason="the system hides how large a process is")
def test_resident_memory_is_flat_over_a_thousand_swaps_under_32_streams(storm):
    before, after = asyncio.run(storm.run())
    assert after - before < MAX_GROWTH_BYTES
    assert set(storm.ended) == {FinishReason.LENGTH}
    assert len(storm.versions) > NUM_SWAPS / 2, "most versions served somebody"
    assert storm.replica.client.snapshot()["adapters"]["tutor"]["promotions"] > NUM_SWAPS
