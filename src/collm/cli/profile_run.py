"""Measuring a replica on this machine: training alone, lone requests, then a mixed load."""

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import typer

from collm.cli.cache import cache_dir
from collm.cli.profile_fit import ADAPTER, Found, make_profile
from collm.cli.profile_load import ProfileLoad
from collm.cli.replica_settings import replica_settings
from collm.cli.sample_sets import load_sample_sets
from collm.config import CollmConfig
from collm.errors import ConfigError
from collm.model.checkpoint import Checkpoint
from collm.model.sources import find_checkpoint
from collm.pacing.cost import QuantumCostModel
from collm.pacing.online import Observed
from collm.pacing.quanta import QuantumKind
from collm.replica.assembly import Replica, claim_data, open_replica
from collm.sim.profile import Profile
from collm.training.config import JobConfig

_LOOK_EVERY_S = 0.5
_MIN_POINTS = 6
_MIN_LOSSES = 3
"""Fewest that a curve is fitted to."""
_SWITCH_INTERVAL_S = 0.001
"""As a replica's own process has it."""


def measure(config: CollmConfig, data: str, seconds: float, seed: int) -> Profile:
    """Run a replica with one job for ``seconds``, and return what it was found to take.

    Raises:
        ModelError, ConfigError, DataError: The replica cannot be opened.
        ConfigError: Too little was learned in that time.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    training = replace(config.training, jobs=(JobConfig(adapter=ADAPTER, data=data),))
    checkpoint = Checkpoint(find_checkpoint(config.model.source, cache_dir=cache_dir()))
    with tempfile.TemporaryDirectory() as folder:
        own = replace(config.replica, data_dir=str(Path(folder, "data")))
        settings = replica_settings(replace(config, replica=own, training=training))
        samples = load_sample_sets(training)
        replica = open_replica(checkpoint, settings, samples, claim_data(settings))
        try:
            found = asyncio.run(_run(replica, seconds, seed))
            return make_profile(found, replica, checkpoint, settings, training)
        finally:
            replica.close()


class _Points:
    """Losses by training tokens, each figure taken once."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self._times_s: list[float] = []

    def add(self, numbers: Mapping[str, Any], name: str, now_s: float) -> None:
        """Take a loss of a job's figures, if there is a new one."""
        loss = numbers.get(name)
        if loss is not None and (not self.points or loss != self.points[-1][1]):
            self.points.append((float(numbers["training_tokens"]), float(loss)))
            self._times_s.append(now_s)

    @property
    def tokens_per_s(self) -> float | None:
        """Return the training tokens per second from the first point to the last."""
        if len(self.points) < 2:
            return None
        num_tokens = self.points[-1][0] - self.points[0][0]
        return num_tokens / (self._times_s[-1] - self._times_s[0])


async def _run(replica: Replica, seconds: float, seed: int) -> Found:
    client, costs = replica.client, replica.pacing.quantum_cost
    held_out, trained = _Points(), _Points()
    _say("training alone")
    # Micro-batches grow as their times are learned; then they are what they will be.
    await _train_alone(replica, 0.15 * seconds, held_out, trained)
    settled, num_early, early_tokens = _seen(costs), len(held_out.points), _num_trained(replica)
    await _train_alone(replica, 0.4 * seconds, held_out, trained)
    if len(trained.points) < _MIN_LOSSES:
        raise ConfigError(
            f"--seconds is {seconds:g}, in which training took {len(trained.points)} steps on this"
            f" machine; a curve of its losses needs {_MIN_LOSSES}, so give it more time"
        )
    alone, num_alone_tokens = _since(settled, _seen(costs)), _num_trained(replica) - early_tokens
    numbers = client.snapshot()["adapters"][ADAPTER]
    load = ProfileLoad(client, ADAPTER if numbers["active"] else client.base_model, Random(seed))
    _say("requests beside training")
    steps, loop_s = await _serve_beside(replica, load, 0.4 * seconds)
    both = _since(settled, _seen(costs))
    kind = QuantumKind.FORWARD
    slowness = _size_s(both[kind].since(alone[kind])) / _size_s(alone[kind])
    _say(f"forward quanta took {slowness:.2f} times as long a token beside requests as alone")
    _say("lone requests")
    await replica.fine_tuning.pause(str(numbers["job"]))
    lone_ttft_s = await load.lone()
    return Found(
        # Of few held-out losses no curve can be made; a first pass over data is held out as well.
        points=held_out.points if len(held_out.points) >= _MIN_POINTS else trained.points,
        alone=alone,
        quanta=both,
        steps=steps,
        num_evaluations=len(held_out.points) - num_early,
        num_alone_tokens=num_alone_tokens,
        alone_tokens_per_s=trained.tokens_per_s,
        lone_ttft_s=lone_ttft_s,
        loop_s=loop_s,
    )


async def _train_alone(
    replica: Replica, seconds: float, held_out: _Points, trained: _Points
) -> None:
    """Take the held-out and the training losses that the job finds, by training tokens."""
    client = replica.client
    ends_s = client.now_s() + seconds
    while client.now_s() < ends_s:
        await asyncio.sleep(_LOOK_EVERY_S)
        numbers = client.snapshot()["adapters"].get(ADAPTER, {})
        held_out.add(numbers, "held_out_loss", client.now_s())
        trained.add(numbers, "training_loss", client.now_s())


async def _serve_beside(
    replica: Replica, load: ProfileLoad, seconds: float
) -> tuple[Observed, float]:
    """Return the steps under a changing load, and the time between two of them."""
    client, cost = replica.client, replica.pacing.step_cost
    before, steps, at_s = client.snapshot(), cost.observed, client.now_s()
    await load.mixed(seconds)
    await asyncio.sleep(_LOOK_EVERY_S)
    after, wall_s = client.snapshot(), client.now_s() - at_s
    busy_s = sum(after["loop_seconds"].values()) - sum(before["loop_seconds"].values())
    steps = cost.observed.since(steps)
    return steps, max(wall_s - busy_s, 0.0) / max(steps.num, 1)


def _num_trained(replica: Replica) -> float:
    """Return the sample tokens that the job has trained on."""
    return float(replica.client.snapshot()["adapters"].get(ADAPTER, {}).get("training_tokens", 0))


def _seen(costs: QuantumCostModel) -> dict[QuantumKind, Observed]:
    return {kind: costs.observed(kind) for kind in QuantumKind}


def _since(
    before: Mapping[QuantumKind, Observed], after: Mapping[QuantumKind, Observed]
) -> dict[QuantumKind, Observed]:
    return {kind: after[kind].since(before[kind]) for kind in QuantumKind}


def _size_s(seen: Observed) -> float:
    """Return the seconds per unit of size; infinitesimal where nothing was seen."""
    return max(seen.seconds / max(seen.features[1], 1.0), 1e-12)


def _say(text: str) -> None:
    typer.echo(f"profiling: {text}", err=True)
