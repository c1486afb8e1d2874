"""Whether the next quantum may run before the next step."""

import math
from typing import Protocol

from collm.pacing.config import Objectives, PacingConfig
from collm.pacing.credit import Credit
from collm.pacing.deadlines import IDLE, Outlook, PrefillLimit, StepCost, look_ahead
from collm.pacing.quanta import OWED, Quantum, QuantumKind
from collm.pacing.reserve import Reserve
from collm.types import SequenceProgress

_PROBE_AFTER_S = 1.0
"""How long an unbelievable bound may keep training from measuring itself again."""


class Inbox(Protocol):
    """What has come for the step loop while it worked."""

    def has_messages(self) -> bool:
        """Whether a message waits."""
        ...


class QuantumCost(Protocol):
    """What is believed of quantum times: learned on a replica, learned or given in a simulation."""

    def upper_s(self, quantum: Quantum) -> float:
        """Return the time that a quantum hardly ever exceeds."""
        ...

    def observe(self, quantum: Quantum, seconds: float) -> None:
        """Learn from a quantum that took ``seconds``."""
        ...


class Budget(Protocol):
    """Decides between two steps which quanta may run."""

    def begin(
        self,
        progress: tuple[SequenceProgress, ...],
        now_s: float,
        num_adapters: int = 0,
        *,
        is_blocked: bool = False,
    ) -> None:
        """Start a pause: call after a step's tokens were published, or when there was no step."""
        ...

    def begin_seeing(self, outlook: Outlook, now_s: float) -> None:
        """Start a pause whose outlook is known already."""
        ...

    def reserve_s(self, num_decodes: int, num_context_tokens: int) -> float:
        """Return how far ahead of its deadline an outlook keeps each of so many decodes."""
        ...

    @property
    def is_unlimited(self) -> bool:
        """Whether every quantum may run in this pause, up to the next message."""
        ...

    def allows(self, quantum: Quantum, inbox: Inbox) -> bool:
        """Whether this quantum may run now; changes nothing."""
        ...

    def spent(self, quantum: Quantum, seconds: float, now_s: float) -> None:
        """Account for a quantum that just ended, and learn its cost."""
        ...


