"""Whether training keeps its hands off the latency objectives: on, off, and without control.

A real trace is replayed to the real engine at 10, 50 and 90 % of capacity, with training off, with
each budget, and with whole micro-batches between steps as a system without control has them. All
arms get the same requests at the same times, block by block; in each round the arms take turns in
drawn order, so whatever else the machine does falls on all alike. Capacity is the highest rate at
which 95 % of the requests meet both objectives with training off.

The bars need an otherwise idle machine, and a hundred requests at each load: with fewer even a
perfect run cannot prove its lower bound. `--quick` is there to see that it runs.

With `--keep` finished blocks stay in a folder, and the same command goes on where it ended; with
`--for-s` it ends in time, and reports what is there. `--for-s 0` only reports.

Run as: python benchmarks/slo.py
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import Report, checkpoint_folder, make_parser, progress

# isort: split
from collm.metrics.attainment import measure_attainment
from collm.model.checkpoint import Checkpoint
from collm.pacing.config import Objectives
from slo_arms import Prompt
from slo_outcome import report_blocks
from slo_plan import (
    MAX_OUTPUT_TOKENS,
    MIN_ATTAINMENT,
    Arm,
    KneeSearch,
    Turn,
    block_size,
    plan_turns,
)
from slo_processes import ArmProcess, ArmSettings, learn_first
from slo_report import ARMS, OFF, UNCONTROLLED, Block
from slo_store import BlockFolder
from slo_traffic import Traffic

_EVERY = {UNCONTROLLED: 4}
_LOADS = (0.1, 0.5, 0.9)
_PROBE_BLOCKS = 6
"""Bursts make blocks differ: at one rate, some miss nothing and some a sixth of their requests."""
_WARM_UP = (8, 5.0)
"""Requests and seconds of an unmeasured block of each arm."""
_DRAIN_S = 10.0
"""What a block takes beyond its last arrival, about."""


def main() -> None:
    """Find capacity, replay, report."""
    parser = make_parser(__doc__ or "", rounds=4)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--requests", type=int, default=25, help="of a block, if not too long")
    parser.add_argument("--min-s", type=float, default=18.0, help="shortest block")
    parser.add_argument("--max-s", type=float, default=150.0, help="longest block")
    parser.add_argument("--capacity", type=float, metavar="RATE", help="requests/s; searched for")
    parser.add_argument("--start-rate", type=float, default=1.5, help="of the search for capacity")
    parser.add_argument("--loads", type=float, nargs="+", default=_LOADS, help="of capacity")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of finished blocks")
    parser.add_argument(
        "--for-s", type=float, metavar="SECONDS", help="begin no block that ends later"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.min_s, arguments.max_s = 1, 6.0, 8.0
    report = Report("SLO protection", arguments)
    with tempfile.TemporaryDirectory() as scratch:
        run = _Run(
            report, BlockFolder(arguments.keep or Path(scratch, "kept"), _settings(arguments))
        )
        if arguments.for_s != 0.0:
            run.measure(Path(scratch))
    run.report()
    report.finish()


def _settings(arguments: argparse.Namespace) -> dict[str, str | int | float | bool]:
    names = ("model", "dtype", "threads", "quick", "requests", "min_s", "max_s", "seed")
    return {name: getattr(arguments, name) for name in names}


class _Run:
    """Measures what the folder lacks, and reports what it has."""

    def __init__(self, report: Report, folder: BlockFolder) -> None:
        arguments = report.arguments
        self._report = report
        self._arguments = arguments
        self._folder = folder
        self._objectives = Objectives()
        self._ends_s = time.monotonic() + (arguments.for_s or 1e9)
        folder_of_model = checkpoint_folder(arguments)
        self._settings = ArmSettings(folder_of_model, arguments.dtype, arguments.threads)
        self._traffic = Traffic(Checkpoint(folder_of_model), arguments)
        arms = tuple(Arm(name=name, every=_EVERY.get(name, 1)) for name in arguments.arms)
        self._turns = list(
            plan_turns(arms, tuple(arguments.loads), arguments.rounds, arguments.seed)
        )

    def measure(self, scratch: Path) -> None:
        """Replay the blocks that are missing, as long as there is time."""
        missing = [turn for turn in self._turns if not self._folder.has(turn)]
        if not missing:
            return
        self._learn_first()
        names = [name for name in ARMS if any(turn.arm == name for turn in missing)]
        is_unknown = self._arguments.capacity is None and self._folder.capacity_per_s is None
        if is_unknown and OFF not in names:
            names.insert(0, OFF)
        arms: dict[str, ArmProcess] = {}
        try:
            for name in names:
                shutil.copytree(self._folder.first, scratch / name)
                arms[name] = ArmProcess(name, self._settings, scratch / name)
            for arm in arms.values():
                arm.wait()
            self._warm_up(arms)
            if is_unknown:
                self._folder.put_capacity(self._find_capacity(arms[OFF]))
            self._replay_all(missing, arms)
        finally:
            for arm in arms.values():
                arm.close()

    def _learn_first(self) -> None:
        folder = self._folder
        if folder.first_version is None:
            shutil.rmtree(folder.first, ignore_errors=True)
            version = learn_first(self._settings, folder.first)
            folder.put_first_version(version or "")

    def _warm_up(self, arms: Mapping[str, ArmProcess]) -> None:
        for name, arm in arms.items():
            prompts = self._traffic.block(0.0, "warm-up", *_WARM_UP)
            turn = Turn(arm=name, load=0.0, block=0)
            arm.replay(prompts, turn, 1.0, is_training=name != OFF)

    def _find_capacity(self, arm: ArmProcess) -> float:
        """Return the highest rate that keeps the objectives with training off."""
        is_quick, given = self._arguments.quick, self._arguments
        search = KneeSearch(given.start_rate, 1.25 if is_quick else 1.12, 3 if is_quick else 8)
        probes = []
        while (rate := search.next_rate()) is not None:
            share, num_requests = self._probe(arm, rate)
            search.add(rate, share)
            progress(f"{rate:.2f} requests/s: attainment {share:.3f} of {num_requests} requests")
            probes.append({"requests/s": f"{rate:.2f}", "attainment": f"{share:.3f}"})
        self._report.table("Search for capacity, training off", probes)
        if search.capacity_per_s == 0.0:
            raise SystemExit(f"no rate tried had an attainment of {MIN_ATTAINMENT}")
        return search.capacity_per_s

    def _probe(self, arm: ArmProcess, rate_per_s: float) -> tuple[float, int]:
        """Return the attainment at a rate, and of how many requests.

        The rows are those of the first blocks, so that capacity is that for what is measured.
        Blocks end once so many were missed that the rate cannot hold any more.
        """
        given = self._arguments
        num_blocks = 1 if given.quick else _PROBE_BLOCKS
        size = block_size(rate_per_s, given.requests, given.min_s, given.max_s)
        num_met, num_requests = 0.0, 0
        for number in range(num_blocks):
            prompts = self._traffic.block(rate_per_s, str(number), *size)
            block = self._replay(arm, prompts, Turn(arm=OFF, load=1.0, block=number))
            share = measure_attainment(block.records, self._objectives).share or 0.0
            num_met += share * len(block.records)
            num_requests += len(block.records)
            if num_requests - num_met > (1.0 - MIN_ATTAINMENT) * size[0] * num_blocks:
                break
        return num_met / num_requests, num_requests

    def _replay_all(self, turns: Sequence[Turn], arms: Mapping[str, ArmProcess]) -> None:
        sizes = {turn.load: self._size(turn.load) for turn in turns}
        seconds = sum(sizes[turn.load][1] + _DRAIN_S for turn in turns)
        progress(f"{len(turns)} blocks: {seconds / 60:.0f} min")
        for turn in turns:
            num_requests, duration_s = sizes[turn.load]
            if time.monotonic() + duration_s + _DRAIN_S > self._ends_s:
                progress("The time is over.")
                return
            prompts = self._traffic.block(turn.load, str(turn.block), num_requests, duration_s)
            block = self._replay(arms[turn.arm], prompts, turn)
            self._folder.put(block)
            progress(_outline(block, self._objectives))

    def _size(self, load: float) -> tuple[int, float]:
        """Return requests and seconds of a block."""
        given = self._arguments
        return block_size(load * self._capacity_per_s, given.requests, given.min_s, given.max_s)

    @property
    def _capacity_per_s(self) -> float:
        found: float | None = self._arguments.capacity or self._folder.capacity_per_s
        if found is None:
            raise SystemExit("capacity is not known yet, and nothing was measured")
        return found

    def _replay(self, arm: ArmProcess, prompts: Sequence[Prompt], turn: Turn) -> Block:
        objectives = self._objectives
        # What takes longer than the longest answer may has missed an objective already.
        max_drain_s = objectives.ttft_s + MAX_OUTPUT_TOKENS * objectives.tpot_s
        return arm.replay(prompts, turn, max_drain_s, is_training=turn.arm != OFF)

    def report(self) -> None:
        """Add tables and notes on all blocks there are."""
        report, folder = self._report, self._folder
        report.note(self._traffic.description)
        version = folder.first_version or "the base"
        report.note(f"Requests ask for an adapter that starts as {version}.")
        report.note(f"Capacity: {self._capacity_per_s:.2f} requests/s.")
        wanted = {(turn.arm, turn.load, turn.block) for turn in self._turns}
        blocks = [one for one in folder.blocks() if (one.arm, one.load, one.number) in wanted]
        report.note(f"{len(blocks)} of {len(wanted)} blocks are finished.")
        report.raw["capacity_per_s"] = self._capacity_per_s
        report_blocks(report, blocks, self._arguments.loads, self._arguments.seed)
        report.note(
            "Requests come from a client in the replica's process, as tokens: no HTTP, no text."
            " Each arm is a process of its own; one at a time works."
        )


def _outline(block: Block, objectives: Objectives) -> str:
    share = measure_attainment(block.records, objectives).share or 0.0
    trained = f"{block.work.num_training_tokens / block.work.wall_s:.0f} training tokens/s"
    return (
        f"{block.load:.0%}, block {block.number}, {block.arm}: attainment {share:.3f} of"
        f" {len(block.records)}, {trained}, {block.work.wall_s:.0f} s"
    )


if __name__ == "__main__":
    main()
