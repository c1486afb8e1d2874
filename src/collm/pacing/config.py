"""What the operator may set about pacing."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from collm.errors import ConfigError

DEFAULT_TTFT_S = 0.8
DEFAULT_TPOT_S = 0.1
DEFAULT_MIN_PREFILL_TOKENS = 16
DEFAULT_MAX_PREFILL_TOKENS = 512
_PLANNED_GAP_SHARE = 0.8
"""Of the longest gap. A step's bound and a quantum's are each exceeded one time in twenty."""

BudgetName = Literal["latency", "objective", "uncontrolled"]


@dataclass(frozen=True, slots=True)
class Objectives:
    """The latency objectives that deadlines are made from, in seconds."""

    ttft_s: float = DEFAULT_TTFT_S
    """First token after arrival, queueing included."""
    tpot_s: float = DEFAULT_TPOT_S
    """Mean time per output token after the first."""
    max_itl_s: float | None = None
    """Longest gap between two tokens; ``None`` is twice ``tpot_s``."""

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            _check_positive(name, getattr(self, name))
        if self.max_itl_s is not None:
            _check_positive("max_itl_s", self.max_itl_s)

    @property
    def gap_s(self) -> float:
        """Longest gap between two tokens, with the default resolved."""
        return 2.0 * self.tpot_s if self.max_itl_s is None else self.max_itl_s

    @property
    def planned_gap_s(self) -> float:
        """Longest gap that is planned for: steps and quanta sometimes exceed their bounds."""
        return _PLANNED_GAP_SHARE * self.gap_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PacingConfig:
    """How serving and training share one replica's time."""

    budget: BudgetName = "latency"
    """``latency`` trains for at most ``max_quantum_ms`` between two steps while anything is served,
    ``objective`` for as long as the objectives leave room; ``uncontrolled``, a whole micro-batch
    between two steps, protects nothing and is there for comparison."""
    ttft_s: float = DEFAULT_TTFT_S
    """Objective for the time from arrival to the first token, in seconds."""
    tpot_s: float = DEFAULT_TPOT_S
    """Objective for the mean time per output token after the first, in seconds."""
    max_itl_s: float | None = None
    """Longest gap between two tokens that training, or another request's prefill, may cause, in
    seconds; unset is twice ``tpot_s``."""
    margin_share: float = 0.1
    """Share of all three objectives kept back for steps longer than expected, and for what follows
    the step loop, such as detokenizing and HTTP."""
    max_quantum_ms: float = 40.0
    """Longest quantum in milliseconds; micro-batches are sized for it, and a sample that takes
    longer by itself is cut by rows, down to 128."""
    quantile: float = 0.95
    """Share of steps and quanta whose time the predicted bounds should cover."""
    credit_share: float = 0.0
    """Share of wall time that training gets even beyond slack; 0 never takes a token's time."""
    credit_burst_s: float = 0.5
    """Most credit that can pile up, in seconds; should exceed a few quanta."""
    min_prefill_tokens: int = DEFAULT_MIN_PREFILL_TOKENS
    """Prefill tokens that a step may always carry, so that new requests get on under full load."""
    max_prefill_tokens: int = DEFAULT_MAX_PREFILL_TOKENS
    """Most prefill tokens in a step; reached when nothing decodes."""

    def __post_init__(self) -> None:
        if self.budget not in get_args(BudgetName):
            raise ConfigError(f"budget: {self.budget!r}, must be one of {get_args(BudgetName)}")
        Objectives(self.ttft_s, self.tpot_s, self.max_itl_s)  # has the checks of these three
        for name in ("max_quantum_ms", "credit_burst_s"):
            _check_positive(name, getattr(self, name))
        for name in ("margin_share", "credit_share"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{name}: {getattr(self, name)}, must be at least 0 and below 1")
        if not 0.5 <= self.quantile <= 0.99:
            raise ConfigError(f"quantile: {self.quantile}, must be from 0.5 to 0.99")
        if not 1 <= self.min_prefill_tokens <= self.max_prefill_tokens:
            raise ConfigError(
                f"min_prefill_tokens: {self.min_prefill_tokens}, must be from 1 to "
                f"max_prefill_tokens ({self.max_prefill_tokens})"
            )

    @property
    def objectives(self) -> Objectives:
        """The objectives that the step loop works towards: what was promised, less the margin."""
        kept = 1.0 - self.margin_share
        promised = Objectives(self.ttft_s, self.tpot_s, self.max_itl_s)
        return Objectives(promised.ttft_s * kept, promised.tpot_s * kept, promised.gap_s * kept)

    @property
    def max_quantum_s(self) -> float:
        """Longest quantum in seconds."""
        return self.max_quantum_ms / 1e3


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0.0):
        raise ConfigError(f"{name}: {value}, must be finite and above 0")
