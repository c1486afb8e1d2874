"""How long a step and a quantum take, learned online."""

from collections.abc import Mapping
from types import MappingProxyType

from collm.pacing.online import Calibration, Observed, OnlineCost
from collm.pacing.quanta import Quantum, QuantumKind
from collm.types import StepLoad

DEFAULT_QUANTILE = 0.95

# Seconds per step, decode token, prefill token, context token and adapter, a little slower than
# SmolLM2-135M in bf16 on two CPU cores. The first few steps replace them.
STEP_PRIOR = (25e-3, 2e-3, 1.5e-3, 1e-6, 2e-3)

# Seconds per quantum and per unit of its size, for the same machine and model.
QUANTUM_PRIORS: Mapping[QuantumKind, tuple[float, float]] = MappingProxyType(
    {
        QuantumKind.PREPARE: (2e-3, 5e-6),
        QuantumKind.FORWARD: (1e-3, 20e-6),
        QuantumKind.LOSS: (1e-3, 800e-6),
        QuantumKind.BACKWARD: (2e-3, 40e-6),
        QuantumKind.OPTIMIZER: (1e-3, 20e-9),
        QuantumKind.EVALUATE_FORWARD: (1e-3, 20e-6),
        QuantumKind.EVALUATE_LOSS: (1e-3, 400e-6),
        QuantumKind.STAGE: (1e-3, 5e-9),
        QuantumKind.REBASE: (1e-3, 200e-9),
        QuantumKind.SNAPSHOT: (1e-3, 5e-9),
    }
)

_MAX_EXTRAPOLATION = 4
"""Sizes are trusted up to this many times the largest one measured."""


class StepCostModel:
    """Time of a step as a non-negative linear function of its ``StepLoad``.

    One quantile bounds all steps, whatever their mix of prefill and decode. See ``OnlineCost`` for
    how it learns.
    """

    def __init__(
        self,
        prior: tuple[float, float, float, float, float] = STEP_PRIOR,
        quantile: float = DEFAULT_QUANTILE,
    ) -> None:
        self._cost = OnlineCost(prior, quantile)

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Seconds per step, decode token, prefill token, context token and adapter."""
        return self._cost.coefficients

    @property
    def ratios(self) -> tuple[float, ...]:
        """The latest ratios of a step's time to the time predicted beforehand."""
        return self._cost.ratios

    @property
    def observed(self) -> Observed:
        """All steps so far, added up: their features in the order of ``coefficients``, seconds."""
        return self._cost.observed

    @property
    def calibration(self) -> Calibration:
        """How often the bounds held so far."""
        return self._cost.calibration

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a step that took ``seconds``."""
        self._cost.observe(_features(load), seconds)

    def predict_s(self, load: StepLoad) -> float:
        """Return the expected time of a step."""
        return self._cost.predict_s(_features(load))

    def upper_s(self, load: StepLoad) -> float:
        """Return the time that a step exceeds only beyond the upper quantile."""
        return self._cost.upper_s(_features(load))

    def prefill_share(self, load: StepLoad) -> float:
        """Return the share of a step's time that its prefill tokens are the reason for.

        What a step costs whatever is in it, such as reading the weights, is divided in proportion
        to the tokens' own costs.
        """
        _, decode_s, prefill_s, _, _ = self._cost.coefficients
        decode = decode_s * load.num_decode_tokens
        prefill = prefill_s * load.num_prefill_tokens
        if decode + prefill <= 0.0:  # the fit sees no cost in either
            decode, prefill = load.num_decode_tokens, load.num_prefill_tokens
        return prefill / (decode + prefill) if decode + prefill > 0.0 else 0.0


class QuantumCostModel:
    """Time of a quantum, per kind ``a + b · size`` with neither negative.

    Args:
        priors: (a, b) of each kind until it has been measured a few times; b above zero.
        quantile: Share of quanta that the upper bound should cover.

    Raises:
        ValueError: A prior's ``b`` is not positive, so that any size would seem to fit.
    """

    def __init__(
        self,
        priors: Mapping[QuantumKind, tuple[float, float]] = QUANTUM_PRIORS,
        quantile: float = DEFAULT_QUANTILE,
    ) -> None:
        for kind, (_, per_unit_s) in priors.items():
            if per_unit_s <= 0.0:
                raise ValueError(f"prior of {kind}: {per_unit_s} s per unit, must be above 0")
        self._costs = {kind: OnlineCost(priors[kind], quantile) for kind in QuantumKind}
        self._largest = dict.fromkeys(QuantumKind, 0)

    def coefficients(self, kind: QuantumKind) -> tuple[float, ...]:
        """Seconds per quantum of this kind and per unit of its size."""
        return self._costs[kind].coefficients

    def ratios(self, kind: QuantumKind) -> tuple[float, ...]:
        """The latest ratios of a quantum's time to the time predicted beforehand."""
        return self._costs[kind].ratios

    def observed(self, kind: QuantumKind) -> Observed:
        """All quanta of this kind so far, added up: how many, their sizes, their seconds."""
        return self._costs[kind].observed

    def calibration(self, kind: QuantumKind) -> Calibration:
        """How often the bounds of this kind held so far."""
        return self._costs[kind].calibration

    def observe(self, quantum: Quantum, seconds: float) -> None:
        """Learn from a quantum that took ``seconds``."""
        self._largest[quantum.kind] = max(self._largest[quantum.kind], quantum.size)
        self._costs[quantum.kind].observe((1.0, quantum.size), seconds)

    def predict_s(self, quantum: Quantum) -> float:
        """Return the expected time of a quantum."""
        return self._costs[quantum.kind].predict_s((1.0, quantum.size))

    def upper_s(self, quantum: Quantum) -> float:
        """Return the time that a quantum exceeds only beyond the upper quantile."""
        return self._costs[quantum.kind].upper_s((1.0, quantum.size))

    def max_size(self, kind: QuantumKind, limit_s: float) -> int:
        """Return the largest size whose upper bound stays within ``limit_s``; 0 if none does.

        Once there are measurements, the answer is at most four times the largest size measured:
        a slope fitted on small quanta says little about far larger ones.
        """
        cost = self._costs[kind]
        fixed_s, per_unit_s = cost.coefficients
        room_s = cost.predicted_within_s(limit_s) - fixed_s
        if room_s < 0.0:
            return 0
        farthest = _MAX_EXTRAPOLATION * self._largest[kind]
        if not farthest:
            return int(room_s / per_unit_s)
        return farthest if room_s >= per_unit_s * farthest else int(room_s / per_unit_s)


def _features(load: StepLoad) -> tuple[float, ...]:
    return (
        1.0,
        load.num_decode_tokens,
        load.num_prefill_tokens,
        load.num_context_tokens,
        load.num_adapters,
    )
