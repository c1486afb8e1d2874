"""One candidate against what is served, sample by sample, until it is decided."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from collm.gate.config import GENERAL, GateConfig
from collm.gate.evidence import Evidence, gain
from collm.gate.exact_match import ExactMatch
from collm.gate.loss_sum import LossSum

_ONE_SIDED_95 = 1.6449
"""95 % quantile of the standard normal distribution."""


class Verdict(StrEnum):
    """What a trial found."""

    BETTER = "better"
    """Proven better, and no slice is worse past its bound: promote."""
    WORSE = "worse"
    """Proven worse on average, or past its bound in every slice."""
    NOT_SHOWN = "not_shown"
    """The samples ran out before anything was proven."""
    SLICE_WORSE = "slice_worse"
    """At least one slice is worse past its bound."""
    NOT_FINITE = "not_finite"
    """The candidate's loss is NaN or infinite on some sample."""
    OVERTAKEN = "overtaken"
    """It was not on course to be proven better, and gave way to a newer candidate."""


def is_proven(numbers: Mapping[str, Any]) -> bool:
    """Return whether a decision rests on its version having been found better, by its numbers."""
    return bool(numbers.get("verdict") == Verdict.BETTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedLoss:
    """Both sides' loss on one held-out sample."""

    sample_id: str
    slice: str
    active: float
    """Mean nats per supervised token under the served version."""
    candidate: float
    """The same under the candidate."""
    active_is_exact: bool | None = None
    """Whether the served version gives a short answer exactly; ``None`` for a long one."""
    candidate_is_exact: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLoss:
    """Loss differences, candidate − active, over one slice's samples with two finite losses."""

    bound: float
    """Most that the mean may be, in nats per token, whatever the active version's loss."""
    share: float = 0.0
    """Share of the active version's mean loss on the slice that is added to the bound."""
    n: int = 0
    sum_d: float = 0.0
    sum_d2: float = 0.0
    sum_active: float = 0.0
    """Sum of the active version's losses."""

    @property
    def limit(self) -> float:
        """Most that the mean may be here: a loss of 3 nats wavers by more than one of 0.3."""
        return self.bound + (self.share * self.sum_active / self.n if self.n else 0.0)

    @property
    def increase(self) -> float:
        """Mean difference in nats per token; 0 without samples."""
        return self.sum_d / self.n if self.n else 0.0

    @property
    def is_above(self) -> bool:
        """Whether the mean difference is above the bound."""
        return self.increase > self.limit

    @property
    def is_surely_above(self) -> bool:
        """Whether it is above at 95 % one-sided confidence, by the normal approximation."""
        if self.n < 2:
            return False
        variance = max(0.0, self.sum_d2 - self.n * self.increase**2) / (self.n - 1)
        return self.increase - _ONE_SIDED_95 * math.sqrt(variance / self.n) > self.limit

    def plus(self, d: float, active: float = 0.0) -> "SliceLoss":
        """Return the sums with one more difference, and the active version's loss beside it."""
        return replace(
            self,
            n=self.n + 1,
            sum_d=self.sum_d + d,
            sum_d2=self.sum_d2 + d * d,
            sum_active=self.sum_active + active,
        )

    def numbers(self) -> dict[str, Any]:
        """Return what the decisions table records."""
        return {"bound": self.limit, "n": self.n, "sum_d": self.sum_d, "sum_d2": self.sum_d2}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport:
    """A trial in numbers; losses and evidence leave general text out."""

    verdict: Verdict
    num_samples: int
    """Samples compared, general text included."""
    active_loss: float
    """Mean nats per token over samples with two finite losses; NaN without any."""
    active_error: float
    """Standard error of ``active_loss``; NaN without any."""
    candidate_loss: float
    candidate_error: float
    evidence: float
    """E-value for better: the inverse of the error at which it would just be proven."""
    evidence_worse: float
    """E-value for worse."""
    slices: Mapping[str, SliceLoss]
    active_exact: ExactMatch = ExactMatch()
    """Shown to people; decides nothing."""
    candidate_exact: ExactMatch = ExactMatch()

    def numbers(self) -> dict[str, Any]:
        """Return what the decisions table records: plain values, ``None`` for a missing mean."""
        return {
            "verdict": self.verdict.value,
            "num_samples": self.num_samples,
            "active_loss": _known(self.active_loss),
            "active_error": _known(self.active_error),
            "candidate_loss": _known(self.candidate_loss),
            "candidate_error": _known(self.candidate_error),
            "evidence": self.evidence,
            "evidence_worse": self.evidence_worse,
            **self._exact_numbers(),
            "slices": {name: sums.numbers() for name, sums in self.slices.items()},
        }

    def _exact_numbers(self) -> dict[str, Any]:
        if not self.candidate_exact.num_answers:
            return {}
        return {
            "active_exact_match": self.active_exact.share,
            "candidate_exact_match": self.candidate_exact.share,
            "num_short_answers": self.candidate_exact.num_answers,
        }


class Trial:
    """Collects paired losses and says when they suffice.

    General text has a say through its bound alone: most candidates leave it as it is or make it a
    little worse, which would hide what they gained.

    Args:
        config: What is asked of a candidate.
        slice_sizes: Held-out samples that each slice has in all; a slice with fewer than
            ``min_slice_samples`` is then not waited for in vain, nor are ``min_samples`` where
            there are fewer. Unknown slices count as large.
    """

    def __init__(self, config: GateConfig, slice_sizes: Mapping[str, int] | None = None) -> None:
        self._config = config
        self._sizes = slice_sizes or {}
        first_look = _first_look(config, self._sizes)
        self._better = Evidence(first_look=first_look)
        self._worse = Evidence(first_look=first_look)
        self._num_seen: Counter[str] = Counter()
        self._slices: dict[str, SliceLoss] = {}
        self._active = LossSum()
        self._candidate = LossSum()
        self._active_exact = ExactMatch()
        self._candidate_exact = ExactMatch()
        self._is_finite = True

    @property
    def num_samples(self) -> int:
        """Samples compared so far, general text included."""
        return self._num_seen.total()

    @property
    def is_proven(self) -> bool:
        """Whether the candidate is better; slices may still be waited for."""
        # Without any finite active loss there is no mean to compare, and anything finite is better.
        # One has as many as the other.
        active, candidate = self._active.mean, self._candidate.mean
        is_lower = active is None or candidate is None or candidate < active
        return is_lower and self._better.proves(self._config.error)

    @property
    def is_on_course(self) -> bool:
        """Whether it is proven, or would be by ``max_samples`` if they went on as those so far."""
        return self._better.may_prove(self._config.error, self._config.max_samples)

    def add(self, pair: PairedLoss) -> None:
        """Count one more held-out sample, which neither side was trained on."""
        self._num_seen[pair.slice] += 1
        sums = self._slices.get(pair.slice) or SliceLoss(
            bound=self._config.bound(pair.slice), share=self._config.share(pair.slice)
        )
        self._slices[pair.slice] = sums
        if not math.isfinite(pair.candidate):
            self._is_finite = False
            return
        if math.isfinite(pair.active):
            self._slices[pair.slice] = sums.plus(pair.candidate - pair.active, pair.active)
        if pair.slice != GENERAL:
            self._add_own(pair)

    def verdict(self, *, is_exhausted: bool) -> Verdict | None:
        """Return what is decided, or ``None`` to ask for more samples.

        Args:
            is_exhausted: No more samples can come; ``max_samples`` count as that by themselves.
        """
        is_exhausted = is_exhausted or self.num_samples >= self._config.max_samples
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        if not self.is_proven:
            return Verdict.NOT_SHOWN if is_exhausted else None
        if any(self._is_above(name) for name in self._slices):
            return Verdict.SLICE_WORSE if is_exhausted else None
        return Verdict.BETTER if is_exhausted or self._has_enough_of_each() else None

    def wants(self, name: str) -> bool:
        """Return whether a sample of this slice can still matter.

        Once the candidate is proven better, only slices that were not seen enough, or stand above
        their bound, are read on. The proof stands whatever they say, so this biases nothing.
        """
        if not self.is_proven or name not in self._slices:
            return True
        return self._is_above(name) or not self._has_enough_of(name)

    def report(self) -> TrialReport:
        """Return the numbers, judged as if no more samples came."""
        verdict = self.verdict(is_exhausted=True)
        assert verdict is not None, "an exhausted trial is decided"
        return TrialReport(
            verdict=verdict,
            num_samples=self.num_samples,
            active_loss=_number(self._active.mean),
            active_error=_number(self._active.error),
            candidate_loss=_number(self._candidate.mean),
            candidate_error=_number(self._candidate.error),
            evidence=self._better.peak,
            evidence_worse=self._worse.peak,
            slices=dict(self._slices),
            active_exact=self._active_exact,
            candidate_exact=self._candidate_exact,
        )

    def _add_own(self, pair: PairedLoss) -> None:
        d = gain(pair.active, pair.candidate)
        self._better.add(d)
        self._worse.add(-d)
        self._active_exact = self._active_exact.plus(pair.active_is_exact)
        self._candidate_exact = self._candidate_exact.plus(pair.candidate_is_exact)
        if math.isfinite(pair.active):
            self._active.add(pair.active)
            self._candidate.add(pair.candidate)

    def _refusal(self) -> Verdict | None:
        """Return why the candidate is refused whatever comes, if it is."""
        if not self._is_finite:
            return Verdict.NOT_FINITE
        surely = {
            name
            for name, sums in self._slices.items()
            if sums.n >= self._config.min_slice_samples and sums.is_surely_above
        }
        own = self._slices.keys() - {GENERAL}
        if self._worse.proves(self._config.error) or (own and own <= surely):
            return Verdict.WORSE
        return Verdict.SLICE_WORSE if surely else None

    def _is_above(self, name: str) -> bool:
        """Whether a slice is worse past its bound.

        The mean of a few samples says little: a slice that has fewer than ``min_slice_samples`` in
        all must be above for sure.
        """
        sums, size = self._slices[name], self._sizes.get(name)
        is_small = size is not None and size < self._config.min_slice_samples
        return sums.is_surely_above if is_small else sums.is_above

    def _has_enough_of_each(self) -> bool:
        return all(map(self._has_enough_of, self._num_seen))

    def _has_enough_of(self, name: str) -> bool:
        count = self._num_seen[name]
        return count >= min(self._num_wanted(name), self._sizes.get(name, count + 1))

    def _num_wanted(self, name: str) -> int:
        """Return the samples that a slice needs: half as many while it is far from its bound."""
        wanted, sums = self._config.min_slice_samples, self._slices[name]
        return wanted if sums.increase > sums.limit / 2 else -(-wanted // 2)


def _first_look(config: GateConfig, slice_sizes: Mapping[str, int]) -> int:
    """Return the own samples before which nothing is proven: all of them, if they are so few."""
    num_own = sum(size for name, size in slice_sizes.items() if name != GENERAL)
    return min(config.min_samples, num_own or config.min_samples)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number
