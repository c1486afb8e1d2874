"""Training between two steps on virtual time."""

from collections.abc import Callable

from collm.metrics.loop_times import LoopTimes
from collm.metrics.totals import Totals
from collm.pacing.budgets import Budget
from collm.pacing.quanta import Quantum, QuantumKind
from collm.sim.device import Device
from collm.sim.inbox import SimInbox
from collm.sim.trainer import SimTrainer
from collm.sim.versions import ADAPTER

_EVALUATION = frozenset({QuantumKind.EVALUATE_FORWARD, QuantumKind.EVALUATE_LOSS})

OnCandidate = Callable[[tuple[float, ...], float], None]
"""Takes the knowledge of a candidate that the gate found better, and when."""


class Pauses:
    """Goes through quanta as long as the budget allows, and accounts for them.

    Args:
        trainer: Whose quanta; ``None`` where nothing is trained.
        budget: Decides about each.
        device: Takes its time for them.
        times: Gets their time by kind of work.
        totals: Gets their time by adapter.
        on_candidate: Is told of candidates.
        inbox: Says when a message waits.
        fast_forward: Whether to ask the budget once where it would allow everything.
    """

    def __init__(
        self,
        trainer: SimTrainer | None,
        budget: Budget,
        device: Device,
        times: LoopTimes,
        totals: Totals,
        on_candidate: OnCandidate,
        inbox: SimInbox,
        *,
        fast_forward: bool,
    ) -> None:
        self._trainer = trainer
        self._budget = budget
        self._device = device
        self._times = times
        self._totals = totals
        self._on_candidate = on_candidate
        self._inbox = inbox
        self._fast_forward = fast_forward
        self.num_quanta = 0
        """Quanta of this pause that have ended; whoever starts a pause sets it to 0."""
        self._quantum: Quantum | None = None
        self._began_s = 0.0
        self.ends_s = 0.0
        """When the quantum under way ends, if there is one and nothing holds it up."""

    @property
    def is_in_quantum(self) -> bool:
        """Whether a quantum was under way when ``go_on`` returned."""
        return self._quantum is not None

    def go_on(self, now_s: float, until_s: float) -> float:
        """Train from now on, up to where the budget refuses or to the quantum under way at a time.

        Args:
            now_s: The present.
            until_s: Quanta that end later are left under way.

        Returns:
            When the latest quantum ended.
        """
        trainer, budget, inbox, device = self._trainer, self._budget, self._inbox, self._device
        if trainer is None:
            return now_s
        if self._fast_forward and budget.is_unlimited:
            return self._go_on_unasked(trainer, now_s, until_s)
        while (quantum := trainer.peek()) is not None and budget.allows(quantum, inbox):
            ends_s = now_s + device.quantum_s(quantum)
            if ends_s > until_s:
                self._quantum, self._began_s, self.ends_s = quantum, now_s, ends_s
                break
            self._spend(quantum, ends_s - now_s, ends_s)
            candidate = trainer.ran(ends_s)
            if candidate is not None:
                self._on_candidate(candidate, ends_s)
            now_s = inbox.now_s = ends_s
        return now_s

    def end_quantum(self, now_s: float) -> None:
        """Account for the quantum that was under way, which ends now."""
        assert self._quantum is not None
        assert self._trainer is not None
        quantum, self._quantum = self._quantum, None
        self._spend(quantum, now_s - self._began_s, now_s)
        candidate = self._trainer.ran(now_s)
        if candidate is not None:
            self._on_candidate(candidate, now_s)

    def _go_on_unasked(self, trainer: SimTrainer, now_s: float, until_s: float) -> float:
        """Do what ``go_on`` does where the budget allows everything up to the next message."""
        inbox, quantum_s, message_s = self._inbox, self._device.quantum_s, self._inbox.next_s
        while (quanta := trainer.rest_of_program()) and now_s < message_s:
            num_ended = 0
            for quantum in quanta:
                ends_s = now_s + quantum_s(quantum)
                if ends_s > until_s:
                    self._quantum, self._began_s, self.ends_s = quantum, now_s, ends_s
                    break
                self._spend(quantum, ends_s - now_s, ends_s)
                num_ended += 1
                now_s = ends_s
                if now_s >= message_s:
                    break
            candidate = trainer.ran(now_s, num_ended) if num_ended else None
            if candidate is not None:
                self._on_candidate(candidate, now_s)
            if self._quantum is not None:
                break
        inbox.now_s = now_s
        return now_s

    def _spend(self, quantum: Quantum, seconds: float, ends_s: float) -> None:
        """Account for the time of a quantum that ends then."""
        self.num_quanta += 1
        self._budget.spent(quantum, seconds, ends_s)
        is_evaluation = quantum.kind in _EVALUATION
        self._times.add("evaluate" if is_evaluation else "train", seconds)
        self._totals.trained(ADAPTER, seconds, is_evaluation=is_evaluation)
