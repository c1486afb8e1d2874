"""How long answers, feedback and refusals are kept."""

from collm.replica.config import ReplicaConfig
from collm.replica.inbox import Inbox, RemoveSample
from collm.store.data_folder import DataFolder

_DAY_S = 86_400.0
_MAX_REFUSALS = 10_000
"""Latest refused candidates of each adapter that its history shows, as many as a job has events."""


class Retention:
    """Drops what is old or too much, from disk and from training; the writing thread's upkeep."""

    def __init__(self, data: DataFolder, inbox: Inbox, config: ReplicaConfig) -> None:
        """Keep ``data`` within the limits of ``config``."""
        self._data = data
        self._inbox = inbox
        self._config = config

    def sweep(self) -> None:
        """Drop what is beyond the limits now."""
        config, data = self._config, self._data
        data.responses.prune(config.max_responses, config.response_days * _DAY_S)
        for adapter in data.feedback.adapters():
            dropped = data.feedback.prune(
                adapter, config.max_feedback_samples, config.feedback_days * _DAY_S
            )
            for feedback_id in dropped:
                self._inbox.put(RemoveSample(adapter, feedback_id))
        data.decisions.prune(_MAX_REFUSALS)
        data.tend()
