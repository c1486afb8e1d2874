"""Whether training keeps its hands off the latency objectives: on, off, and without control.

A real trace is replayed to the real engine at 10, 50 and 90 % of capacity, with training off, with
each budget, and with whole micro-batches between steps as a system without control has them. All
arms get the same requests at the same times, block by block; in each round the arms take turns in
drawn order, so whatever else the machine does falls on all alike. Capacity is the highest rate at
which 95 % of the requests meet both objectives with training off.

The bars need an otherwise idle machine, and a hundred requests at each load: with fewer even a
perfect run cannot prove its lower bound. `--quick` is there to see that it runs.

Run as: python benchmarks/slo.py
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from common import Report, checkpoint_folder, make_parser, progress

# isort: split
import torch

from collm.metrics.attainment import measure_attainment
from collm.model.checkpoint import Checkpoint
from collm.model.tokenizer import Tokenizer
from collm.pacing.config import Objectives, PacingConfig
from collm.workload.config import WorkloadConfig
from collm.workload.requests import build_requests, filler_text
from collm.workload.samples import load_samples
from collm.workload.traces import Trace, load_trace
from slo_arms import ArmReplica, Prompt, learn_first_version, open_arms
from slo_plan import (
    MAX_OUTPUT_TOKENS,
    MAX_PROMPT_TOKENS,
    MIN_ATTAINMENT,
    OUTPUT_DIVISOR,
    PROMPT_DIVISOR,
    QUICK_MAX_OUTPUT_TOKENS,
    TRACE,
    Arm,
    KneeSearch,
    Turn,
    block_size,
    cut_block,
    plan_turns,
    scale_lengths,
)
from slo_report import (
    LATENCY,
    OBJECTIVE,
    OFF,
    UNCONTROLLED,
    Block,
    Summary,
    calibration_rows,
    judge,
    latency_row,
    raw_block,
    summarize,
    training_row,
)

_ARMS = (Arm(name=OFF), Arm(name=LATENCY), Arm(name=OBJECTIVE), Arm(name=UNCONTROLLED, every=4))
_LOADS = (0.1, 0.5, 0.9)
_FILLER = "medquad"
_START_RATE_PER_S = 1.5
_WARM_UP = (8, 5.0)
"""Requests and seconds of an unmeasured block of each arm."""
_SWITCH_INTERVAL_S = 0.001
"""As the replica's process has it."""


def main() -> None:
    """Find capacity, replay, report."""
    parser = make_parser(__doc__ or "", rounds=4)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--requests", type=int, default=25, help="of a block, if not too long")
    parser.add_argument("--min-s", type=float, default=18.0, help="shortest block")
    parser.add_argument("--max-s", type=float, default=150.0, help="longest block")
    parser.add_argument("--capacity", type=float, metavar="RATE", help="requests/s; searched for")
    parser.add_argument("--loads", type=float, nargs="+", default=_LOADS, help="of capacity")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.min_s, arguments.max_s = 1, 6.0, 8.0
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    report = Report("SLO protection", arguments)
    asyncio.run(_run(report, Checkpoint(checkpoint_folder(arguments))))
    report.finish()


async def _run(report: Report, checkpoint: Checkpoint) -> None:
    dtype = getattr(torch, report.arguments.dtype)
    traffic = _Traffic(checkpoint, report.arguments)
    report.note(traffic.description)
    with tempfile.TemporaryDirectory() as scratch:
        first, folder = Path(scratch, "first"), Path(scratch)
        version = await learn_first_version(checkpoint, dtype, first)
        report.note(f"Requests ask for an adapter that starts as {version or 'the base'}.")
        arms = await open_arms([arm.name for arm in _ARMS], checkpoint, dtype, first, folder)
        try:
            await _measure(report, arms, traffic)
        finally:
            for arm in arms.values():
                arm.close()


async def _measure(report: Report, arms: Mapping[str, ArmReplica], traffic: "_Traffic") -> None:
    arguments, objectives = report.arguments, Objectives()
    for name, arm in arms.items():
        prompts = traffic.block(0.0, "warm-up", *_WARM_UP)
        await arm.replay(prompts, Turn(arm=name, load=0.0, block=0), 1.0, is_training=name != OFF)
    capacity = arguments.capacity
    if capacity is None:
        capacity = await _find_capacity(report, arms[OFF], traffic, objectives)
    sizes = {
        load: block_size(load * capacity, arguments.requests, arguments.min_s, arguments.max_s)
        for load in arguments.loads
    }
    turns = list(plan_turns(_ARMS, tuple(arguments.loads), arguments.rounds, arguments.seed))
    seconds = sum(sizes[turn.load][1] for turn in turns)
    progress(f"{len(turns)} blocks: {seconds / 60:.0f} min, and some seconds each to end")
    blocks = []
    for turn in turns:
        num_requests, duration_s = sizes[turn.load]
        prompts = traffic.block(turn.load, str(turn.block), num_requests, duration_s)
        blocks.append(await _replay(arms[turn.arm], prompts, turn))
        progress(_outline(blocks[-1], objectives))
    _report(report, blocks, objectives)
    report.raw["capacity_per_s"] = capacity
    report.note(f"Capacity: {capacity:.2f} requests/s.")


