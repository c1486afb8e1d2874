"""Do the slow loop's estimates foretell what a real replica does next?

One replica learns ``clinc150`` as by default while requests arrive at a rate that changes from
window to window, as lengths and gaps of a real trace. Every window is foretold by estimates that
saw only the windows before it. With ``--record`` what the replica reported is written too, as the
tests replay it.

Run as: python benchmarks/estimates.py
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from common import Report, checkpoint_folder, make_parser, progress

# isort: split
import torch

from collm.cli.sample_sets import load_sample_sets
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
from foretelling import Foretold, foretell, mean_error, write_recording
from slo_plan import TRACE, cut_block, scale_lengths

ADAPTER = "clinc"
_RATES = (0.5, 1.0, 0.25, 1.5, 0.75, 2.0, 0.0, 1.25)
"""Requests per second, window by window, again from the first."""
_MAX_OUTPUT_TOKENS = 64
_LOOK_EVERY_S = 0.5


def main() -> None:
    parser = make_parser(__doc__ or "", rounds=14, rounds_are="windows")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--window-s", type=float, default=30.0)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the snapshots there")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.window_s = 4, 5.0
    report = Report("Estimates beside what happened", arguments)
    snapshots = asyncio.run(run(report, Checkpoint(checkpoint_folder(arguments))))
    rows = foretell(snapshots, ADAPTER)
    report.table("Each window, foretold from those before it", [row(one) for one in rows])
    note_errors(report, rows)
    if arguments.record is not None:
        write_recording(
            snapshots,
            arguments.record,
            made_by="benchmarks/estimates.py",
            cpu=report.environment["cpu"],
            windows=arguments.rounds,
            window_s=arguments.window_s,
        )
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
    job = JobConfig(adapter=ADAPTER, data="clinc150")
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
    (events,) = replica.client.submit(request)
    async with aclosing(events) as stream:
        async for _ in stream:
            pass


def row(one: Foretold) -> dict[str, str]:
    return {
        "requests/s": f"{one.arrivals_per_s:.2f}",
        "met": _share(one.met),
        "foretold": _share(one.expected_met),
        "free share": _share(one.free_share),
        "foretold ": _share(one.expected_free),
        "tokens trained": str(one.num_tokens),
        "foretold  ": f"{one.expected_tokens:.0f}",
        "loss": "–" if one.loss is None else f"{one.loss:.3f}",
        "foretold   ": f"{one.expected_loss:.3f}",
        "φ, tokens": f"{one.phi_tokens:.0f}",
    }


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def note_errors(report: Report, rows: Sequence[Foretold]) -> None:
    met = mean_error((one.met, one.expected_met) for one in rows)
    free = mean_error((one.free_share, one.expected_free) for one in rows)
    ratio = sum(one.num_tokens for one in rows) / sum(one.expected_tokens for one in rows)
    loss = mean_error((one.loss, one.expected_loss) for one in rows)
    report.note(
        f"mean error: P {met:.2f}, free share {free:.2f}, loss {loss:.2f}; tokens trained in all: "
        f"{ratio:.2f} times what was foretold"
    )


if __name__ == "__main__":
    main()
