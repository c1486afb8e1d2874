"""How long a simulated device takes: the profile's costs times drawn residuals."""

from collections.abc import Sequence
from typing import Protocol

from collm.pacing.cost import QuantumCostModel, StepCostModel
from collm.pacing.quanta import Quantum
from collm.sim.noise import Residuals
from collm.sim.profile import Profile
from collm.types import StepCoefficients, StepLoad


class Device:
    """Takes its time for steps and quanta.

    Steps and quanta draw from streams of their own: under another policy, which trains more or
    less, the n-th step still has the same luck.

    Args:
        profile: Costs and residuals.
        seed: Names the streams.
    """

    def __init__(self, profile: Profile, seed: str) -> None:
        step = profile.step
        self._constant_s = step.constant_s
        self._decode_s = step.decode_s
        self._prefill_s = step.prefill_s
        self._context_s = step.context_s
        self._adapter_s = step.adapter_s
        self._slowness = 1.0
        self._draw = Residuals(profile.step_ratios, f"{seed}/steps").draw
        self._least = {
            kind: (time.fixed_s * min(time.ratios), time.per_unit_s * min(time.ratios))
            for kind, time in profile.quanta.items()
        }
        self._quanta = {
            kind: (
                time.fixed_s,
                time.per_unit_s,
                Residuals(time.ratios, f"{seed}/{kind.value}").draw,
            )
            for kind, time in profile.quanta.items()
        }
        self.loop_s = profile.loop_s

    def slow_down(self, factor: float) -> None:
        """Take ``factor`` times as long from now on."""
        self._slowness *= factor

    def step_s(self, load: StepLoad) -> float:
        """Return what the next step takes; draws its residual."""
        return (
            self._slowness
            * (
                self._constant_s
                + self._decode_s * load.num_decode_tokens
                + self._prefill_s * load.num_prefill_tokens
                + self._context_s * load.num_context_tokens
                + self._adapter_s * load.num_adapters
            )
            * self._draw()
        )

    def decode_s(self, num_sequences: int, num_context_tokens: int, num_adapters: int) -> float:
        """Return what the next step takes, if it is one of decodes alone; draws its residual."""
        return (
            self._slowness
            * (
                self._constant_s
                + self._decode_s * num_sequences
                + self._context_s * num_context_tokens
                + self._adapter_s * num_adapters
            )
            * self._draw()
        )

    def quantum_s(self, quantum: Quantum) -> float:
        """Return what the next quantum of this kind takes; draws its residual."""
        fixed_s, per_unit_s, draw = self._quanta[quantum.kind]
        return (fixed_s + per_unit_s * quantum.size) * draw() * self._slowness

    def least_s(self, program: Sequence[Quantum]) -> float:
        """Return the time that quanta take at least; draws nothing."""
        total_s = 0.0
        for quantum in program:
            fixed_s, per_unit_s = self._least[quantum.kind]
            total_s += fixed_s + per_unit_s * quantum.size
        return self._slowness * total_s


class StepCosts(Protocol):
    """What pacing believes of step times."""

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Seconds per step, decode token, prefill token, context token and adapter."""
        ...

    def upper_s(self, load: StepLoad) -> float:
        """Return the time that a step hardly ever exceeds."""
        ...

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a step that took ``seconds``."""
        ...


class GivenStepCost:
    """A step cost model that was fitted beforehand, and learns no more.

    Args:
        profile: Costs and residuals.
        quantile: Share of steps that the bound covers.
    """

    def __init__(self, profile: Profile, quantile: float) -> None:
        self.coefficients = step_prior(profile.step)
        """Seconds per step, decode token, prefill token, context token and adapter."""
        self._ratio = quantile_of(profile.step_ratios, quantile)

    def upper_s(self, load: StepLoad) -> float:
        """Return the time that a step exceeds only beyond the quantile."""
        constant_s, decode_s, prefill_s, context_s, adapter_s = self.coefficients
        num_decode, num_prefill, num_context, num_adapters = load
        return (
            constant_s
            + decode_s * num_decode
            + prefill_s * num_prefill
            + context_s * num_context
            + adapter_s * num_adapters
        ) * self._ratio

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn nothing."""


class GivenQuantumCost:
    """Quantum costs that were fitted beforehand, and learn no more; arguments as for steps."""

    def __init__(self, profile: Profile, quantile: float) -> None:
        self._upper = {
            kind: (time.fixed_s * ratio, time.per_unit_s * ratio)
            for kind, time in profile.quanta.items()
            for ratio in (quantile_of(time.ratios, quantile),)
        }

    def upper_s(self, quantum: Quantum) -> float:
        """Return the time that a quantum exceeds only beyond the quantile."""
        fixed_s, per_unit_s = self._upper[quantum.kind]
        return fixed_s + per_unit_s * quantum.size

    def observe(self, quantum: Quantum, seconds: float) -> None:
        """Learn nothing."""


def learning_step_cost(profile: Profile, quantile: float) -> StepCostModel:
    """Return a replica's own step cost model, as it is after a warm-up."""
    return StepCostModel(step_prior(profile.step), quantile)


def learning_quantum_cost(profile: Profile, quantile: float) -> QuantumCostModel:
    """Return a replica's own quantum cost models, as they are after a while of training."""
    priors = {kind: (time.fixed_s, time.per_unit_s) for kind, time in profile.quanta.items()}
    return QuantumCostModel(priors, quantile)


def step_prior(step: StepCoefficients) -> tuple[float, float, float, float, float]:
    """Return coefficients in the order of ``pacing.cost``."""
    return (step.constant_s, step.decode_s, step.prefill_s, step.context_s, step.adapter_s)


_NAMES = ("constant_s", "decode_s", "prefill_s", "context_s", "adapter_s")


def step_names(coefficients: tuple[float, ...]) -> dict[str, float]:
    """Return coefficients in the order of ``pacing.cost`` by the fields of a snapshot."""
    return dict(zip(_NAMES, coefficients, strict=True))


def quantile_of(points: tuple[float, ...], share: float) -> float:
    """Return the value of a quantile function, given at even shares, at ``share``."""
    place = share * (len(points) - 1)
    index = min(int(place), max(len(points) - 2, 0))
    low, high = points[index], points[min(index + 1, len(points) - 1)]
    return low + (place - index) * (high - low)
