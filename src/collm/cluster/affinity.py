"""Where prompts, conversations and adapters were sent before: their caches are probably there."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from collm.cluster.routes import RouteRequest
from collm.types import VersionId

DEFAULT_MAX_ENTRIES = 65_536

_MAX_HOLDERS = 2
"""Replicas remembered per prefix, latest first; more would only crowd the candidates."""
_MAX_MESSAGES = 64
"""Messages of a conversation, from its end, whose prefixes are remembered or looked for."""

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Cached:
    """The longest beginning of a prompt that some replicas have computed."""

    holders: Mapping[str, VersionId | None]
    """Who has it, latest first, and the adapter version that it was computed with: under another
    one it is worth nothing."""
    num_bytes: int
    """Its texts' bytes; exact if it was a whole prompt, else a guess."""


NOT_CACHED = Cached({}, 0)


@dataclass(frozen=True, slots=True)
class _Prefix:
    holders: tuple[tuple[str, int, VersionId | None], ...]
    """(replica, life of its cache, version), latest first."""
    num_bytes: int


class Affinity:
    """Bounded memory of where things went; what was not used longest is forgotten.

    Args:
        max_entries: Most prefixes, and most sessions, that are remembered.
    """

    def __init__(self, max_entries: int = DEFAULT_MAX_ENTRIES) -> None:
        self._prefixes: _Recent[tuple[str, int], _Prefix] = _Recent(max_entries)
        self._sessions: _Recent[tuple[str, str], str] = _Recent(max_entries)
        self._models: _Recent[str, str] = _Recent(max_entries)
        self._lives: dict[str, int] = {}

    def add(self, request: RouteRequest, replica_id: str, version: VersionId | None) -> None:
        """Remember that a request went to a replica, to be answered by ``version``."""
        self._models.put(request.model, replica_id)
        if request.session is not None:
            self._sessions.put((request.model, request.session), replica_id)
        holder = (replica_id, self._lives.get(replica_id, 0), version)
        num_messages = len(request.prefix_hashes)
        for index in range(max(0, num_messages - _MAX_MESSAGES), num_messages):
            key = (request.model, request.prefix_hashes[index])
            known = self._prefixes.get(key)
            if known is None or index == num_messages - 1:
                num_bytes = request.num_prompt_bytes * (index + 1) // num_messages
            else:
                num_bytes = known.num_bytes
            others = () if known is None else known.holders
            holders = (holder, *(other for other in others if other[0] != replica_id))
            self._prefixes.put(key, _Prefix(holders[:_MAX_HOLDERS], num_bytes))

    def cached(self, request: RouteRequest) -> Cached:
        """Return the longest known beginning of a request's prompt."""
        for prefix_hash in request.prefix_hashes[: -_MAX_MESSAGES - 1 : -1]:
            known = self._prefixes.get((request.model, prefix_hash))
            if known is None:
                continue
            holders = {
                replica_id: version
                for replica_id, life, version in known.holders
                if life == self._lives.get(replica_id, 0)
            }
            if holders:
                return Cached(holders, min(known.num_bytes, request.num_prompt_bytes))
        return NOT_CACHED

    def forget(self, replica_id: str) -> None:
        """Note that a replica's cache is lost."""
        self._lives[replica_id] = self._lives.get(replica_id, 0) + 1

    def session_home(self, request: RouteRequest) -> str | None:
        """Return the replica that a request's conversation was sent to last."""
        if request.session is None:
            return None
        return self._sessions.get((request.model, request.session))

    def latest(self, model: str) -> str | None:
        """Return the replica that a request for ``model`` was sent to last."""
        return self._models.get(model)


class _Recent(Generic[_K, _V]):
    """A mapping that keeps what was put last."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[_K, _V] = OrderedDict()

    def get(self, key: _K) -> _V | None:
        return self._entries.get(key)

    def put(self, key: _K, value: _V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
