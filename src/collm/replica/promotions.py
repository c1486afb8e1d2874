"""From a candidate to the version that is served."""

import itertools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from collm.clock import Clock
from collm.errors import AdapterError, CollmError, StateError
from collm.lora.state import AdapterState
from collm.lora.store import AdapterStore
from collm.metrics.exporter import Origin, ReplicaMetrics
from collm.replica.archive import Archive
from collm.replica.inbox import PromotionFailed, Published, PublishFailed, tell
from collm.replica.swap import Cause, Swap
from collm.training.events import HeldOutReport
from collm.types import VersionId, VersionInfo

_log = logging.getLogger(__name__)

_RETRY_S = 30.0
"""Time until the next attempt after the data folder could not be written."""


@dataclass(slots=True)
class _Way:
    """What is on its way to be an adapter's active version; one thing at each station."""

    not_before_s: float = -math.inf
    """No candidate of the adapter's own moves on earlier."""
    candidate: HeldOutReport | None = None
    """Better than what is served, and not handed to the archive yet; a newer one replaces it."""
    publishing: HeldOutReport | None = None
    """The candidate that the archive is writing."""
    staged: Published | None = None
    """On disk, waiting for a slot or for its decision's record."""
    place: int = 0
    """Smaller than those of the adapters that ``staged`` goes before when a slot becomes free."""
    waits_until_s: float = math.inf
    """When whoever asked for ``staged`` is told that no slot became free."""
    is_recording: bool = False
    """Whether the archive is writing the decision to promote ``staged``."""
    waiting: Published | None = None
    """What somebody asked for while a candidate of the adapter's own was being recorded."""
    num_promotions: int = 0