class ObjectiveBudget:
    """Spends slack up to the objectives: as many quanta as no reachable deadline notices.

    A quantum runs if its upper bound fits in the slack, and if the gap since the latest token of
    any decoding sequence, with the quantum and the next step, stays within ``planned_gap_s``.
    With nothing to serve, every quantum runs. While a message waits, or prefill is due, none does:
    the prefill has to be computed all the same, so putting it off gains no training time, and it
    would be in the way of the requests that come next. For their sake a decode stays some tokens
    ahead of its deadlines where need be, see ``Reserve``.

    Credit pays for quanta that slack does not cover: any number within the gap rule, and one
    per pause even when the next step alone breaks that rule, or else the guarantee were none.

    A snapshot is owed, and so is carrying the shadow over to a version from outside, which it must
    wait for: one quantum of them runs per pause, whatever waits. The one comes a few times a minute
    at most, the other when somebody promotes, and without them there were no saying how much
    training a kill may cost.

    All quanta are cut for ``max_quantum_s``, so a longer bound was learned on a bad day. When no
    quantum has run for a second, such a one counts as ``max_quantum_s``: measuring again corrects
    a stale bound, where refusing forever would keep it.

    Args:
        objectives: What deadlines are made from.
        step_cost: Bounds on step times.
        quantum_cost: Bounds on quantum times; ``spent`` feeds it.
        prefill_limit: What the scheduler fills steps by.
        credit: Guaranteed time; this budget accrues and charges it.
        max_quantum_s: Time for which quanta are cut.
    """

    def __init__(
        self,
        objectives: Objectives,
        step_cost: StepCost,
        quantum_cost: QuantumCost,
        *,
        prefill_limit: PrefillLimit | None,
        credit: Credit,
        max_quantum_s: float,
    ) -> None:
        self._objectives = objectives
        self._planned_gap_s = objectives.planned_gap_s
        self._step_cost = step_cost
        self._reserve = Reserve(objectives, step_cost)
        self._quantum_cost = quantum_cost
        self._prefill_limit = prefill_limit
        self._credit = credit
        self._max_quantum_s = max_quantum_s
        self._is_idle = True
        self._free_until_s = math.inf
        self._gap_ends_s = math.inf
        self._now_s = 0.0
        self._last_ran_at_s = -math.inf
        self._num_ran = 0
        self._ran_s = 0.0

    def begin(
        self,
        progress: tuple[SequenceProgress, ...],
        now_s: float,
        num_adapters: int = 0,
        *,
        is_blocked: bool = False,
    ) -> None:
        """Start a pause: call after a step's tokens were published, or when there was no step.

        Args:
            progress: Every running and waiting sequence.
            now_s: The present.
            num_adapters: Different adapter versions that the next step will serve.
            is_blocked: Whether what waits cannot be admitted yet, for lack of room.
        """
        self._reserve.look(progress)
        # The last one first: it is the latest that came, and most likely still to prefill.
        is_due = not is_blocked and not all(one.is_decoding for one in reversed(progress))
        if is_due and not self._credit.full_share:
            self._refuse(now_s)  # whatever the outlook
            return
        outlook = IDLE
        if progress:
            outlook = look_ahead(
                progress,
                self._objectives,
                self._step_cost,
                now_s,
                self._prefill_limit,
                num_adapters,
                self._reserve.seconds(progress),
            )
        self._begin(outlook, now_s, is_due=is_due)

    def begin_seeing(self, outlook: Outlook, now_s: float) -> None:
        """Start a pause whose outlook is known already."""
        self._begin(outlook, now_s, is_due=outlook.has_prefill)

    def _refuse(self, now_s: float) -> None:
        """Start a pause without time for training."""
        self._credit.accrue(now_s)
        self._now_s = now_s
        self._is_idle = False
        self._gap_ends_s = self._free_until_s = -math.inf
        self._num_ran, self._ran_s = 0, 0.0

    def _begin(self, outlook: Outlook, now_s: float, *, is_due: bool) -> None:
        """Start a pause, while prefill is due or none."""
        self._credit.accrue(now_s)
        self._now_s = now_s
        self._num_ran, self._ran_s = 0, 0.0
        slack_s, next_step_s, oldest_token_at_s, _ = outlook
        self._is_idle = slack_s == math.inf
        self._gap_ends_s = oldest_token_at_s + (self._planned_gap_s - next_step_s)
        self._free_until_s = -math.inf if is_due else min(now_s + slack_s, self._gap_ends_s)

    def reserve_s(self, num_decodes: int, num_context_tokens: int) -> float:
        """Return how far ahead of its deadline an outlook keeps each of so many decodes."""
        return self._reserve.seconds_beside(num_decodes, num_context_tokens)

    @property
    def is_unlimited(self) -> bool:
        """Whether every quantum may run in this pause, up to the next message."""
        return self._is_idle

    def allows(self, quantum: Quantum, inbox: Inbox) -> bool:
        """Whether this quantum may run now; changes nothing."""
        if self._num_ran == 0 and quantum.kind in OWED:
            return True
        if inbox.has_messages():
            return False
        return self._is_idle or self._is_free(quantum) or self._is_paid(quantum)

    def spent(self, quantum: Quantum, seconds: float, now_s: float) -> None:
        """Account for a quantum that ended at ``now_s``, and teach the cost model its time."""
        if self._credit.full_share and not self._is_idle and not self._is_free(quantum):
            self._credit.charge(seconds)
        self._quantum_cost.observe(quantum, seconds)
        self._credit.accrue(now_s)
        self._now_s = self._last_ran_at_s = now_s
        self._num_ran += 1
        self._ran_s += seconds

    def _is_free(self, quantum: Quantum) -> bool:
        """Whether serving does not notice the quantum."""
        now_s, free_until_s = self._now_s, self._free_until_s
        return now_s <= free_until_s and now_s + self._bound_s(quantum) <= free_until_s

    def _is_paid(self, quantum: Quantum) -> bool:
        """Whether credit covers the quantum."""
        if not self._credit.full_share:
            return False
        bound_s = self._bound_s(quantum)
        keeps_gap = self._now_s + bound_s <= self._gap_ends_s
        return self._credit.covers(bound_s) and (keeps_gap or self._num_ran == 0)

    def _bound_s(self, quantum: Quantum) -> float:
        bound_s = self._quantum_cost.upper_s(quantum)
        if self._now_s - self._last_ran_at_s >= _PROBE_AFTER_S:
            return min(bound_s, self._max_quantum_s)
        return bound_s


