"""How the replica stands, for other threads to read: replaced whole, never changed."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from collm.clock import Clock
from collm.engine.blocks import BlockManager
from collm.engine.scheduler import Scheduler
from collm.lora.store import AdapterStore
from collm.metrics.exporter import ReplicaMetrics
from collm.types import ReplicaSnapshot, VersionInfo

_REFRESH_S = 0.25
_STATE_S = 0.05
"""Age at which the snapshot for the front is renewed: it routes by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One look at a replica."""

    names: tuple[str, ...] = ()
    """Everything that a request may name as its model."""
    versions: tuple[VersionInfo, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Live figures, ready for JSON."""


class Board:
    """Written by the loop's thread, read by any."""

    def __init__(
        self,
        scheduler: Scheduler,
        blocks: BlockManager,
        adapters: AdapterStore,
        metrics: ReplicaMetrics,
        clock: Clock,
    ) -> None:
        """Show what these objects, all of the loop's thread, hold."""
        self._scheduler = scheduler
        self._blocks = blocks
        self._adapters = adapters
        self._metrics = metrics
        self._clock = clock
        self._sources: dict[str, Callable[[], Any]] = {}
        self._refreshed_at_s = 0.0
        self._num_preemptions = 0
        self._make_state: Callable[[], ReplicaSnapshot] | None = None
        self._state: ReplicaSnapshot | None = None
        self._looked_at_s = 0.0
        self.view = View()

    def describe_by(self, make: Callable[[], ReplicaSnapshot]) -> None:
        """Let ``make`` say how the replica stands, for its front."""
        self._make_state = make
        self._look()

    @property
    def state(self) -> ReplicaSnapshot:
        """How the replica stood when the loop last looked; call it only after ``describe_by``."""
        assert self._state is not None
        return replace(self._state, age_s=max(self._clock.now_s() - self._looked_at_s, 0.0))

    def show(self, name: str, source: Callable[[], Any]) -> None:
        """Add a figure, or a group of them, that ``source`` returns ready for JSON."""
        self._sources[name] = source

    def refresh_if_due(self) -> None:
        """Refresh if the view has grown old."""
        now_s = self._clock.now_s()
        if now_s - self._refreshed_at_s >= _REFRESH_S:
            self.refresh()
        elif now_s - self._looked_at_s >= _STATE_S:
            self._look()

    def refresh(self) -> None:
        """Look at everything anew."""
        self._look()
        scheduler, blocks = self._scheduler, self._blocks
        num_used = blocks.num_blocks - blocks.num_free
        self._refreshed_at_s = self._clock.now_s()
        self._metrics.preempted(scheduler.num_preemptions - self._num_preemptions)
        self._num_preemptions = scheduler.num_preemptions
        self._metrics.set_queue(scheduler.num_running, scheduler.num_waiting)
        self._metrics.set_cache_usage(num_used, blocks.num_blocks)
        versions = self._adapters.infos()
        self._show_adapters(versions)
        self.view = View(
            names=self._adapters.names(),
            versions=versions,
            numbers={
                "at_s": self._refreshed_at_s,
                "running": scheduler.num_running,
                "waiting": scheduler.num_waiting,
                "used_blocks": num_used,
                "num_blocks": blocks.num_blocks,
                **{name: source() for name, source in self._sources.items()},
            },
        )

    def _show_adapters(self, versions: Iterable[VersionInfo]) -> None:
        """Show which adapters are asked for, by names that exist: others are anybody's text."""
        known = {info.adapter for info in versions}
        running, waiting = (
            known.intersection(model.partition("@")[0] for model in models)
            for models in self._scheduler.models()
        )
        self._metrics.set_adapters(running, waiting, self._adapters.num_slots)

    def _look(self) -> None:
        self._looked_at_s = self._clock.now_s()
        if self._make_state is not None:
            self._state = self._make_state()
