"""The replicas that ``slo.py`` compares, and the client that replays blocks to one of them.

Each arm is a whole replica with its own weights, caches, loop thread and data folder; only the arm
whose turn it is has requests and an unpaused job. Requests come from an asyncio client in the main
thread of the replica's process, as from a server, but without HTTP and text.
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from collm.cli.sample_sets import load_sample_sets
from collm.engine.config import MemoryConfig, SchedulerConfig
from collm.lora.config import LoraConfig
from collm.metrics.records import Outcome, RequestRecord
from collm.model.checkpoint import Checkpoint
from collm.pacing.config import BudgetName, PacingConfig
from collm.replica.assembly import Replica, claim_data, open_replica
from collm.replica.client import ReplicaClient
from collm.replica.config import ReplicaConfig
from collm.replica.settings import ReplicaSettings
from collm.training.config import JobConfig, TrainingConfig
from collm.types import FinishReason, Request, RequestId, SamplingParams
from slo_plan import Turn
from slo_report import LATENCY, OBJECTIVE, OFF, UNCONTROLLED, Block, Coverage, Work

ADAPTER = "learner"
"""Learns in every arm but the one without training; all requests ask for it."""
_DATA = "clinc150"
_KV_CACHE_MIB = 512
_BUDGETS: dict[str, BudgetName] = {
    OFF: "latency",
    LATENCY: "latency",
    OBJECTIVE: "objective",
    UNCONTROLLED: "uncontrolled",
}
"""Training off is a replica whose job stays paused: same adapter, same memory."""

_LOOK_EVERY_S = 0.6
"""Longer than a replica's figures may be old."""
_LEAD_S = 0.05
_FIRST_VERSION_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a block."""

    at_s: float
    """Seconds after the start of the block."""
    token_ids: tuple[int, ...]
    num_output_tokens: int


@dataclass(slots=True)
class _Answer:
    """What the client saw of one request."""

    token_times_s: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def gaps_s(self) -> list[float]:
        return [later - time for time, later in itertools.pairwise(self.token_times_s)]

    @property
    def outcome(self) -> Outcome:
        is_done = self.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
        return "completed" if is_done else "failed"


class ArmReplica:
    """A replica whose job is paused unless ``replay`` runs with training.

    Args:
        checkpoint: The base model.
        dtype: Of weights and caches.
        pacing: Names the budget.
        data_dir: Its own folder; what is there is taken up.
    """

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, pacing: PacingConfig, data_dir: Path
    ) -> None:
        training = TrainingConfig(jobs=(JobConfig(adapter=ADAPTER, data=_DATA),))
        settings = ReplicaSettings(
            base_model="base",
            dtype=dtype,
            replica=ReplicaConfig(data_dir=str(data_dir)),
            memory=MemoryConfig(kv_cache_mib=_KV_CACHE_MIB),
            scheduler=SchedulerConfig(),
            lora=LoraConfig(),
            pacing=pacing,
            training=training,
        )
        samples = load_sample_sets(training)
        self._replica: Replica = open_replica(checkpoint, settings, samples, claim_data(settings))
        self._num_requests = 0
        self.client: ReplicaClient = self._replica.client

    async def ready(self) -> None:
        """Wait until the job is there, and pause it."""
        while ADAPTER not in self.client.snapshot()["adapters"]:
            await asyncio.sleep(_LOOK_EVERY_S)
        await self.pause()

    async def pause(self) -> None:
        """Train no more from the next quantum on."""
        await self._replica.fine_tuning.pause(self._job_id)

    async def resume(self) -> None:
        """Train, as the budget allows."""
        await self._replica.fine_tuning.resume(self._job_id)

    @property
    def _job_id(self) -> str:
        return str(self.client.snapshot()["adapters"][ADAPTER]["job"])

    def close(self) -> None:
        """End the replica."""
        self._replica.close()

    async def settle(self) -> Work:
        """Wait until a paused replica works no more; return its counters."""
        before = self.work()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            work = self.work()
            if work.minus(before).busy_s == 0.0:
                return work
            before = work

    def work(self) -> Work:
        """Return the counters, at most half a second old; their wall time is left out."""
        numbers = self.client.snapshot()
        seconds, calibration = numbers["loop_seconds"], numbers["calibration"]
        return Work(
            serve_s=seconds["serve"],
            train_s=seconds["train"],
            evaluate_s=seconds["evaluate"],
            num_training_tokens=numbers["adapters"][ADAPTER]["training_tokens"],
            steps=_coverage(calibration["step"]),
            quanta={kind: _coverage(one) for kind, one in calibration["quanta"].items()},
        )

    async def replay(
        self, prompts: Sequence[Prompt], turn: Turn, max_drain_s: float, *, is_training: bool
    ) -> Block:
        """Send the prompts at their times, training beside or not, until all are answered.

        What has no end ``max_drain_s`` after the last one was sent is aborted, and has failed.
        """
        before, started_s = await self.settle(), self.client.now_s()
        if is_training:
            await self.resume()
        first_s = self.client.now_s() + _LEAD_S
        answers = await self._answers(prompts, first_s, max_drain_s)
        if is_training:
            await self.pause()
        wall_s = self.client.now_s() - started_s
        work = replace((await self.settle()).minus(before), wall_s=wall_s)
        self._num_requests += len(prompts)
        return Block(
            arm=turn.arm,
            load=turn.load,
            number=turn.block,
            records=tuple(
                _record(answer, prompt, first_s)
                for answer, prompt in zip(answers, prompts, strict=True)
            ),
            gaps_s=tuple(gap for answer in answers for gap in answer.gaps_s),
            work=work,
        )

    async def _answers(
        self, prompts: Sequence[Prompt], start_s: float, max_drain_s: float
    ) -> list[_Answer]:
        answers = [_Answer() for _ in prompts]
        async with asyncio.TaskGroup() as group:
            tasks = []
            for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
                due_s = start_s + prompt.at_s
                await asyncio.sleep(max(0.0, due_s - self.client.now_s()))
                request = self._request(prompt, number, due_s)
                tasks.append(group.create_task(self._read(request, answer)))
            _, late = await asyncio.wait(tasks, timeout=max_drain_s)
            for task in late:
                task.cancel()
        return answers

    async def _read(self, request: Request, answer: _Answer) -> None:
        (events,) = self.client.submit(request)
        async with aclosing(events) as stream:
            async for event in stream:
                if event.token_id is not None:
                    answer.token_times_s.append(self.client.now_s())
                if event.finish_reason is not None:
                    answer.finish_reason = event.finish_reason
                    answer.error = None if event.error is None else str(event.error)

    def _request(self, prompt: Prompt, number: int, due_s: float) -> Request:
        return Request(
            request_id=RequestId(f"slo-{self._num_requests + number}"),
            model=ADAPTER,
            prompt=prompt.token_ids,
            sampling=SamplingParams(
                max_tokens=prompt.num_output_tokens, temperature=0.0, ignore_eos=True
            ),
            arrived_at_s=due_s,
        )


async def learn_first_version(
    checkpoint: Checkpoint, dtype: torch.dtype, data_dir: Path
) -> str | None:
    """Train on an idle replica until a version is active; return its id.

    Every arm starts from a copy of ``data_dir``, so that all serve the same adapter at first.
    ``None`` when nothing was promoted in time; requests are then served by the base.
    """
    arm = ArmReplica(checkpoint, dtype, PacingConfig(), data_dir)
    try:
        await arm.ready()
        await arm.resume()
        ends_s, active = arm.client.now_s() + _FIRST_VERSION_TIMEOUT_S, None
        while arm.client.now_s() < ends_s:
            await asyncio.sleep(_LOOK_EVERY_S)
            active = next((one for one in arm.client.versions() if one.is_active), None)
            if active is not None:
                break
        await arm.pause()
        await arm.settle()
        return None if active is None else str(active.version)
    finally:
        arm.close()


def budget_of(arm: str) -> BudgetName:
    """Return the budget that an arm works by."""
    return _BUDGETS[arm]


def _record(answer: _Answer, prompt: Prompt, start_s: float) -> RequestRecord:
    times_s = answer.token_times_s
    return RequestRecord(
        request_id="",
        model=ADAPTER,
        arrived_at_s=start_s + prompt.at_s,
        first_token_at_s=times_s[0] if times_s else None,
        last_token_at_s=times_s[-1] if times_s else None,
        num_prompt_tokens=len(prompt.token_ids),
        num_output_tokens=len(times_s),
        max_gap_s=max(answer.gaps_s, default=None),
        finish_reason=answer.finish_reason,
        outcome=answer.outcome,
        error=answer.error,
    )


def _coverage(calibration: Mapping[str, Any]) -> Coverage:
    num_observed = calibration["num_observed"]
    return Coverage(num_observed, round(calibration["covered_share"] * num_observed))
