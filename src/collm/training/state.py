"""What learning changes: an adapter's shadow and its optimizer, a quantum at a time."""

import math
from collections.abc import Generator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from collm.errors import ConfigError
from collm.lora.algebra import Combination, combine, rebase_terms
from collm.lora.layout import LoraLayout
from collm.lora.shadow import Shadow
from collm.lora.state import AdapterState
from collm.ops.threads import one_thread
from collm.pacing.quanta import Quantum, QuantumKind, cut, optimizer_quanta
from collm.training.config import JobConfig
from collm.training.optimizer import FlatAdamW, clip_factor, learning_rate_share

_OPTIMIZER_PARAMETERS = 1_000_000
"""About what one optimizer quantum updates."""
_SNAPSHOT_PARAMETERS = 10_000_000
"""Most that one snapshot quantum copies, each with its two moments: 120 MB. The default model's
adapters are copied in one, so that of all pauses a checkpoint lengthens a single one."""
_REWARM_STEPS = 3
"""Steps in which moments that start anew on a trained shadow warm up, if not fewer suffice at its
start: rounds are short, and the shadow is where it should be."""


class TrainingState:
    """A shadow, its AdamW moments, and how many steps they have behind them.

    Args:
        config: Rank, alpha, and how to step.
        start: The version to train from, of any rank.
        dtype: What serving computes in.
        device: Where.
    """

    def __init__(
        self, config: JobConfig, start: AdapterState, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config = config
        self.layout = replace(start.layout, rank=config.rank)
        self.shadow = Shadow(_fitted(start, self.layout), config.alpha, dtype, device)
        self.optimizer = FlatAdamW(self.layout.num_parameters, config.weight_decay, device)
        self.num_steps = 0

    @property
    def is_finite(self) -> bool:
        """Whether all parameters are numbers that float32 can add up."""
        with one_thread():
            return bool(self.shadow.parameters.sum().isfinite())

    def restart(self, state: AdapterState) -> None:
        """Go on from ``state``, of any rank, with fresh moments; steps go on counting."""
        self.shadow.reset(_fitted(state, self.layout))
        self.optimizer.reset()

    def step(self, divisor: float) -> Generator[Quantum, None, float]:
        """Apply the shadow's gradient divided by ``divisor``; leave the gradient to be cleared.

        Returns:
            The gradient's norm before it was clipped. If that is not finite, the step was counted
            and nothing else was done.
        """
        config, shadow = self._config, self.shadow
        layer_size = self.layout.num_parameters // self.layout.num_layers
        factor, norm, rate, first = 0.0, 0.0, 0.0, 0
        for quantum in optimizer_quanta(
            self.layout.num_layers, layer_size, _OPTIMIZER_PARAMETERS, config.adapter
        ):
            yield quantum
            if first == 0:
                factor, norm = clip_factor(shadow.gradient, divisor, config.max_grad_norm)
                if not math.isfinite(norm):
                    break
                rate = config.learning_rate * self._learning_rate_share()
                self.optimizer.begin_step()
            last = first + quantum.size // layer_size
            piece = slice(first * layer_size, last * layer_size)
            shadow.gradient[piece].mul_(factor)
            self.optimizer.update_(shadow.parameters, shadow.gradient, piece, rate)
            shadow.refresh(range(first, last))
            first = last
        self.num_steps += 1
        return norm

    def carry_over(
        self, old: AdapterState | None, new: AdapterState
    ) -> Generator[Quantum, None, None]:
        """Go on from ``new`` plus what was learned since ``old``, linear by linear.

        The factors change their basis, so the optimizer's moments start anew.
        """
        combination = Combination(rebase_terms(self.shadow.state(), old, new), self.layout)
        for index, size in enumerate(combination.sizes):
            yield Quantum(QuantumKind.REBASE, size, index, self._config.adapter)
            combination.add_linear(index)
        self.restart(combination.state())

    def shift(self, old: AdapterState, new: AdapterState) -> None:
        """Go on from ``new`` plus what was learned since ``old``, factor by factor.

        The basis stays, and with it the optimizer's moments. All three have this layout.
        """
        gained = self.shadow.state().flat.sub_(old.flat)
        self.shadow.reset(AdapterState(self.layout, gained.add_(new.flat)))

    def copy(self) -> Generator[Quantum, None, tuple[dict[str, Tensor], dict[str, str]]]:
        """Copy everything for a checkpoint; no step may come between its quanta.

        Returns:
            Tensors, and the numbers that belong to them.
        """
        sources = {
            "parameters": self.shadow.parameters,
            "mean": self.optimizer.mean,
            "square": self.optimizer.square,
        }
        tensors = {name: torch.empty_like(one, device="cpu") for name, one in sources.items()}
        first = 0
        for index, count in enumerate(cut(self.layout.num_parameters, _SNAPSHOT_PARAMETERS)):
            yield Quantum(QuantumKind.SNAPSHOT, count, index, self._config.adapter)
            piece = slice(first, first + count)
            with one_thread():
                for name, source in sources.items():
                    tensors[name][piece].copy_(source[piece])
            first += count
        meta = {
            "num_steps": str(self.num_steps),
            "optimizer_steps": str(self.optimizer.num_steps),
            **self._shape(),
        }
        return tensors, meta

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> None:
        """Take over what ``copy`` returned.

        Raises:
            ConfigError: It was copied with another rank or alpha.
        """
        for name, value in self._shape().items():
            if meta[name] != value:
                raise ConfigError(
                    f"jobs.{name} of {self._config.adapter!r} is {value}, but its checkpoint was"
                    f" written with {meta[name]}; restore that or delete the checkpoint"
                )
        self.shadow.load_parameters(tensors["parameters"])
        self.optimizer.mean.copy_(tensors["mean"])
        self.optimizer.square.copy_(tensors["square"])
        self.optimizer.num_steps = int(meta["optimizer_steps"])
        self.num_steps = int(meta["num_steps"])

    def _shape(self) -> dict[str, str]:
        """Return what the copied numbers depend on."""
        return {"rank": str(self._config.rank), "alpha": str(float(self._config.alpha))}

    def _learning_rate_share(self) -> float:
        config = self._config
        share = learning_rate_share(
            self.num_steps,
            config.warmup_steps,
            config.schedule,
            config.total_steps,
            config.hold_steps,
        )
        # Fresh moments warm up too, wherever the schedule is by then.
        warmup_steps = min(config.warmup_steps, _REWARM_STEPS)
        warm = learning_rate_share(
            self.optimizer.num_steps, warmup_steps, "constant", config.total_steps
        )
        return min(share, warm)


def _fitted(state: AdapterState, layout: LoraLayout) -> AdapterState:
    """Return ``state`` in ``layout``: as it is, or truncated or extended to the layout's rank."""
    return state if state.layout == layout else combine([(1.0, state)], layout)
