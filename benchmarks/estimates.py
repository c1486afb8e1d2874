"""Do the slow loop's estimates foretell what a real replica does next?

One replica learns ``clinc150`` in steps of several micro-batches while requests arrive at a rate
that changes from window to window, as lengths and gaps of a real trace. Every window is foretold by
estimates that saw only the windows before it. With ``--record`` what the replica reported is
written too, as the tests replay it.

Run as: python benchmarks/estimates.py
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from common import Report, checkpoint_folder, make_parser, progress

# isort: split
import torch

from collm.cli.sample_sets import load_sample_sets
from collm.cluster.planning.attainment import AttainmentModel, RequestMix, ServedWindow, calibrated
from collm.cluster.planning.efficiency import Throughput
from collm.cluster.planning.noise_scale import NoiseScale
from collm.cluster.planning.quality_curve import QualityCurve
from collm.cluster.planning.windows import Window, WindowBook
from collm.cluster.snapshot_json import to_json
from collm.engine.config import MemoryConfig, SchedulerConfig
from collm.lora.config import LoraConfig
from collm.model.checkpoint import Checkpoint
from collm.model.tokenizer import Tokenizer
from collm.pacing.config import PacingConfig
from collm.replica.assembly import Replica, claim_data, open_replica
from collm.replica.config import ReplicaConfig
from collm.replica.settings import ReplicaSettings
from collm.training.config import JobConfig, TrainingConfig
from collm.types import ReplicaSnapshot, Request, RequestId, SamplingParams
from collm.workload.config import WorkloadConfig
from collm.workload.requests import build_requests, filler_text
from collm.workload.samples import load_samples
from collm.workload.traces import load_trace
from slo_plan import TRACE, cut_block, scale_lengths

ADAPTER = "clinc"
_RATES = (0.5, 1.0, 0.0, 2.0, 1.0, 3.0, 0.5, 1.5)
"""Requests per second, window by window, again from the first."""
_MAX_OUTPUT_TOKENS = 64
_LOOK_EVERY_S = 0.5


@dataclass(slots=True)
class Estimates:
    """Everything that is learned of one replica, from windows alone."""

    served: list[ServedWindow] = field(default_factory=list)
    mix: RequestMix | None = None
    throughput: Throughput = field(default_factory=Throughput)
    noise: NoiseScale = field(default_factory=NoiseScale)
    curve: QualityCurve = field(default_factory=QualityCurve)
    num_tokens: int = 0

    def attainment(self, snapshot: ReplicaSnapshot) -> AttainmentModel | None:
        """Return the model as it stands; ``None`` before any request ended."""
        if self.mix is None:
            return None
        model = AttainmentModel(
            cost=snapshot.step_coefficients,
            ttft_s=snapshot.ttft_s,
            tpot_s=snapshot.tpot_s,
            mix=self.mix,
        )
        return calibrated(model, self.served)

    def learn(self, window: Window, snapshot: ReplicaSnapshot) -> None:
        """Take in a window, and how the replica stood at its end."""
        self.served.append(window.served())
        self.mix = window.mix() or self.mix
        done = window.done.adapters.get(ADAPTER)
        if done is not None:
            self.throughput.observe(done.num_trained_tokens, done.num_steps, done.training_s)
            self.noise.add(done.gradient)
            self.num_tokens += done.num_trained_tokens
        if ADAPTER in snapshot.quality:
            self.curve.add(self.num_tokens, 1.0 / snapshot.quality[ADAPTER])


def main() -> None:
    parser = make_parser(__doc__ or "", rounds=24, rounds_are="windows")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--window-s", type=float, default=15.0)
    parser.add_argument("--tokens-per-step", type=int, default=1024)
    parser.add_argument("--micro-batch-tokens", type=int, default=256)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the snapshots there")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.window_s = 4, 5.0
    report = Report("Estimates beside what happened", arguments)
    snapshots = asyncio.run(run(report, Checkpoint(checkpoint_folder(arguments))))
    report.table("Each window, foretold from those before it", foretell(snapshots))
    if arguments.record is not None:
        arguments.record.write_text(recording(report, snapshots), encoding="utf-8")
    report.finish()


async def run(report: Report, checkpoint: Checkpoint) -> list[ReplicaSnapshot]:
    """Serve and learn window by window; return a snapshot at the end of each, and at the start."""
    arguments = report.arguments
    tokenizer = Tokenizer(checkpoint.folder, checkpoint.spec.eos_token_ids)
    with tempfile.TemporaryDirectory(prefix="collm-estimates-") as folder:
        settings, samples = settings_of(arguments, folder)
        replica = open_replica(checkpoint, settings, samples, claim_data(settings))
        try:
            while ADAPTER not in replica.client.snapshot()["adapters"]:
                await asyncio.sleep(_LOOK_EVERY_S)
            snapshots = [look(replica)]
            async with asyncio.TaskGroup() as answers:
                for number in range(arguments.rounds):
                    rate = _RATES[number % len(_RATES)]
                    await send(replica, answers, requests_of(arguments, tokenizer, number, rate))
                    await until(replica, snapshots[0].taken_at_s, (number + 1) * arguments.window_s)
                    snapshots.append(look(replica))
                    progress(f"window {number + 1} of {arguments.rounds} at {rate:g}/s")
        finally:
            replica.close()
    return snapshots


def settings_of(arguments: argparse.Namespace, folder: str) -> tuple[ReplicaSettings, Any]:
    job = JobConfig(
        adapter=ADAPTER,
        data="clinc150",
        tokens_per_step=arguments.tokens_per_step,
        micro_batch_tokens=arguments.micro_batch_tokens,
    )
    training = TrainingConfig(jobs=(job,))
    settings = ReplicaSettings(
        base_model="base",
        dtype=getattr(torch, arguments.dtype),
        replica=ReplicaConfig(data_dir=folder),
        memory=MemoryConfig(kv_cache_mib=512),
        scheduler=SchedulerConfig(),
        lora=LoraConfig(),
        pacing=PacingConfig(),
        training=training,
    )
    return settings, load_sample_sets(training)


def look(replica: Replica) -> ReplicaSnapshot:
    return replace(replica.rounds.state(), taken_at_s=replica.client.now_s())


async def until(replica: Replica, start_s: float, after_s: float) -> None:
    await asyncio.sleep(max(0.0, start_s + after_s - replica.client.now_s()))


def requests_of(
    arguments: argparse.Namespace, tokenizer: Tokenizer, number: int, rate_per_s: float
) -> list[tuple[float, Request]]:
    """Return a window's requests with their times in it."""
    count = round(rate_per_s * arguments.window_s)
    if not count:
        return []
    rows = scale_lengths(load_trace(TRACE), _MAX_OUTPUT_TOKENS)
    first = Random(f"{arguments.seed}/{number}").randint(1, len(rows) // 2)
    block = cut_block(rows, first, count, 0.95 * arguments.window_s)
    filler = filler_text(load_samples("medquad", "test"))
    built = build_requests(block, (), filler, WorkloadConfig(scored_share=0.0), number)
    return [
        (
            one.at_s,
            Request(
                request_id=RequestId(f"{number}-{index}"),
                model=ADAPTER,
                prompt=tuple(
                    tokenizer.encode_chat(
                        [{"role": it.role, "content": it.content} for it in one.messages]
                    )
                ),
                sampling=SamplingParams(
                    max_tokens=one.max_tokens, temperature=0.0, ignore_eos=True
                ),
                arrived_at_s=0.0,
            ),
        )
        for index, one in enumerate(built)
    ]


async def send(
    replica: Replica, answers: asyncio.TaskGroup, requests: Sequence[tuple[float, Request]]
) -> None:
    start_s = replica.client.now_s()
    for at_s, request in requests:
        await until(replica, start_s, at_s)
        due = replace(request, arrived_at_s=start_s + at_s)
        answers.create_task(read(replica, due))


async def read(replica: Replica, request: Request) -> None:
    async with aclosing(replica.client.submit(request)) as stream:
        async for _ in stream:
            pass


def foretell(snapshots: Sequence[ReplicaSnapshot]) -> list[dict[str, str]]:
    """Return a row per window: what was expected of it, and what happened."""
    estimates, book, rows = Estimates(), WindowBook(), []
    book.observe(snapshots[0])
    for before, snapshot in zip(snapshots, snapshots[1:], strict=False):
        book.observe(snapshot)
        (window,) = book.close().values()
        rows.append(row(estimates, before, window, snapshot))
        estimates.learn(window, snapshot)
    return rows


def row(
    estimates: Estimates, before: ReplicaSnapshot, window: Window, after: ReplicaSnapshot
) -> dict[str, str]:
    model, served = estimates.attainment(before), window.served()
    done = window.done.adapters[ADAPTER]
    expected_met = expected_free = "–"
    if model is not None:
        expected_met = f"{model.probability(served.arrivals_per_s, served.credit_share):.2f}"
        expected_free = f"{model.free_share(served.arrivals_per_s):.2f}"
    batch = done.num_trained_tokens / done.num_steps if done.num_steps else 0.0
    expected_rate = estimates.throughput.tokens_per_s(batch) if batch else 0.0
    rate = done.num_trained_tokens / done.training_s if done.training_s else 0.0
    loss = 1.0 / after.quality[ADAPTER] if ADAPTER in after.quality else None
    return {
        "requests/s": f"{served.arrivals_per_s:.2f}",
        "met": f"{served.num_met / served.num_arrived:.2f}" if served.num_arrived else "–",
        "foretold": expected_met,
        "free share": f"{window.free_share:.2f}",
        "foretold ": expected_free,
        "trained tokens/s": f"{rate:.0f}",
        "foretold  ": f"{expected_rate:.0f}",
        "loss": "–" if loss is None else f"{loss:.3f}",
        "foretold   ": f"{estimates.curve.loss(done.num_trained_tokens):.3f}",
        "φ, tokens": f"{estimates.noise.phi_tokens:.0f}",
    }


def recording(report: Report, snapshots: Sequence[ReplicaSnapshot]) -> str:
    """Return the snapshots as the tests read them."""
    start_s = snapshots[0].taken_at_s
    value = {
        "made_by": report.environment["reproduce"],
        "cpu": report.environment["cpu"],
        "snapshots": [
            {"taken_at_s": round(one.taken_at_s - start_s, 3), "state": to_json(one)}
            for one in snapshots
        ],
    }
    return json.dumps(value) + "\n"


if __name__ == "__main__":
    main()
