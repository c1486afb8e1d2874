"""What ``slo.py`` reports: sums over blocks, tables, and the bars. No torch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collm.metrics.attainment import Attainment, measure_attainment
from collm.metrics.latency import LatencySummary, percentile, summarize_latency
from collm.metrics.paired import PairCounts, bootstrap_ratio, pair_records, total_pairs
from collm.metrics.records import RequestRecord
from collm.pacing.config import Objectives

OFF, LATENCY, OBJECTIVE, UNCONTROLLED = "off", "latency", "objective", "uncontrolled"
ARMS = (OFF, LATENCY, OBJECTIVE, UNCONTROLLED)

_MIN_RATIO = 0.99
_MIN_RATIO_BOUND = 0.98
_MIN_LEFT_SHARE = 0.8
_COVERED_TOLERANCE = 0.01
"""How far below its quantile the share of covered steps may be: bounds follow, they lag a bit."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often a predicted upper bound held."""

    num_observed: int = 0
    num_covered: int = 0

    def __add__(self, other: "Coverage") -> "Coverage":
        return Coverage(
            self.num_observed + other.num_observed, self.num_covered + other.num_covered
        )

    def __sub__(self, other: "Coverage") -> "Coverage":
        return Coverage(
            self.num_observed - other.num_observed, self.num_covered - other.num_covered
        )

    @property
    def share(self) -> float | None:
        """Share of observations at or under their bound; ``None`` before any."""
        return self.num_covered / self.num_observed if self.num_observed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A replica's counters, all counted since its start; a difference is that of a block."""

    wall_s: float = 0.0
    serve_s: float = 0.0
    train_s: float = 0.0
    """Time of all quanta but those of evaluation."""
    evaluate_s: float = 0.0
    num_training_tokens: int = 0
    steps: Coverage = Coverage()
    quanta: Mapping[str, Coverage]

    @property
    def busy_s(self) -> float:
        """Return the time of all steps and quanta."""
        return self.serve_s + self.train_s + self.evaluate_s

    def minus(self, before: "Work") -> "Work":
        """Return what was done since ``before``."""
        return Work(
            wall_s=self.wall_s - before.wall_s,
            serve_s=self.serve_s - before.serve_s,
            train_s=self.train_s - before.train_s,
            evaluate_s=self.evaluate_s - before.evaluate_s,
            num_training_tokens=self.num_training_tokens - before.num_training_tokens,
            steps=self.steps - before.steps,
            quanta={
                kind: found - before.quanta.get(kind, Coverage())
                for kind, found in self.quanta.items()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One arm's replay of one block of requests."""

    arm: str
    load: float
    number: int
    """Blocks of one load and number had the same requests."""
    records: tuple[RequestRecord, ...]
    """In the order of the requests."""
    gaps_s: tuple[float, ...]
    """Every time between two neighbouring tokens of a request."""
    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One arm at one load, beside training off over the same blocks."""

    arm: str
    load: float
    attainment: Attainment
    ttft: LatencySummary
    tpot: LatencySummary
    gap: LatencySummary
    over_gap_share: float
    """Share of gaps longer than ``max_itl``."""
    pairs: PairCounts
    """Met with this arm (new) and with training off (old)."""
    bootstrap: tuple[float, float] | None
    """95 % interval of the ratio over blocks; ``None`` with one block or none met."""
    training_tokens_per_s: float
    evaluation_share: float
    """Share of this arm's learning time that went into evaluation."""
    left_share: float
    """Learning time / (this arm's wall time - training off's step time)."""
    steps: Coverage

    @property
    def ratio_bound(self) -> float:
        """Lower 95 % bound of the attainment ratio: the lower one of both intervals.

        The bootstrap knows that neighbours share their luck, the other that few requests which
        all met prove little.
        """
        low = self.pairs.interval[0]
        return low if self.bootstrap is None else min(low, self.bootstrap[0])


def pairable(
    blocks: Sequence[Block], off_blocks: Sequence[Block]
) -> tuple[list[Block], list[Block]]:
    """Return those blocks of both arms whose numbers the other one has too."""
    numbers = {block.number for block in blocks} & {block.number for block in off_blocks}
    return (
        [block for block in blocks if block.number in numbers],
        [block for block in off_blocks if block.number in numbers],
    )


def summarize(
    blocks: Sequence[Block], off_blocks: Sequence[Block], objectives: Objectives, seed: int
) -> Summary:
    """Sum up one arm's blocks at one load, of which ``off_blocks`` has the same numbers.

    Raises:
        KeyError: A block has no counterpart.
    """
    off = {block.number: block for block in off_blocks}
    pairs = [pair_records(block.records, off[block.number].records, objectives) for block in blocks]
    records = [record for block in blocks for record in block.records]
    gaps = [gap for block in blocks for gap in block.gaps_s]
    wall_s = sum(block.work.wall_s for block in blocks)
    evaluated_s = sum(block.work.evaluate_s for block in blocks)
    learned_s = evaluated_s + sum(block.work.train_s for block in blocks)
    left_s = wall_s - sum(off[block.number].work.serve_s for block in blocks)
    num_tokens = sum(block.work.num_training_tokens for block in blocks)
    return Summary(
        arm=blocks[0].arm,
        load=blocks[0].load,
        attainment=measure_attainment(records, objectives),
        ttft=summarize_latency(record.ttft_s for record in records),
        tpot=summarize_latency(record.tpot_s for record in records),
        gap=summarize_latency(gaps),
        over_gap_share=sum(gap > objectives.gap_s for gap in gaps) / max(len(gaps), 1),
        pairs=total_pairs(pairs),
        bootstrap=bootstrap_ratio(pairs, seed) if len(pairs) > 1 else None,
        training_tokens_per_s=num_tokens / wall_s,
        evaluation_share=evaluated_s / learned_s if learned_s else 0.0,
        left_share=learned_s / left_s if left_s > 0.0 else 0.0,
        steps=sum((block.work.steps for block in blocks), Coverage()),
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing that must hold."""

    arm: str
    load: float
    claim: str
    value: float
    limit: float
    is_met: bool

    def row(self) -> dict[str, str]:
        """Return a table row."""
        return {
            "load": f"{self.load:.0%}",
            "arm": self.arm,
            "bar": self.claim,
            "measured": f"{self.value:.4g}",
            "limit": f"{self.limit:.4g}",
            "": "pass" if self.is_met else "FAIL",
        }


def judge(
    summary: Summary,
    off: Summary,
    objectives: Objectives,
    max_quantum_s: float,
    quantile: float,
) -> list[Bar]:
    """Hold an arm with control against the bars; ``off`` has the same load.

    What training off misses itself is no fault of training: times may be as long as its own.
    """

    def at_least(claim: str, value: float, limit: float) -> Bar:
        return Bar(summary.arm, summary.load, claim, value, limit, value >= limit)

    def at_most(claim: str, value: float | None, limit: float) -> Bar:
        known = float("inf") if value is None else value
        return Bar(summary.arm, summary.load, claim, known, limit, known <= limit)

    tpot_s, off_tpot_s = summary.tpot.p99_s, off.tpot.p99_s or 0.0
    bars = [
        at_least("attainment on / off", summary.pairs.ratio or 0.0, _MIN_RATIO),
        at_least("its lower 95 % bound", summary.ratio_bound, _MIN_RATIO_BOUND),
        at_least("share of what serving left", summary.left_share, _MIN_LEFT_SHARE),
        at_least(
            "steps under their bound", summary.steps.share or 0.0, quantile - _COVERED_TOLERANCE
        ),
    ]
    if summary.arm == LATENCY:
        bars.append(
            at_most("p99 TPOT in s, off's + one quantum", tpot_s, off_tpot_s + max_quantum_s)
        )
    else:
        longest_s = max(objectives.gap_s, off.gap.max_s or 0.0)
        bars += [
            at_most("p99 TPOT in s", tpot_s, max(objectives.tpot_s, off_tpot_s)),
            at_most("longest gap in s", summary.gap.max_s, longest_s),
        ]
    return bars


def latency_row(summary: Summary) -> dict[str, str]:
    """Return a table row of what users notice."""
    attainment = summary.attainment
    low, high = attainment.interval
    return {
        "load": f"{summary.load:.0%}",
        "arm": summary.arm,
        "requests": str(attainment.num_counted),
        "attainment (95 %)": f"{attainment.share or 0.0:.3f} ({low:.3f}–{high:.3f})",
        "TTFT ms p50 / p95 / p99": _times(summary.ttft),
        "TPOT ms p50 / p95 / p99": _times(summary.tpot),
        "gap ms p99 / longest": f"{_ms(summary.gap.p99_s)} / {_ms(summary.gap.max_s)}",
        "gaps over max_itl": f"{summary.over_gap_share:.3%}",
    }


def training_row(summary: Summary) -> dict[str, str]:
    """Return a table row of what training cost and got."""
    low, high = summary.pairs.interval
    drawn = summary.bootstrap
    return {
        "load": f"{summary.load:.0%}",
        "arm": summary.arm,
        "attainment on / off": f"{summary.pairs.ratio or 0.0:.4f}",
        "Bonett–Price 95 %": f"{low:.4f}–{high:.4f}",
        "bootstrap of blocks 95 %": "–" if drawn is None else f"{drawn[0]:.4f}–{drawn[1]:.4f}",
        "only on / only off": f"{summary.pairs.num_only_new} / {summary.pairs.num_only_old}",
        "training tokens/s": f"{summary.training_tokens_per_s:.0f}",
        "of it evaluation": f"{summary.evaluation_share:.0%}",
        "share of what serving left": f"{summary.left_share:.3f}",
    }


def calibration_rows(blocks: Iterable[Block]) -> list[dict[str, str]]:
    """Return, by arm, the shares of steps and of each kind of quantum under their bound."""
    found: dict[tuple[str, str], Coverage] = {}
    for block in blocks:
        for kind, coverage in {"step": block.work.steps, **block.work.quanta}.items():
            found[block.arm, kind] = found.get((block.arm, kind), Coverage()) + coverage
    arms = sorted({arm for arm, _ in found})
    kinds = sorted({kind for _, kind in found}, key=lambda kind: (kind != "step", kind))
    rows = []
    for kind in kinds:
        cells = {arm: found.get((arm, kind), Coverage()) for arm in arms}
        rows.append({"what": kind} | {arm: _covered(one) for arm, one in cells.items()})
    return rows


def raw_block(block: Block) -> dict[str, Any]:
    """Return a block ready for JSON: a row of times per request, percentiles of the gaps."""
    work = block.work
    return {
        "arm": block.arm,
        "load": block.load,
        "block": block.number,
        "requests": [
            [one.outcome, one.num_output_tokens, one.ttft_s, one.tpot_s, one.max_gap_s]
            for one in block.records
        ],
        "gap_p99_s": percentile(block.gaps_s, 0.99),
        "wall_s": work.wall_s,
        "serve_s": work.serve_s,
        "train_s": work.train_s,
        "evaluate_s": work.evaluate_s,
        "training_tokens": work.num_training_tokens,
        "steps": [work.steps.num_covered, work.steps.num_observed],
        "quanta": {kind: [one.num_covered, one.num_observed] for kind, one in work.quanta.items()},
    }


def _covered(coverage: Coverage) -> str:
    share = coverage.share
    return "–" if share is None else f"{share:.1%} of {coverage.num_observed}"


def _times(summary: LatencySummary) -> str:
    return " / ".join(map(_ms, (summary.p50_s, summary.p95_s, summary.p99_s)))


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.0f}"
