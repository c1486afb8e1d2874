"""What operators, and the watch over promotions, have done with versions; loop thread only."""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from collm.errors import CollmError, StateError
from collm.gate.watch import REGRESSION
from collm.lora.store import AdapterStore
from collm.metrics.exporter import ReplicaMetrics
from collm.replica.archive import Archive
from collm.replica.inbox import (
    Keep,
    Promoted,
    PromotionFailed,
    Published,
    PublishFailed,
    Release,
    ReturnToBase,
    Rollback,
    Unload,
    VersionMessage,
    tell,
)
from collm.replica.promotions import Promotions, no_free_slot
from collm.replica.swap import Cause, Swap
from collm.store.data_folder import DataFolder
from collm.types import BASE, RollbackCause, VersionId, VersionInfo

_log = logging.getLogger(__name__)

_REASONS: dict[RollbackCause, str] = {
    "asked": "asked for",
    "regression": REGRESSION,
}


class VersionDesk:
    """Carries out messages about versions; whoever asked is told when it is on disk.

    A rollback and an unload are in force before they are written: waiting would serve what
    somebody wants gone.
    """

    def __init__(
        self,
        promotions: Promotions,
        adapters: AdapterStore,
        archive: Archive,
        metrics: ReplicaMetrics,
        *,
        is_training: Callable[[str], bool],
        on_swap: Callable[[Swap], None],
        on_unload: Callable[[str], None],
        on_change: Callable[[], None],
    ) -> None:
        """Change what ``adapters`` serve.

        Args:
            promotions: Told of what overtakes what is on its way.
            adapters: The loaded versions.
            archive: Writes what was done.
            metrics: Counts promotions.
            is_training: Whether an adapter, by name, has a job.
            on_swap: Called when another version is active.
            on_unload: Called with an adapter that is served no more.
            on_change: Called when names came or went otherwise.
        """
        self._promotions = promotions
        self._adapters = adapters
        self._archive = archive
        self._metrics = metrics
        self._is_training = is_training
        self._on_swap = on_swap
        self._on_unload = on_unload
        self._on_change = on_change

    def receive(self, message: VersionMessage) -> None:
        """Carry out a message."""
        match message:
            case Published():
                self._promotions.published(message)
            case PublishFailed():
                self._promotions.publish_failed(message)
            case Promoted(published):
                self._promotions.promoted(published)
            case PromotionFailed():
                self._promotions.promotion_failed(message)
            case Rollback(adapter, reply):
                self._roll_back_on_request(adapter, reply)
            case ReturnToBase():
                self._return_to_base(message)
            case Unload(adapter, reply):
                self._unload(adapter, reply)
            case Keep(published):
                self._keep(published)
            case Release(version, reply):
                self._release(version, reply)

    def regressed(self, adapter: str, numbers: Mapping[str, Any]) -> None:
        """Return to the version before, for the active one does worse on live feedback."""
        if numbers.get("active") != self._adapters.active(adapter):
            return  # another version was promoted meanwhile
        try:
            self._roll_back(adapter, "regression", numbers, lambda *_: None)
        except CollmError as error:
            _log.warning("%s does worse than the version before, but stays: %s", adapter, error)

    def _roll_back_on_request(self, adapter: str, reply: "Future[VersionInfo]") -> None:
        def then(version: VersionId, info: VersionInfo, error: Exception | None) -> None:
            note = f"{version} is active again, but a restart would undo that: {error}"
            tell(reply, info if error is None else CollmError(note))

        try:
            self._roll_back(adapter, "asked", {}, then)
        except CollmError as error:
            tell(reply, error)

    def _roll_back(
        self,
        adapter: str,
        cause: RollbackCause,
        numbers: Mapping[str, Any],
        then: Callable[[VersionId, VersionInfo, Exception | None], None],
    ) -> None:
        """Return to the version before; raises ``UnknownAdapterError`` if nothing is held."""
        previous = self._adapters.active(adapter)
        version = self._adapters.rollback(adapter)
        self._returned(adapter, version, previous, cause, _REASONS[cause], numbers, then)

    def _return_to_base(self, message: ReturnToBase) -> None:
        adapter, previous = message.adapter, self._adapters.active(message.adapter)
        if previous is None and self._promotions.is_settled(adapter):
            tell(message.reply, None)
            return
        self._adapters.return_to_base(adapter)
        self._returned(
            adapter,
            BASE,
            previous,
            message.cause,
            message.reason,
            message.numbers,
            lambda _version, _info, error: tell(message.reply, error),
        )

    def _returned(
        self,
        adapter: str,
        version: VersionId,
        previous: VersionId | None,
        cause: RollbackCause,
        reason: str,
        numbers: Mapping[str, Any],
        then: Callable[[VersionId, VersionInfo, Exception | None], None],
    ) -> None:
        """Follow a return to an earlier version, in force in serving, in all else.

        Before the first version there is the base: training begins anew beside it, and without a
        job the adapter's name goes. The training state on disk goes with what is taken back, but
        for its place: it would bring that back.
        """
        self._promotions.abandon(adapter, "the adapter was rolled back")
        is_base = version == BASE
        self._metrics.rolled_back(adapter, version, cause)
        _log.info("%s: %s is active again: %s", adapter, version, reason)
        self._on_swap(
            Swap(
                adapter=adapter,
                version=version,
                state=None if is_base else self._adapters.state(version),
                cause=Cause.RETURNED,
                previous=previous,
                numbers=numbers,
            )
        )
        info = _base_info(adapter) if is_base else self._promotions.info(version)

        def write(data: DataFolder) -> None:
            if is_base:
                data.decisions.return_to_base(adapter, reason, numbers)
            else:
                data.decisions.rollback(version, reason, numbers)
            data.checkpoints.keep_place(adapter)

        self._archive.write(write, lambda error: then(version, info, error))

    def _unload(self, adapter: str, reply: "Future[None]") -> None:
        if self._is_training(adapter):
            error = f"adapter {adapter!r} is being trained; cancel its job first"
            tell(reply, StateError(error, code="adapter_in_training"))
            return
        try:
            self._adapters.unload(adapter)
        except CollmError as error:
            tell(reply, error)
            return
        self._promotions.forget(adapter, "the adapter was unloaded")
        self._on_unload(adapter)
        self._metrics.unloaded(adapter)
        _log.info("%s is unloaded", adapter)
        self._on_change()

        def write(data: DataFolder) -> None:
            for version in data.pins.all():
                if version.startswith(f"{adapter}@"):
                    data.pins.remove(version)
            data.decisions.unload(adapter, "asked for")

        self._archive.write(write, lambda error: tell(reply, error))

    def _keep(self, message: Published) -> None:
        try:
            is_kept = self._adapters.try_keep(
                message.adapter,
                message.version,
                message.state,
                dict(message.metadata),
                message.digest,
            )
        except CollmError as error:
            tell(message.reply, error)
            return
        if not is_kept:
            tell(message.reply, no_free_slot(message.version, self._adapters))
            return
        self._on_change()
        info = self._promotions.info(message.version)

        def then(error: Exception | None) -> None:
            tell(message.reply, info if error is None else error)

        self._archive.write(lambda data: data.pins.add(message.version), then)

    def _release(self, version: VersionId, reply: "Future[None]") -> None:
        self._adapters.release(version)
        self._on_change()
        self._archive.write(
            lambda data: data.pins.remove(version), lambda error: tell(reply, error)
        )


def _base_info(adapter: str) -> VersionInfo:
    """Return what an adapter without a version is like: the bare base model."""
    return VersionInfo(
        version=BASE, adapter=adapter, digest="", rank=0, slot=None, num_pins=0, is_active=True
    )
