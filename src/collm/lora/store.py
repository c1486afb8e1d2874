"""Versions of adapters on the device: names, slots, pins; promotion is one assignment.

A version takes a slot when it is staged and gives it back when it is neither staged, nor active,
nor held for rollback, nor kept for an operator, nor pinned by a request. Its cached keys and values
are evicted before the slot is free. Requests can name a version from its promotion, or from when it
is kept, until it is freed or unloaded.
"""

from collections.abc import Callable
from dataclasses import dataclass

from collm.errors import AdapterError, UnknownAdapterError
from collm.lora.bank import AdapterBank
from collm.lora.state import AdapterState
from collm.lora.terms import Terms
from collm.types import BASE, BASE_SLOT, Binding, VersionId, VersionInfo


def version_id(adapter: str, label: str) -> VersionId:
    """Return ``NAME@LABEL``."""
    return VersionId(f"{adapter}@{label}")


@dataclass(slots=True)
class _Loaded:
    """A version that occupies a slot."""

    adapter: str
    slot: int
    state: AdapterState
    digest: str
    metadata: dict[str, str]
    num_pins: int = 0
    is_public: bool = False
    """Whether requests can name it: it was promoted or kept, and its adapter not unloaded since."""
    is_kept: bool = False
    """Whether an operator wants it here, active or not."""