class Promotions:
    """Decides what is published and when it is promoted; loop thread only.

    ::

        candidate ─► archive writes it ─► staged in a slot ─► archive writes the decision ─► flip
           │ newer one replaces it             │ no slot: tried again each step
    The adapter that has waited longest goes first, so that no flood of another's versions keeps it
    from its slot.
    """

    def __init__(
        self,
        adapters: AdapterStore,
        archive: Archive,
        metrics: ReplicaMetrics,
        clock: Clock,
        *,
        on_swap: Callable[[Swap], None],
        min_interval_s: float,
        slot_wait_s: float,
    ) -> None:
        """Promote versions in ``adapters``.

        Args:
            adapters: The loaded versions.
            archive: Writes versions and decisions.
            metrics: Counts promotions.
            clock: Monotonic time.
            on_swap: Called when another version is active, before whoever asked for it is told.
            min_interval_s: Least time between two promotions of an adapter's own candidates.
            slot_wait_s: How long a version that somebody asked for may wait for a slot.
        """
        self._adapters = adapters
        self._archive = archive
        self._metrics = metrics
        self._clock = clock
        self._on_swap = on_swap
        self._min_interval_s = min_interval_s
        self._slot_wait_s = slot_wait_s
        self._ways: dict[str, _Way] = {}
        self._places = itertools.count()

    def offer(self, report: HeldOutReport) -> None:
        """Take a candidate that is better than what is served."""
        assert report.candidate is not None
        self._way(report.adapter).candidate = report

    def is_settled(self, adapter: str) -> bool:
        """Return whether nothing of the adapter is on its way."""
        way = self._way(adapter)
        stations = (way.candidate, way.publishing, way.staged, way.waiting)
        return all(station is None for station in stations)

    def num_promotions(self, adapter: str) -> int:
        """Return how often the adapter's active version was replaced by another."""
        return self._way(adapter).num_promotions

    def adapters(self) -> tuple[str, ...]:
        """Return the names of the adapters that ever had something on its way."""
        return tuple(self._ways)

    def tend(self) -> None:
        """Move on what waits for time, a slot, or the archive; called once per step."""
        now_s = self._clock.now_s()
        for adapter, way in self._ways.items():
            self._publish_candidate(adapter, way, now_s)
        self._stage_in_turn(now_s)
        for way in self._ways.values():  # after that, as the loop may have looked long ago
            if way.staged is not None and not way.is_recording and now_s >= way.waits_until_s:
                self._give_up(way, way.staged)

    def published(self, message: Published) -> None:
        """Stage a version that is on disk, as soon as a slot is free."""
        way = self._way(message.adapter)
        if message.is_local and not _take_publishing(way, message.state):
            _refuse(message, "the adapter was rolled back or unloaded")
        elif message.version == self._adapters.active(message.adapter):
            tell(message.reply, self.info(message.version))
        elif way.is_recording:
            self._wait(way, message)
        elif message.is_local and way.staged is not None and not way.staged.is_local:
            _refuse(message, "a version that somebody asked for goes first")
        else:
            if way.staged is None:
                way.place = next(self._places)
            else:
                _refuse(way.staged, "a newer version replaced it before a slot was free")
            way.staged = message
            now_s, is_asked_for = self._clock.now_s(), message.reply is not None
            way.waits_until_s = now_s + self._slot_wait_s if is_asked_for else math.inf
            self._stage_in_turn(now_s)

    def publish_failed(self, message: PublishFailed) -> None:
        """Keep a candidate that could not be written for another attempt, unless it is outdated."""
        way = self._way(message.adapter)
        report = way.publishing
        if _take_publishing(way, message.state):
            way.candidate = way.candidate or report
            way.not_before_s = self._clock.now_s() + _RETRY_S

    def promoted(self, message: Published) -> None:
        """Flip to a staged version whose promotion is on record, unless it was abandoned."""
        way = self._way(message.adapter)
        way.is_recording = False
        if way.staged is message:
            way.staged = None
            self._flip(way, message)
        self._end_wait(way)

    def promotion_failed(self, message: PromotionFailed) -> None:
        """Leave things as they are: what is not on record is not served."""
        way = self._way(message.published.adapter)
        way.is_recording = False
        if way.staged is message.published:
            way.not_before_s = self._clock.now_s() + _RETRY_S
            if not message.published.is_local:
                way.staged = None
                reason = f"the decision could not be written: {message.error}"
                _refuse(message.published, reason)
        self._end_wait(way)

    def abandon(self, adapter: str, reason: str) -> None:
        """Promote nothing of what is on its way."""
        self.withdraw(adapter)
        way = self._way(adapter)
        for message in (way.staged, way.waiting):
            if message is not None:
                _refuse(message, reason)
        way.staged = way.waiting = None

    def forget(self, adapter: str, reason: str) -> None:
        """Promote nothing of what is on its way, and remember the adapter no longer."""
        self.abandon(adapter, reason)
        if not self._ways[adapter].is_recording:
            del self._ways[adapter]

    def withdraw(self, adapter: str) -> None:
        """Promote none of the adapter's own candidates, but for one that may be on record already.

        What somebody asked for stays.
        """
        way = self._way(adapter)
        way.candidate = way.publishing = None
        if way.staged is not None and way.staged.is_local and not way.is_recording:
            way.staged = None

    def info(self, version: VersionId) -> VersionInfo:
        """Return how a loaded version stands."""
        return next(info for info in self._adapters.infos() if info.version == version)

    def _way(self, adapter: str) -> _Way:
        return self._ways.setdefault(adapter, _Way())

    def _flip(self, way: _Way, message: Published) -> None:
        previous = self._adapters.active(message.adapter)
        swap = Swap(
            adapter=message.adapter,
            version=message.version,
            state=message.state,
            cause=Cause.LEARNED if message.is_local else Cause.BROUGHT,
            previous=previous,
            previous_state=None if previous is None else self._adapters.state(previous),
            numbers=message.numbers,
            metadata=message.metadata,
        )
        self._adapters.promote(message.version)
        way.num_promotions += 1
        way.not_before_s = self._clock.now_s() + self._min_interval_s
        if not message.is_local:
            way.candidate = None
        self._count(message)
        _log.info("%s is active", message.version)
        self._on_swap(swap)
        tell(message.reply, self.info(message.version))

    def _count(self, message: Published) -> None:
        if message.cause is not None:
            self._metrics.rolled_back(message.adapter, message.version, message.cause)
        else:
            origin: Origin = "learned" if message.is_local else "brought"
            self._metrics.promoted(message.adapter, message.version, origin)

    def _wait(self, way: _Way, message: Published) -> None:
        """Let what somebody asks for wait for a candidate's record, which takes moments."""
        is_first = way.waiting is None and way.staged is not None and way.staged.is_local
        if message.is_local or not is_first:
            _refuse(message, "another version of the adapter is being promoted; try again")
        else:
            way.waiting = message

    def _end_wait(self, way: _Way) -> None:
        if (message := way.waiting) is not None:
            way.waiting = None
            self.published(message)

    def _publish_candidate(self, adapter: str, way: _Way, now_s: float) -> None:
        """Hand the latest candidate to the archive, if its time has come."""
        report = way.candidate
        if report is None or report.candidate is None:
            return
        is_busy = way.publishing is not None or way.is_recording
        if is_busy or now_s < way.not_before_s:
            return
        way.candidate, way.publishing = None, report
        numbers = {"step": report.step, **report.report.numbers()}
        metadata = {
            "step": str(report.step),
            "held_out_loss": f"{report.loss:.4f}",
            "active_held_out_loss": f"{report.active_loss:.4f}",
        }
        self._archive.publish(adapter, report.candidate, metadata, numbers)

    def _stage_in_turn(self, now_s: float) -> None:
        """Bring what waits into free slots, in the order of its places."""
        waiting = [w for w in self._ways.values() if w.staged is not None and not w.is_recording]
        for way in sorted(waiting, key=attrgetter("place")):
            message = way.staged
            assert message is not None
            if now_s >= way.not_before_s or not message.is_local:
                self._stage(way, message)

    def _stage(self, way: _Way, message: Published) -> None:
        try:
            is_staged = self._adapters.try_stage(
                message.adapter,
                message.version,
                message.state,
                dict(message.metadata),
                message.digest,
            )
        except CollmError as error:
            way.staged = None
            _log.warning("%s cannot be served: %s", message.version, error)
            tell(message.reply, error)
            return
        if is_staged:
            way.is_recording = True
            self._archive.record_promotion(message)

    def _give_up(self, way: _Way, message: Published) -> None:
        way.staged = None
        error = no_free_slot(message.version, self._adapters)
        _log.info("%s", error)
        tell(message.reply, error)


def no_free_slot(version: VersionId, adapters: AdapterStore) -> StateError:
    """Return the error that says why a version cannot be loaded now."""
    return StateError(
        f"{version} is on disk, but no adapter slot is free for it; occupied by: "
        f"{adapters.occupants()}; unpin or unload one, or raise lora.num_slots",
        code="no_free_slot",
    )


def _take_publishing(way: _Way, state: AdapterState) -> bool:
    """Note that the archive is done with ``state``; return whether it is still wanted."""
    if way.publishing is None or way.publishing.candidate is not state:
        return False
    way.publishing = None
    return True


def _refuse(message: Published, reason: str) -> None:
    _log.info("%s was not promoted: %s", message.version, reason)
    tell(message.reply, AdapterError(f"{message.version} was not promoted: {reason}"))
