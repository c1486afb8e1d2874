"""Budgets of other systems, and a credit without correction, for comparison."""

from collm.pacing.budgets import Inbox, QuantumCost
from collm.pacing.credit import Credit
from collm.pacing.deadlines import Outlook
from collm.pacing.quanta import Quantum
from collm.sim.duty import Shifts
from collm.types import SequenceProgress


class TokenLevelBudget:
    """A fixed number of training tokens after every step, however late anybody is.

    A pause earns the time of that many tokens; a quantum runs while some is left and may overdraw
    it, which later pauses pay. With nothing to serve, quanta run until a message comes.

    Args:
        quantum_cost: Learns quantum times.
        step_training_s: Time of the training that goes with a step.
    """

    def __init__(self, quantum_cost: QuantumCost, step_training_s: float) -> None:
        self._quantum_cost = quantum_cost
        self._step_training_s = step_training_s
        self._left_s = 0.0
        self._is_idle = True

    def begin(
        self,
        progress: tuple[SequenceProgress, ...],
        now_s: float,
        num_adapters: int = 0,
        *,
        is_blocked: bool = False,
    ) -> None:
        """Start a pause."""
        self._begin(is_idle=not progress)

    def begin_seeing(self, outlook: Outlook, now_s: float) -> None:
        """Start a pause whose outlook is known already."""
        self._begin(is_idle=outlook.is_idle)

    def _begin(self, *, is_idle: bool) -> None:
        self._is_idle = is_idle
        self._left_s = min(self._left_s, 0.0) + self._step_training_s

    def reserve_s(self, num_decodes: int, num_context_tokens: int) -> float:
        """Return 0: decodes need not be ahead here."""
        return 0.0

    @property
    def is_unlimited(self) -> bool:
        """Whether every quantum may run in this pause, up to the next message."""
        return self._is_idle

    def allows(self, quantum: Quantum, inbox: Inbox) -> bool:
        """Whether this quantum may run now; changes nothing."""
        return not inbox.has_messages() if self._is_idle else self._left_s > 0.0

    def spent(self, quantum: Quantum, seconds: float, now_s: float) -> None:
        """Account for a quantum that just ended."""
        if not self._is_idle:
            self._left_s -= seconds
        self._quantum_cost.observe(quantum, seconds)


class ShiftBudget:
    """Trains in shifts of its own, and then whatever waits.

    Args:
        quantum_cost: Learns quantum times.
        shifts: When training's turn is.
    """

    def __init__(self, quantum_cost: QuantumCost, shifts: Shifts) -> None:
        self._quantum_cost = quantum_cost
        self._shifts = shifts
        self._now_s = 0.0

    def begin(
        self,
        progress: tuple[SequenceProgress, ...],
        now_s: float,
        num_adapters: int = 0,
        *,
        is_blocked: bool = False,
    ) -> None:
        """Start a pause."""
        self._now_s = now_s

    def begin_seeing(self, outlook: Outlook, now_s: float) -> None:
        """Start a pause whose outlook is known already."""
        self._now_s = now_s

    def reserve_s(self, num_decodes: int, num_context_tokens: int) -> float:
        """Return 0: decodes need not be ahead here."""
        return 0.0

    @property
    def is_unlimited(self) -> bool:
        """Return ``False``: a turn of training ends by itself."""
        return False

    def allows(self, quantum: Quantum, inbox: Inbox) -> bool:
        """Whether this quantum may run now; changes nothing."""
        return self._shifts.trains(self._now_s)

    def spent(self, quantum: Quantum, seconds: float, now_s: float) -> None:
        """Account for a quantum that just ended."""
        self._now_s = now_s
        self._quantum_cost.observe(quantum, seconds)


class UncorrectedCredit(Credit):
    """A credit that stays as it was granted, whatever is missed."""

    def missed(self) -> None:
        """Note a request that missed an objective."""
