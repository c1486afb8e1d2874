"""Watches over promoted versions, made."""

from collm.gate.watch import Watch
from collm.lora.state import AdapterState
from collm.model.decoder import Decoder
from collm.training.base_version import fresh_state
from collm.training.feedback_watch import FeedbackWatch
from collm.training.measuring import Limits, Meter, QuantumSizes
from collm.types import BASE, VersionId

_MAX_TOKENS = 1024
"""Most sample tokens of a micro-batch; the quanta are what bounds it."""
_BEYOND_DOUBT = 1e-9
"""Error at which a watch that others decide by has seen enough, however many they are."""


class Watches:
    """Makes watches, whether a job learns the adapter or not.

    Args:
        decoder: The frozen weights.
        sizes: Bounds the quanta.
        max_quantum_s: Longest quantum wanted.
        error: Chance, over a whole watch, that a version which is no worse counts as regressed.
    """

    def __init__(
        self, decoder: Decoder, sizes: QuantumSizes, max_quantum_s: float, error: float
    ) -> None:
        self._decoder = decoder
        self._limits = Limits(sizes, max_quantum_s, _MAX_TOKENS)
        self._error = error

    def over(
        self,
        adapter: str,
        version: VersionId,
        state: AdapterState,
        previous: VersionId | None,
        previous_state: AdapterState | None,
        *,
        is_joint: bool,
    ) -> FeedbackWatch:
        """Return a watch over ``version``, against the one before it or the base.

        ``is_joint`` if its members decide about it together.
        """
        error = _BEYOND_DOUBT if is_joint else self._error
        return FeedbackWatch(
            adapter,
            Watch(error, previous or BASE, version),
            state,
            previous_state or fresh_state(adapter, state.layout),
            Meter(self._decoder, adapter, self._limits),
            is_joint=is_joint,
        )