async def _find_capacity(
    report: Report, arm: ArmReplica, traffic: "_Traffic", objectives: Objectives
) -> float:
    """Return the highest rate that keeps the objectives with training off."""
    is_quick, probe_s = report.arguments.quick, report.arguments.min_s
    search = KneeSearch(_START_RATE_PER_S, 1.25 if is_quick else 1.12, 3 if is_quick else 8)
    probes = []
    while (rate := search.next_rate()) is not None:
        prompts = traffic.block(rate, "capacity", max(1, round(rate * probe_s)), probe_s)
        block = await _replay(arm, prompts, Turn(arm=OFF, load=1.0, block=0))
        share = measure_attainment(block.records, objectives).share or 0.0
        search.add(rate, share)
        progress(f"{rate:.2f} requests/s: attainment {share:.3f} of {len(prompts)} requests")
        probes.append({"requests/s": f"{rate:.2f}", "attainment": f"{share:.3f}"})
    report.table("Search for capacity, training off", probes)
    if search.capacity_per_s == 0.0:
        raise SystemExit(f"no rate tried had an attainment of {MIN_ATTAINMENT}")
    return search.capacity_per_s


async def _replay(arm: ArmReplica, prompts: Sequence[Prompt], turn: Turn) -> Block:
    objectives = Objectives()
    # What takes longer than the longest answer may has missed an objective already.
    max_drain_s = objectives.ttft_s + MAX_OUTPUT_TOKENS * objectives.tpot_s
    return await arm.replay(prompts, turn, max_drain_s, is_training=turn.arm != OFF)


def _report(report: Report, blocks: Sequence[Block], objectives: Objectives) -> None:
    pacing, seed = PacingConfig(), report.arguments.seed
    summaries: list[Summary] = []
    bars = []
    for load in report.arguments.loads:
        at_load = [block for block in blocks if block.load == load]
        off_blocks = [block for block in at_load if block.arm == OFF]
        off = summarize(off_blocks, off_blocks, objectives, seed)
        summaries.append(off)
        for arm in (LATENCY, OBJECTIVE, UNCONTROLLED):
            own = [block for block in at_load if block.arm == arm]
            summaries.append(summarize(own, off_blocks, objectives, seed))
            if arm != UNCONTROLLED:
                bars += judge(summaries[-1], off, objectives, pacing.max_quantum_s, pacing.quantile)
    report.table("What users notice", [latency_row(one) for one in summaries])
    trained = [training_row(one) for one in summaries if one.arm != OFF]
    report.table("What training cost and got", trained)
    report.table(f"Times under their {pacing.quantile:.0%} bound", calibration_rows(blocks))
    report.table("Bars", [bar.row() for bar in bars])
    report.raw["blocks"] = [raw_block(block) for block in blocks]
    report.raw["bars"] = [bar.row() for bar in bars]
    num_met = sum(bar.is_met for bar in bars)
    report.note(f"{num_met} of {len(bars)} bars met.")
    report.note(
        "Share of what serving left: time of quanta, evaluation included, over this arm's wall time"
        " less the step time of training off in the same blocks; above 1 where waiting made steps"
        " fuller, and so fewer. Blocks end with their last answer. Training tokens are those of"
        " finished optimizer steps: what was half done at a block's end is left out."
    )
    report.note(
        "Requests come from a client in the replica's process, as tokens: no HTTP, no text."
        " Arms are replicas of one process with weights of their own; one at a time works."
    )


def _outline(block: Block, objectives: Objectives) -> str:
    share = measure_attainment(block.records, objectives).share or 0.0
    trained = f"{block.work.num_training_tokens / block.work.wall_s:.0f} training tokens/s"
    return (
        f"{block.load:.0%}, block {block.number}, {block.arm}: attainment {share:.3f} of"
        f" {len(block.records)}, {trained}, {block.work.wall_s:.0f} s"
    )


class _Traffic:
    """Blocks of requests from the trace, with texts for their prompts."""

    def __init__(self, checkpoint: Checkpoint, arguments: argparse.Namespace) -> None:
        self._max_output = QUICK_MAX_OUTPUT_TOKENS if arguments.quick else MAX_OUTPUT_TOKENS
        self._rows: Trace = scale_lengths(load_trace(TRACE), self._max_output)
        self._tokenizer = Tokenizer(checkpoint.folder, checkpoint.spec.eos_token_ids)
        self._filler = filler_text(load_samples(_FILLER, "test"))
        self._seed: int = arguments.seed

    @property
    def description(self) -> str:
        """Say what is replayed."""
        num_prompt = sum(row.prompt_tokens for row in self._rows) / len(self._rows)
        num_output = sum(row.output_tokens for row in self._rows) / len(self._rows)
        return (
            f"Trace {TRACE} (Microsoft Azure, CC BY 4.0; lengths and times changed): runs of its"
            " neighbouring requests, times stretched to each block's rate; prompt lengths divided"
            f" by {PROMPT_DIVISOR:g} and cut to {MAX_PROMPT_TOKENS} tokens, outputs divided by"
            f" {OUTPUT_DIVISOR:g} and cut to {self._max_output}; then prompts have about"
            f" {num_prompt:.0f} tokens on average, outputs {num_output:.0f}, each generated in"
            f" full. Prompts are pieces of {_FILLER}."
        )

    def block(
        self, load: float, name: str, num_requests: int, duration_s: float
    ) -> tuple[Prompt, ...]:
        """Return the requests of a block; the same arguments give the same ones."""
        # The same rows at every load, but other texts: nothing may come from a prefix cache.
        first = Random(f"{self._seed}/{name}").randint(1, len(self._rows) // 2)
        rows = cut_block(self._rows, first, num_requests, duration_s)
        seed = Random(f"{self._seed}/{name}/{load}").randrange(2**32)
        config = WorkloadConfig(scored_share=0.0)
        requests = build_requests(rows, (), self._filler, config, seed)
        return tuple(
            Prompt(
                at_s=request.at_s,
                token_ids=tuple(
                    self._tokenizer.encode_chat(
                        [{"role": one.role, "content": one.content} for one in request.messages]
                    )
                ),
                num_output_tokens=request.max_tokens,
            )
            for request in requests
        )


if __name__ == "__main__":
    main()