class LatencyBudget(ObjectiveBudget):
    """Keeps tokens fast: between two steps training takes ``max_quantum_s`` at most.

    Whoever chooses it wants tokens about as fast as without training, not merely within the
    objectives: a token waits for the time of one longest quantum, however much slack there is, be
    it spent on one quantum or on several short ones. Each must still fit in the slack, for the
    tighter mode should not miss what the looser one meets. More runs only when nothing is served,
    or on credit.
    """

    def _is_free(self, quantum: Quantum) -> bool:
        now_s, free_until_s = self._now_s, self._free_until_s
        if now_s > free_until_s:
            return False
        bound_s = self._bound_s(quantum)
        fits = self._num_ran == 0 or self._ran_s + bound_s <= self._max_quantum_s
        return fits and now_s + bound_s <= free_until_s


class UncontrolledBudget:
    """What a system without control does: a whole micro-batch between any two steps.

    For comparison only; tokens wait for it however late they are. Each pause takes one micro-batch
    from its first quantum to its last, with what follows before another begins, such as the
    optimizer's step. Messages are looked at between micro-batches alone.

    Args:
        quantum_cost: Bounds on quantum times; ``spent`` feeds it.
    """

    def __init__(self, quantum_cost: QuantumCost) -> None:
        self._quantum_cost = quantum_cost
        self._is_idle = True
        self._has_begun = False

    def begin(
        self,
        progress: tuple[SequenceProgress, ...],
        now_s: float,
        num_adapters: int = 0,
        *,
        is_blocked: bool = False,
    ) -> None:
        """Start a pause: call after a step's tokens were published, or when there was no step."""
        self._is_idle = not progress
        self._has_begun = False

    def begin_seeing(self, outlook: Outlook, now_s: float) -> None:
        """Start a pause whose outlook is known already."""
        self._is_idle = outlook.is_idle
        self._has_begun = False

    def reserve_s(self, num_decodes: int, num_context_tokens: int) -> float:
        """Return 0: training takes its time whatever comes of it."""
        return 0.0

    @property
    def is_unlimited(self) -> bool:
        """Return ``False``: a micro-batch goes on beyond the next message."""
        return False

    def allows(self, quantum: Quantum, inbox: Inbox) -> bool:
        """Whether this quantum may run now; changes nothing."""
        if self._has_begun and quantum.kind is not QuantumKind.PREPARE:
            return True
        return not inbox.has_messages() if self._is_idle else not self._has_begun

    def spent(self, quantum: Quantum, seconds: float, now_s: float) -> None:
        """Note a quantum that just ended, and teach the cost model its time."""
        self._has_begun = True
        self._quantum_cost.observe(quantum, seconds)


def make_budget(
    config: PacingConfig,
    step_cost: StepCost,
    quantum_cost: QuantumCost,
    credit: Credit,
    prefill_limit: PrefillLimit | None = None,
) -> Budget:
    """Build the budget that the configuration names."""
    if config.budget == "uncontrolled":
        return UncontrolledBudget(quantum_cost)
    budget = LatencyBudget if config.budget == "latency" else ObjectiveBudget
    return budget(
        config.objectives,
        step_cost,
        quantum_cost,
        prefill_limit=prefill_limit,
        credit=credit,
        max_quantum_s=config.max_quantum_s,
    )