class AdapterStore:
    """Owner of every loaded version; used by the step loop's thread alone."""

    def __init__(
        self, bank: AdapterBank, base_model: str, on_freed: Callable[[VersionId], None]
    ) -> None:
        """Serve versions out of ``bank``.

        Args:
            bank: Device memory of the slots.
            base_model: Name by which users ask for the bare base model.
            on_freed: Called with a version about to lose its slot; must drop its cached blocks.
        """
        self._bank = bank
        self._base_model = base_model
        self._terms = Terms(bank.layout, base_model)
        self._on_freed = on_freed
        self._free_slots = list(reversed(range(bank.num_slots)))
        self._loaded: dict[VersionId, _Loaded] = {}
        self._active: dict[str, VersionId] = {}
        self._held: dict[str, VersionId] = {}
        self._first: dict[str, VersionId] = {}
        """By adapter, the version that took the place of the bare base model."""
        self._staged: dict[str, VersionId] = {}
        self._announced: set[str] = set()

    # Requests

    def is_version(self, model: str) -> bool:
        """Return whether ``model`` is the name of a loaded version."""
        return model in self._loaded

    def pin(self, model: str) -> Binding:
        """Bind a request to what ``model`` names now, until ``unpin``.

        Raises:
            UnknownAdapterError: No such adapter or version is loaded.
        """
        version = self.resolve(model)
        if version == BASE:
            return Binding(BASE, BASE_SLOT)
        loaded = self._loaded[version]
        loaded.num_pins += 1
        return Binding(version, loaded.slot)

    def unpin(self, binding: Binding) -> None:
        """End a binding; the last one of a version nobody needs any more frees its slot."""
        if binding.version == BASE:
            return
        loaded = self._loaded[binding.version]
        assert loaded.num_pins > 0, binding
        loaded.num_pins -= 1
        self._free_if_unused(binding.version)

    def resolve(self, model: str) -> VersionId:
        """Return the version that ``model`` (base id, ``NAME`` or ``NAME@LABEL``) names now.

        An announced adapter names the base until its first promotion.
        """
        if model == self._base_model or (model in self._announced and model not in self._active):
            return BASE
        version = self._active.get(model, VersionId(model))
        loaded = self._loaded.get(version)
        if loaded is None or not loaded.is_public:
            raise UnknownAdapterError(
                f"model {model!r} does not exist; available: {', '.join(self.names())}"
            )
        return version

    def names(self) -> tuple[str, ...]:
        """Return everything ``resolve`` accepts: the base, adapters, then their loaded versions."""
        versions = sorted(version for version, loaded in self._loaded.items() if loaded.is_public)
        return (self._base_model, *sorted(self._announced | self._active.keys()), *versions)

    # Versions

    def announce(self, adapter: str) -> None:
        """Let requests name an adapter that has no version yet, as one that is still learned.

        A fresh adapter changes nothing, so the base serves them until the first promotion.

        Raises:
            AdapterError: No adapter can have this name.
        """
        self._terms.check_name(adapter)
        self._announced.add(adapter)

    def retract(self, adapter: str) -> None:
        """Undo ``announce``: what is no longer learned, and has no version, names nothing."""
        self._announced.discard(adapter)

    def try_stage(
        self,
        adapter: str,
        version: VersionId,
        state: AdapterState,
        metadata: dict[str, str] | None = None,
        digest: str | None = None,
    ) -> bool:
        """Copy ``state`` into a free slot, to be promoted; return ``False`` when none is free.

        A version staged before and not yet promoted gives way to this one, unless there is no slot
        for it even so. A version that is loaded already is kept until it is promoted or replaced.
        ``digest`` is the state's, for callers that know it: hashing takes milliseconds.

        Raises:
            AdapterError: The state cannot be served here, ``version`` is not ``ADAPTER@LABEL``, or
                it is loaded with other content.
        """
        if not version.startswith(f"{adapter}@") or version == f"{adapter}@":
            raise AdapterError(f"version {version!r} must be named {adapter}@LABEL")
        is_known = version in self._loaded
        if not is_known and not self._free_slots and not self._staged_gives_slot(adapter):
            return False
        self._terms.check(adapter, state)
        digest = digest or state.digest()
        if is_known:
            self._check_same(version, digest)
            self._replace_staged(adapter, version)
            return True
        self._replace_staged(adapter, None)
        self._load(adapter, version, state, metadata or {}, digest)
        self._staged[adapter] = version
        return True

    def try_keep(
        self,
        adapter: str,
        version: VersionId,
        state: AdapterState,
        metadata: dict[str, str] | None = None,
        digest: str | None = None,
    ) -> bool:
        """Let requests name a version until ``release``; return ``False`` when no slot is free.

        Raises:
            AdapterError: The state cannot be served here, or the version is loaded with other
                content.
        """
        if version not in self._loaded and not self._free_slots:
            return False
        self._terms.check(adapter, state)
        digest = digest or state.digest()
        if version in self._loaded:
            self._check_same(version, digest)
        else:
            self._load(adapter, version, state, metadata or {}, digest)
        loaded = self._loaded[version]
        loaded.is_kept = loaded.is_public = True
        return True

    def release(self, version: VersionId) -> None:
        """Undo ``try_keep``; no effect on a version that is not kept."""
        loaded = self._loaded.get(version)
        if loaded is not None and loaded.is_kept:
            loaded.is_kept = False
            self._free_if_unused(version)

    def promote(self, version: VersionId) -> None:
        """Make a loaded version the one that new requests to its adapter bind to.

        The version active before is held for rollback; one held before that may be freed.

        Raises:
            UnknownAdapterError: The version is not loaded.
        """
        loaded = self._known(version)
        adapter = loaded.adapter
        if self._staged.get(adapter) == version:
            del self._staged[adapter]
        previous = self._active.get(adapter)
        if previous == version:
            return
        if previous is None:
            self._first[adapter] = version
        self._active[adapter] = version
        loaded.is_public = True
        dropped = self._held.pop(adapter, None)
        if previous is not None:
            self._held[adapter] = previous
        if dropped is not None:
            self._free_if_unused(dropped)

    def rollback(self, adapter: str) -> VersionId:
        """Make the version that was active before the last promotion active again; return it.

        Before the first version there was the base: then the adapter has no active version, and its
        name, if it is announced, means the base.

        Raises:
            UnknownAdapterError: There is no such adapter, or nothing is held for it.
        """
        bad, held = self._active.get(adapter), self.before(adapter)
        if held is None or bad is None:
            raise UnknownAdapterError(
                f"adapter {adapter!r} has no earlier version to roll back to; "
                f"available: {', '.join(self.names())}"
            )
        self._held.pop(adapter, None)
        if held == BASE:
            del self._active[adapter]
        else:
            self._active[adapter] = held
        self._free_if_unused(bad)
        return held

    def before(self, adapter: str) -> VersionId | None:
        """Return what ``rollback`` would return to, ``BASE`` included; ``None`` if it cannot."""
        active, held = self._active.get(adapter), self._held.get(adapter)
        if held is None and active is not None and active == self._first.get(adapter):
            return BASE
        return held

    def return_to_base(self, adapter: str) -> None:
        """Make no version of an adapter active, and hold none, whatever was served before.

        Its name, if it is announced, means the base.
        """
        for names in (self._active, self._held):
            version = names.pop(adapter, None)
            if version is not None:
                self._free_if_unused(version)

    def set_first(self, adapter: str, version: VersionId) -> None:
        """Say which version took the place of the base, as whoever promoted it before recalls."""
        self._first[adapter] = version

    def unload(self, adapter: str) -> None:
        """Stop serving an adapter; running requests keep their version to their end.

        Raises:
            UnknownAdapterError: None of the adapter's versions is served.
        """
        versions = [v for v, loaded in self._loaded.items() if loaded.adapter == adapter]
        if not any(self._loaded[version].is_public for version in versions):
            raise UnknownAdapterError(
                f"adapter {adapter!r} is not loaded; available: {', '.join(self.names())}"
            )
        self._announced.discard(adapter)
        for names in (self._active, self._held, self._first, self._staged):
            names.pop(adapter, None)
        for version in versions:
            self._loaded[version].is_public = self._loaded[version].is_kept = False
            self._free_if_unused(version)

    def active(self, adapter: str) -> VersionId | None:
        """Return the adapter's active version, if it has one."""
        return self._active.get(adapter)

    def state(self, version: VersionId) -> AdapterState:
        """Return a loaded version's parameters; raises ``UnknownAdapterError``."""
        return self._known(version).state

    def metadata(self, version: VersionId) -> dict[str, str]:
        """Return what is kept beside a loaded version; raises ``UnknownAdapterError``."""
        return self._known(version).metadata

    def infos(self) -> tuple[VersionInfo, ...]:
        """Return every loaded version, by name."""
        return tuple(
            VersionInfo(
                version=version,
                adapter=loaded.adapter,
                digest=loaded.digest,
                rank=loaded.state.layout.rank,
                slot=loaded.slot,
                num_pins=loaded.num_pins,
                is_active=self._active.get(loaded.adapter) == version,
                metadata=loaded.metadata,
            )
            for version, loaded in sorted(self._loaded.items())
        )

    @property
    def num_slots(self) -> int:
        """Slots there are."""
        return self._bank.num_slots

    @property
    def num_free_slots(self) -> int:
        """Slots that hold no version."""
        return len(self._free_slots)

    def occupants(self) -> str:
        """Return what holds the slots, and why, for people."""
        return ", ".join(f"{version} ({self._use_of(version)})" for version in sorted(self._loaded))

    def _use_of(self, version: VersionId) -> str:
        loaded = self._loaded[version]
        uses = {
            "active": self._active.get(loaded.adapter) == version,
            "held for rollback": self._held.get(loaded.adapter) == version,
            "staged": self._staged.get(loaded.adapter) == version,
            "pinned": loaded.is_kept,
            f"{loaded.num_pins} requests": loaded.num_pins > 0,
        }
        return ", ".join(use for use, is_so in uses.items() if is_so)

    def _load(
        self,
        adapter: str,
        version: VersionId,
        state: AdapterState,
        metadata: dict[str, str],
        digest: str,
    ) -> None:
        slot = self._free_slots.pop()
        self._bank.load(slot, state)
        self._loaded[version] = _Loaded(adapter, slot, state, digest, metadata)

    def _check_same(self, version: VersionId, digest: str) -> None:
        if self._loaded[version].digest != digest:
            raise AdapterError(f"version {version} exists already with other content")

    def _known(self, version: VersionId) -> _Loaded:
        try:
            return self._loaded[version]
        except KeyError:
            raise UnknownAdapterError(
                f"version {version!r} is not loaded; available: {', '.join(self.names())}"
            ) from None

    def _staged_gives_slot(self, adapter: str) -> bool:
        """Return whether a slot becomes free when another version is staged."""
        staged = self._staged.get(adapter)
        return staged is not None and not self._is_in_use(staged)

    def _replace_staged(self, adapter: str, version: VersionId | None) -> None:
        previous = self._staged.pop(adapter, None)
        if version is not None:
            self._staged[adapter] = version
        if previous is not None:
            self._free_if_unused(previous)

    def _is_in_use(self, version: VersionId) -> bool:
        """Return whether a version is needed, apart from being staged."""
        loaded = self._loaded[version]
        adapter = loaded.adapter
        kept = (self._active.get(adapter), self._held.get(adapter))
        return version in kept or loaded.is_kept or loaded.num_pins > 0

    def _free_if_unused(self, version: VersionId) -> None:
        loaded = self._loaded[version]
        if self._is_in_use(version) or self._staged.get(loaded.adapter) == version:
            return
        self._on_freed(version)
        del self._loaded[version]
        self._free_slots.append(loaded.slot)
