"""The chance that a replica meets its objectives, and the time that serving leaves, at some load.

A replica's step computes a token of each of its sequences and costs ``c + k n`` for n of them, so
a request of O output and P prompt tokens that shares it with n - 1 others takes ``O c + n w`` in
all, where ``w = O k + p P`` is the work it adds. That is a processor shared by state-dependent
speed, whose stationary distribution is the product form ``p(n) ∝ Π_{i≤n} λ (O c + i w) / i``
whatever the lengths' distribution (J. W. Cohen, The multiple phase service network with generalized
processor sharing, Acta Informatica 12, 1979). With ``ρ = λ w`` and ``a = O c / w`` it is negative
binomial: n has mean ``(1 + a) ρ / (1 - ρ)``, which solves n = λ · (time in the system) with step
times that depend on n, and variance mean / (1 - ρ). Arrivals burstier than Poisson widen it by
``z = (1 + c_a²) / 2``, the peakedness of renewal input (A. Eckberg, Generalized peakedness of
teletraffic processes, ITC 1983). By PASTA that is also what an arrival finds.

Given n, the mean time per token is the step's; the first token waits for the prompts before it
(mean by Kingman's formula, the tail exponential), the step under way and its own chunks. Training's
credit u stretches every step by ``1 / (1 - u)``. True over computed times spread log-normally. In a
window of finite length a crowd grows no further than a random walk of its drift does.
"""

import math
from dataclasses import dataclass, field, fields
from math import erfc, log

from collm.pacing.config import DEFAULT_MAX_PREFILL_TOKENS, DEFAULT_MIN_PREFILL_TOKENS
from collm.types import StepCoefficients

# How a replica fills a step unless told otherwise: a snapshot does not say.
_MIN_CHUNK = float(DEFAULT_MIN_PREFILL_TOKENS)
_MAX_CHUNK = float(DEFAULT_MAX_PREFILL_TOKENS)
_MAX_CREDIT = 0.95
# Standard deviations of the logarithm of true over computed times, per token and of the first one,
# most of whose time is that of its own prompt: lengths in chat traces have a deviation of 0.7.
_TPOT_SPREAD = 0.25
_TTFT_SPREAD = 0.75
_TPOT_SCALE = 1.0 / (math.sqrt(2.0) * _TPOT_SPREAD)
_TTFT_SCALE = 1.0 / (math.sqrt(2.0) * _TTFT_SPREAD)
# Gauss-Hermite for a standard normal, and Gauss-Laguerre for an exponential: (node, weight).
_NORMAL = (
    (-2.8569700, 0.0112574),
    (-1.3556262, 0.2220759),
    (0.0, 0.5333334),
    (1.3556262, 0.2220759),
    (2.8569700, 0.0112574),
)
_EXPONENTIAL = ((0.4157746, 0.7110930), (2.2942804, 0.2785177), (6.2899451, 0.0103893))

_NONE = 1e-12
"""A chance below this is not worth working out further."""

_MANY = 0.1
"""Foretold misses from which on it is load that is told of, not the tails of times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMix:
    """What requests are like, on average."""

    prefill_tokens: float
    """Prompt tokens to compute: those found in the prefix cache are not."""
    context_tokens: float
    """Prompt tokens and half of the answer: what attention reads per step."""
    output_tokens: float
    burstiness: float = 1.0
    """c_a²: squared coefficient of variation of the times between arrivals."""
    num_adapters: float = 1.0
    """Different adapter versions in a step."""

    def towards(self, other: "RequestMix", share: float) -> "RequestMix":
        """Return the mix of this and another, of which there is such a share."""
        values = {
            one.name: (1.0 - share) * getattr(self, one.name) + share * getattr(other, one.name)
            for one in fields(self)
        }
        return RequestMix(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How a replica differs from the formula, by what was observed."""

    load_factor: float = 1.0
    """It behaves as under this many times the load."""
    lapse: float = 0.0
    """Share of requests that miss whatever the load."""
    miss_factor: float = 1.0
    """Of the misses that the formula foretells where there are few, the share that come true: its
    tails are those of any replica. Where many are foretold, the formula stands."""
    felt_share: float = 1.0
    """Of the credit, what requests feel: much of it is spent on time that slack would have left."""
    busy_factor: float = 1.0
    """Serving takes this many times the computed share: less than 1 where training gets in between
    steps, which then carry more tokens each."""

    def corrected(self, chance: float) -> float:
        """Return what a chance by the formula really is; it keeps their order, 0 and all."""
        missed = 1.0 - chance
        if missed < _MANY:
            missed *= self.miss_factor + (1.0 - self.miss_factor) * missed / _MANY
        return (1.0 - self.lapse) * (1.0 - missed)


