"""What the coordinator allots to this replica, applied between steps; loop thread only."""

import logging
from collections.abc import Mapping
from typing import Any

from collm.clock import Clock
from collm.federated.allotment import Allotment
from collm.pacing.credit import Credit
from collm.training.trainer import Trainer

_log = logging.getLogger(__name__)


class Allotments:
    """Keeps the allotment in force, and falls back to the replica's own settings after it.

    It needs no coordinator to go on: the allotment stays until it expires, and the credit shrinks
    by itself when objectives are missed.

    Args:
        trainer: Divides its time and sizes its steps accordingly.
        credit: Follows the granted share; what it begins with is the least it ever gets.
        clock: Monotonic time.
    """

    def __init__(self, trainer: Trainer, credit: Credit, clock: Clock) -> None:
        self._trainer = trainer
        self._credit = credit
        self._clock = clock
        self._own_share = credit.full_share
        self._current: Allotment | None = None
        self._ends_at_s = 0.0
        self._applied_to: tuple[str, ...] = ()
        """The adapters that had jobs when the allotment was applied last."""

    @property
    def number(self) -> int:
        """The allocation that is in force; 0 for none."""
        return 0 if self._current is None else self._current.number

    @property
    def credit_scale(self) -> float:
        """What misses have left of the credit."""
        return self._credit.scale

    def receive(self, allotment: Allotment) -> None:
        """Follow an allotment from now on."""
        if allotment.number != self.number:
            _log.info(
                "allocation %d: credit %.3f for %s",
                allotment.number,
                allotment.credit_share,
                ", ".join(allotment.adapters) or "no adapter",
            )
        self._current = allotment
        self._ends_at_s = self._clock.now_s() + allotment.valid_s
        self._apply()

    def tend(self) -> None:
        """Let an allotment that has expired go, and tell jobs that came since of theirs."""
        if self._current is None:
            return
        if self._clock.now_s() >= self._ends_at_s:
            _log.warning("allocation %d has expired; own settings are in force", self.number)
            self._current = None
            self._apply()
        elif self._trainer.adapters != self._applied_to:
            self._apply()

    def snapshot(self) -> Mapping[str, Any]:
        """Return what is in force, ready for JSON."""
        current = self._current
        return {
            "allotment": None if current is None else current.to_json(),
            "expires_in_s": None if current is None else self._ends_at_s - self._clock.now_s(),
            "credit_share": self._credit.share,
            "credit_scale": self._credit.scale,
        }

    def _apply(self) -> None:
        current = self._current
        share = 0.0 if current is None else current.credit_share
        self._credit.set_share(max(share, self._own_share))
        adapters = {} if current is None else current.adapters
        self._trainer.allot(
            {name: one.time_share for name, one in adapters.items()},
            {name: one.tokens_per_step for name, one in adapters.items()},
        )
        self._applied_to = self._trainer.adapters
