"""Records of many replicas in one order."""

from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter

from collm.metrics.records import RequestRecord

OnRecord = Callable[[RequestRecord], None]


class RecordOrder:
    """Puts records in the order in which requests ended, by replica where they ended together.

    Replicas are moved on one after the other, each by some time: records of one come in order, and
    those of all once every replica is as far.

    Args:
        on_record: Gets them.
    """

    def __init__(self, on_record: OnRecord) -> None:
        self._on_record = on_record
        self._held: list[tuple[tuple[float, str], RequestRecord]] = []

    def put(self, record: RequestRecord, replica_id: str) -> None:
        """Take a record that has ended at a replica."""
        assert record.ended_at_s is not None
        self._held.append(((record.ended_at_s, replica_id), record))

    def release(self, until_s: float) -> None:
        """Pass on what ended up to a time that every replica has come to."""
        if not self._held:
            return
        self._held.sort(key=itemgetter(0))
        num_sure = bisect_right(self._held, until_s, key=_end_s)
        sure, self._held = self._held[:num_sure], self._held[num_sure:]
        for _, record in sure:
            self._on_record(record)


def _end_s(held: tuple[tuple[float, str], RequestRecord]) -> float:
    return held[0][0]
