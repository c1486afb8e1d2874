"""The figures of a finished demo of one replica."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collm.cli.demo_answers import Accuracy, ExactMatch
from collm.cli.demo_progress import Look, Progress, Swap
from collm.cli.demo_session import End
from collm.metrics.attainment import Attainment, measure_attainment
from collm.metrics.latency import LatencySummary, summarize_latency
from collm.metrics.records import Objectives


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How the requests fared."""

    outcomes: Mapping[str, int]
    num_mixed: int
    """Requests whose tokens came from two versions."""
    attainment: Attainment
    """Of all requests."""
    attainment_by_kind: Mapping[str, Attainment]
    ttft_met: Attainment
    """Requests that completed and met the TTFT objective."""
    tpot_met: Attainment
    """Likewise for TPOT; an answer of one token meets it."""
    ttft: LatencySummary
    tpot: LatencySummary
    longest_scored_gap_s: float | None
    """Longest time between two tokens of a scored answer; the last look has that of all tokens."""
    sent_late_p99_s: float | None
    """How well the client kept its times; it is part of TTFT."""
    output_tokens_per_s: float

    @property
    def is_clean(self) -> bool:
        """Whether no request failed, was turned away, or mixed versions."""
        return not (self.outcomes["failed"] or self.outcomes["rejected"] or self.num_mixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """One run, ready to be written."""

    end: End
    elapsed_s: float
    exact_match: ExactMatch
    """Of the task's ten domains."""
    out_of_scope: ExactMatch
    """Of requests that fit no intent."""
    exact_match_by_domain: Mapping[str, Accuracy]
    """Of the last answers, by domain."""
    serving: Serving
    training_tokens_per_s: float | None
    swaps: Sequence[Swap]
    last_look: Look | None
    """The server's own figures at the end."""


def make_report(
    progress: Progress, objectives: Objectives, elapsed_s: float, end: End
) -> DemoReport:
    """Compute the figures of a run from what was seen of it."""
    exact_match = ExactMatch.of(progress.answers)
    last = progress.answers[len(progress.answers) - exact_match.last.num_answers :]
    domains = sorted({answer.group for answer in progress.answers})
    return DemoReport(
        end=end,
        elapsed_s=elapsed_s,
        exact_match=exact_match,
        out_of_scope=ExactMatch.of(progress.out_of_scope),
        exact_match_by_domain={
            domain: Accuracy.of([answer for answer in last if answer.group == domain])
            for domain in domains
        },
        serving=measure_serving(progress, objectives, elapsed_s),
        training_tokens_per_s=progress.tokens_per_s(),
        swaps=tuple(progress.swaps),
        last_look=progress.latest,
    )


def measure_serving(progress: Progress, objectives: Objectives, elapsed_s: float) -> Serving:
    """Compute how the requests of a run fared."""
    records = progress.records
    kinds = {kind: [r for r in records if r.kind == kind] for kind in ("scored", "length")}
    return Serving(
        outcomes={
            outcome: progress.outcomes[outcome]
            for outcome in ("completed", "rejected", "failed", "aborted")
        },
        num_mixed=progress.num_mixed,
        attainment=measure_attainment(records, objectives),
        attainment_by_kind={
            kind: measure_attainment(chosen, objectives) for kind, chosen in kinds.items()
        },
        ttft_met=measure_attainment(records, _Only(ttft_s=objectives.ttft_s)),
        tpot_met=measure_attainment(records, _Only(tpot_s=objectives.tpot_s)),
        ttft=summarize_latency(record.ttft_s for record in records),
        tpot=summarize_latency(record.tpot_s for record in records),
        longest_scored_gap_s=summarize_latency(r.max_gap_s for r in kinds["scored"]).max_s,
        sent_late_p99_s=summarize_latency(record.sent_late_s for record in records).p99_s,
        output_tokens_per_s=sum(r.num_output_tokens for r in records) / max(elapsed_s, 1e-9),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Only:
    """One objective, the other always met."""

    ttft_s: float = float("inf")
    tpot_s: float = float("inf")