@dataclass(frozen=True, slots=True)
class _Crowd:
    """How many others an arrival finds: a gamma distribution's mean and shape."""

    mean: float
    shape: float

    def quantile(self, z: float) -> float:
        """Return the number at a standard normal's ``z`` (Wilson and Hilferty, PNAS 1931)."""
        root = 1.0 - 1.0 / (9.0 * self.shape) + z / (3.0 * math.sqrt(self.shape))
        return float(self.mean * max(root, 0.0) ** 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttainmentModel:
    """P(load, credit) of one replica, and what it leaves free; decreasing in each argument."""

    cost: StepCoefficients
    ttft_s: float
    tpot_s: float
    mix: RequestMix
    calibration: Calibration = Calibration()
    horizon_s: float = math.inf
    """Length of the windows that it speaks of, in which a crowd can grow only so far."""
    num_present: float = 0.0
    """Sequences that are there when such a window begins."""
    _fixed_s: float = field(init=False, repr=False, compare=False)
    """c: seconds of a step that do not depend on its sequences."""
    _token_s: float = field(init=False, repr=False, compare=False)
    """k: seconds that a sequence adds to a step."""
    _work_s: float = field(init=False, repr=False, compare=False)
    """w: seconds that a request adds in all."""
    _share_s: float = field(init=False, repr=False, compare=False)
    """Seconds of prefill that go with each token of another."""
    _prompt_s: float = field(init=False, repr=False, compare=False)
    """Seconds that a prompt adds to steps."""
    _peakedness: float = field(init=False, repr=False, compare=False)
    """z: by how much arrivals are burstier than Poisson."""

    def __post_init__(self) -> None:
        """Work out what every probability needs."""
        cost, mix = self.cost, self.mix
        token_s = cost.decode_s + cost.context_s * mix.context_tokens
        work_s = mix.output_tokens * token_s + cost.prefill_s * mix.prefill_tokens
        object.__setattr__(self, "_fixed_s", cost.constant_s + cost.adapter_s * mix.num_adapters)
        object.__setattr__(self, "_token_s", token_s)
        object.__setattr__(self, "_work_s", max(work_s, 1e-9))
        prompt_s = cost.prefill_s * mix.prefill_tokens
        object.__setattr__(self, "_prompt_s", prompt_s)
        object.__setattr__(self, "_share_s", prompt_s / mix.output_tokens)
        object.__setattr__(self, "_peakedness", max(1.0, (1.0 + mix.burstiness) / 2.0))

    def probability(self, arrivals_per_s: float, credit_share: float) -> float:
        """Return the share of requests that meet every objective, in [0, 1].

        Args:
            arrivals_per_s: Requests per second.
            credit_share: Share of wall time that training has for sure.
        """
        felt_credit = self.calibration.felt_share * credit_share
        stretch = 1.0 / (1.0 - min(felt_credit, _MAX_CREDIT))
        load = arrivals_per_s * self.calibration.load_factor
        crowd = self._crowd(load, stretch)
        if crowd is None:
            return 0.0
        if crowd.mean == 0.0:
            chance = self._chance(0.0, 0.0, stretch)
        else:
            chance = 0.0
            for z, weight in _NORMAL:  # from few others to many: behind a chance of 0 all are 0
                one = self._chance(crowd.quantile(z), load, stretch)
                if one <= 0.0:
                    break
                chance += weight * one
        return self.calibration.corrected(min(1.0, chance))

    def free_share(self, arrivals_per_s: float) -> float:
        """Return the share of wall time that serving leaves without any credit, in [0, 1]."""
        crowd = self._crowd(arrivals_per_s, 1.0)
        if crowd is None:
            return 0.0
        if crowd.mean == 0.0:
            return 1.0
        # The negative binomial's p(0) = q^(r), where q = mean / variance and r = mean q / (1 - q).
        excess = crowd.mean / crowd.shape - 1.0
        rate = math.log1p(excess) / excess if excess > 1e-9 else 1.0
        busy = -math.expm1(-crowd.mean * rate)
        return max(0.0, 1.0 - self.calibration.busy_factor * busy)

    def _crowd(self, load: float, stretch: float) -> _Crowd | None:
        """Return who is there at a load; ``None`` if ever more, as the load is too high."""
        work_s, fixed_s = self._work_s, self._fixed_s
        busy = load * stretch * work_s
        if busy <= 0.0:
            return _Crowd(0.0, 0.0)
        rooms = 1.0 + self.mix.output_tokens * fixed_s / work_s
        # Each bounds the mean: what it settles at, and how far it grows within the horizon.
        inverse = max(0.0, 1.0 - busy) / (rooms * busy) + 1.0 / self._growth(load, busy)
        if inverse <= 0.0:
            return None
        return _Crowd(1.0 / inverse, rooms * min(busy, 1.0) / self._peakedness)

    def _growth(self, load: float, busy: float) -> float:
        """Return the mean crowd over the horizon where it drifts and spreads as a random walk."""
        if self.horizon_s == math.inf:
            return math.inf
        drift = load * max(0.0, 1.0 - 1.0 / busy) * self.horizon_s / 2.0
        return self.num_present + math.sqrt(load * self.horizon_s) + drift

    def _chance(self, others: float, load: float, stretch: float) -> float:
        """Return the chance to meet both objectives beside ``others``."""
        decode_s = self._fixed_s + self._token_s * others
        tpot_s = stretch * (decode_s + self._token_s + self._share_s * others)
        chance = 1.0
        if self.mix.output_tokens > 1.0:
            chance = _within(tpot_s / self.tpot_s, _TPOT_SCALE)
            if chance < _NONE:
                return 0.0
        prefill_s = self._prefill_s(others, decode_s, stretch)
        queue = load * prefill_s
        if queue >= 1.0:
            return 0.0
        beside = others if others < 1.0 else 1.0
        ttft_s = self.ttft_s
        base = (prefill_s + beside * tpot_s / 2.0) / ttft_s
        wait = prefill_s * self._peakedness / (1.0 - queue) / ttft_s
        late = 0.0
        for node, weight in _EXPONENTIAL:
            late += weight * _within(base + node * wait, _TTFT_SCALE)
        return chance * ((1.0 - queue) * _within(base, _TTFT_SCALE) + queue * late)

    def _prefill_s(self, others: float, decode_s: float, stretch: float) -> float:
        """Return the time of the steps that carry a prompt, in chunks that TPOT leaves room for."""
        chunk, prompt_s = _MAX_CHUNK, self._prompt_s
        if others > 0.0 and prompt_s > 0.0:
            room = (self.tpot_s / stretch - decode_s) / self.cost.prefill_s
            fitting = min(max(room, _MIN_CHUNK), _MAX_CHUNK)
            chunk += (others if others < 1.0 else 1.0) * (fitting - _MAX_CHUNK)
        return stretch * (max(1.0, self.mix.prefill_tokens / chunk) * decode_s + prompt_s)


def _within(share: float, scale: float) -> float:
    """Return the chance that a time computed as this share of its limit stays within it.

    Args:
        share: Computed time over the limit.
        scale: 1 / (√2 · the spread of true over computed times).
    """
    if share <= 0.0:
        return 1.0
    return 0.5 * erfc(log(share) * scale)
