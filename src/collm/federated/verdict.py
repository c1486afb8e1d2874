"""Is an aggregate better than what is served? Members' sums, pooled; no tensors."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from collm.errors import RoundError
from collm.federated.rounds import GateReport, SliceSums
from collm.gate.config import GENERAL, GateConfig
from collm.gate.trial import SliceLoss, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDecision:
    """What the members' comparisons come to. Differences are candidate − active, nats per token."""

    verdict: Verdict
    increase: float
    """Mean difference over all samples but general text; 0 without samples."""
    standard_error: float | None
    """Of ``increase``; ``None`` below two samples."""
    slices: Mapping[str, SliceLoss]
    """Pooled over members."""
    members: Mapping[str, SliceLoss]
    """Each member's own samples, general text left out."""
    num_not_finite: int
    """Samples, of all members, on which the candidate's loss is not finite."""

    @property
    def is_better(self) -> bool:
        """Whether the candidate shall be promoted."""
        return self.verdict is Verdict.BETTER

    @property
    def num_samples(self) -> int:
        """Samples with two finite losses, general text included."""
        return sum(sums.n for sums in self.slices.values())

    def numbers(self) -> dict[str, Any]:
        """Return what journals and decisions record, as plain JSON values."""
        return {
            "verdict": self.verdict.value,
            "num_samples": self.num_samples,
            "increase": self.increase,
            "standard_error": self.standard_error,
            "slices": {name: _numbers(sums) for name, sums in self.slices.items()},
            "members": {name: _numbers(sums) for name, sums in self.members.items()},
            "num_not_finite": self.num_not_finite,
        }


def judge(reports: Iterable[GateReport], config: GateConfig) -> GateDecision:
    """Pool what the members found and decide whether the candidate is promoted.

    It is when a paired one-sided z-test over all samples says better, and neither a slice over all
    members nor a member over all its slices got worse past its bound: a candidate that helps most
    sites must not ruin one. The bounds are those of ``gate.trial``: a share of the active version's
    loss is added, and where fewer than ``min_slice_samples`` were compared, worse must be sure.
    General text has a say through its bound alone, as there. Members compare a number of samples
    settled beforehand, hence a test for a fixed number.

    Args:
        reports: One per member.
        config: ``error``, ``min_samples``, ``min_slice_samples`` and the bounds are used.

    Raises:
        RoundError: A member reported twice.
    """
    by_member = _by_member(reports)
    slices = _pooled_slices(by_member.values(), config)
    members = {member: _total(_learned(report), config) for member, report in by_member.items()}
    total = _total(members.values(), config)
    num_not_finite = sum(report.num_not_finite for report in by_member.values())
    if num_not_finite:
        verdict = Verdict.NOT_FINITE
    elif any(_is_above(sums, config) for sums in (*slices.values(), *members.values())):
        verdict = Verdict.SLICE_WORSE
    else:
        verdict = _tested(total, config)
    return GateDecision(
        verdict=verdict,
        increase=total.increase,
        standard_error=_standard_error(total),
        slices=slices,
        members=members,
        num_not_finite=num_not_finite,
    )


def _by_member(reports: Iterable[GateReport]) -> dict[str, GateReport]:
    by_member: dict[str, GateReport] = {}
    for report in reports:
        if report.member in by_member:
            raise RoundError(f"{report.member} reported twice", member=report.member)
        by_member[report.member] = report
    return dict(sorted(by_member.items()))


def _pooled_slices(reports: Iterable[GateReport], config: GateConfig) -> dict[str, SliceLoss]:
    found: dict[str, list[SliceSums]] = {}
    for report in reports:
        for name, sums in report.slices.items():
            found.setdefault(name, []).append(sums)
    return {name: _total(found[name], config, name) for name in sorted(found)}


def _learned(report: GateReport) -> list[SliceSums]:
    return [report.slices[name] for name in sorted(report.slices) if name != GENERAL]


def _total(parts: Iterable[SliceSums | SliceLoss], config: GateConfig, name: str = "") -> SliceLoss:
    """Return the sums over some parts, with the bound of a slice, of one's own if not named."""
    parts = list(parts)
    return SliceLoss(
        bound=config.bound(name),
        share=config.share(name),
        n=sum(part.n for part in parts),
        sum_d=math.fsum(part.sum_d for part in parts),
        sum_d2=math.fsum(part.sum_d2 for part in parts),
        sum_active=math.fsum(part.sum_active for part in parts),
    )


def _is_above(sums: SliceLoss, config: GateConfig) -> bool:
    return sums.is_surely_above if sums.n < config.min_slice_samples else sums.is_above


def _tested(total: SliceLoss, config: GateConfig) -> Verdict:
    error = _standard_error(total)
    if total.n < config.min_samples or error is None:
        return Verdict.NOT_SHOWN
    margin = NormalDist().inv_cdf(1.0 - config.error) * error
    if total.increase + margin < 0.0:
        return Verdict.BETTER
    return Verdict.WORSE if total.increase - margin > 0.0 else Verdict.NOT_SHOWN


def _standard_error(total: SliceLoss) -> float | None:
    if total.n < 2:
        return None
    variance = max(0.0, total.sum_d2 - total.n * total.increase**2) / (total.n - 1)
    return math.sqrt(variance / total.n)


def _numbers(sums: SliceLoss) -> dict[str, Any]:
    return {"n": sums.n, "increase": sums.increase, "bound": sums.limit}
