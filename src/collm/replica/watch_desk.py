"""Which versions are watched on fresh feedback; loop thread only."""

from collm.gate.trial import is_proven
from collm.lora.state import AdapterState
from collm.lora.store import AdapterStore
from collm.replica.swap import Swap
from collm.store.decisions import Decision
from collm.training.base_version import is_of_round
from collm.training.trainer import Trainer
from collm.training.watches import Watches
from collm.types import BASE, VersionId


class WatchDesk:
    """Has versions watched that were found better than the one before, by a job or by a round.

    What somebody chose is theirs to judge, and is not watched. What a round promoted is served by
    all its members, who decide about it together.

    Args:
        trainer: Watches.
        watches: Makes the watches.
        adapters: The loaded versions.
    """

    def __init__(self, trainer: Trainer, watches: Watches, adapters: AdapterStore) -> None:
        self._trainer = trainer
        self._watches = watches
        self._adapters = adapters

    def follow(self, swap: Swap) -> None:
        """Watch what is served now, if it was found better, and nothing else of the adapter."""
        if swap.state is None or not is_proven(swap.numbers):
            self._trainer.unwatch(swap.adapter)
        else:
            self._watch(swap.adapter, swap.version, swap.state, swap.previous, swap.previous_state)

    def resume(self, decision: Decision) -> None:
        """Go on watching what was promoted before a restart, by the feedback from now on.

        No effect if it was not found better, is not served, or none is left to return to.
        """
        adapter, version = decision.adapter, decision.version
        before = self._adapters.before(adapter)
        if version is None or before is None or self._adapters.active(adapter) != version:
            return
        if is_proven(decision.numbers):
            previous = None if before == BASE else before
            previous_state = None if previous is None else self._adapters.state(previous)
            self._watch(adapter, version, self._adapters.state(version), previous, previous_state)

    def _watch(
        self,
        adapter: str,
        version: VersionId,
        state: AdapterState,
        previous: VersionId | None,
        previous_state: AdapterState | None,
    ) -> None:
        is_joint = is_of_round(self._adapters.metadata(version))
        watch = self._watches.over(
            adapter, version, state, previous, previous_state, is_joint=is_joint
        )
        self._trainer.watch(adapter, watch)
