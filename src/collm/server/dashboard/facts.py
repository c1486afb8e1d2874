"""What changes seldom: adapters, decisions, jobs, rounds, the allocation; read for whoever watches.

They are kept in the stores, so that nothing is collected while nobody watches.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import quote

from collm.server.dashboard.events import event
from collm.server.dashboard.frames import encode
from collm.server.dashboard.own_api import OwnApi
from collm.server.dashboard.watchers import Watchers

_log = logging.getLogger(__name__)

PERIOD_S = 3.0
NUM_DECISIONS = 40
"""Decisions shown of each adapter, on each replica."""
NUM_VERSIONS = 30
"""Versions shown of each adapter."""
NUM_JOBS = 20
_PACE = ("progress", "estimated_finish")
NUM_EXPLAINED = 16
"""Replicas whose part of the allocation is explained."""
NUM_RATINGS = 100
"""Latest feedback that versions' ratings are taken from."""


class Facts:
    """Reads the facts while somebody watches, and passes them on when they changed.

    Args:
        api: The server's own.
        watchers: Get them.
        needs_key: Whether changing what is served takes the admin key.
    """

    def __init__(self, api: OwnApi, watchers: Watchers, *, needs_key: bool) -> None:
        self._api = api
        self._watchers = watchers
        self._needs_key = needs_key
        self._explained_number: int | None = None
        self._explanations_of_it: dict[str, list[str]] = {}
        self.latest: bytes | None = None
        """The event that a new watcher begins with; ``None`` before the first look."""

    async def run(self) -> NoReturn:
        """Look until cancelled; what fails once is tried again at the next look."""
        while True:
            await self._watchers.wait_for_one()
            try:
                await self.look()
            except Exception:
                _log.exception("the dashboard's facts could not be read")
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """Read everything once."""
        found = event("facts", encode(_plain(await self._read())))
        if found != self.latest:
            self.latest = found
            self._watchers.publish(found)

    async def _read(self) -> dict[str, Any]:
        get = self._api.get
        models, versions, jobs, feedback, cluster, allocation = await asyncio.gather(
            get("/v1/models"),
            get("/adapters"),
            get(f"/v1/fine_tuning/jobs?limit={NUM_JOBS}"),
            get(f"/v1/feedback?limit={NUM_RATINGS}"),
            get("/cluster"),
            get("/cluster/allocation"),
        )
        rows = (versions or {}).get("data", [])
        rounds = (cluster or {}).get("rounds", {})
        on_disk = {row["adapter"] for row in rows}
        names = sorted(on_disk | rounds.keys())
        history = await asyncio.gather(
            *(
                get(f"/adapters/{quote(name, safe='')}/history?limit={NUM_DECISIONS}")
                for name in names
            )
        )
        return {
            "model": _base_model(models),
            "needs_key": self._needs_key,
            "replicas": _replicas(cluster),
            "adapters": [
                {
                    "name": name,
                    "versions": _versions(row for row in rows if row["adapter"] == name),
                    "decisions": (found or {}).get("data", []),
                }
                for name, found in zip(names, history, strict=True)
            ],
            # Otherwise what is not here may be there all the same.
            "knows_adapters": versions is not None
            and not any(
                name in on_disk and found is None
                for name, found in zip(names, history, strict=True)
            ),
            "ratings": _ratings((feedback or {}).get("data", [])),
            "jobs": None if jobs is None else [_without_pace(job) for job in jobs["data"]],
            "rounds": rounds,
            "allocation": allocation,
            "explanations": await self._explanations(allocation),
        }

    async def _explanations(self, allocation: Mapping[str, Any] | None) -> dict[str, list[str]]:
        """Return why replicas have their part of the allocation, line by line."""
        number = (allocation or {}).get("number")
        if number == self._explained_number:
            return self._explanations_of_it
        names = sorted((allocation or {}).get("replicas", {}))[:NUM_EXPLAINED]
        found = await asyncio.gather(
            *(
                self._api.get(f"/cluster/allocation?replica={quote(name, safe='')}")
                for name in names
            )
        )
        # Asked once for each allocation: each answer takes trying what else could have been.
        self._explained_number = number
        self._explanations_of_it = {
            name: one["text"] for name, one in zip(names, found, strict=True) if one is not None
        }
        return self._explanations_of_it


def _base_model(models: Mapping[str, Any] | None) -> str | None:
    cards: Sequence[Mapping[str, Any]] = (models or {}).get("data", [])
    return next((card["id"] for card in cards if card.get("parent") is None), None)


def _replicas(cluster: Mapping[str, Any] | None) -> list[dict[str, Any]] | None:
    """Return the replicas of a cluster; ``None`` for a replica that serves alone."""
    if cluster is None:
        return None
    # How long one has been silent differs at every look; the frames say who is missing.
    kept = ("id", "is_live", "started_at_s")
    return [{name: row[name] for name in kept} for row in cluster["replicas"]]


def _versions(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return an adapter's versions, newest first, each once whatever replicas have it."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = found.setdefault(
            row["version"],
            {
                "version": row["version"],
                "published_at_s": row["published_at_s"],
                "rank": row["rank"],
                "active_on": [],
                "is_pinned": False,
            },
        )
        entry["published_at_s"] = entry["published_at_s"] or row["published_at_s"]
        entry["is_pinned"] = entry["is_pinned"] or row["is_pinned"]
        if row["is_active"]:
            entry["active_on"].append(row.get("replica", ""))
    newest = sorted(found.values(), key=lambda one: one["published_at_s"] or 0.0, reverse=True)
    is_active = [one for one in newest[NUM_VERSIONS:] if one["active_on"]]
    return newest[:NUM_VERSIONS] + is_active


def _without_pace(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job without what changes at every look: the frames say it."""
    return {name: value for name, value in job.items() if name not in _PACE}


def _ratings(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return, by version, the mean of what users gave its answers and how many did."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["rating"] is not None and not row["is_deleted"]:
            found.setdefault(str(row["version"]), []).append(row["rating"])
    return {
        version: {"mean": sum(ratings) / len(ratings), "num": len(ratings)}
        for version, ratings in found.items()
    }


def _plain(value: Any) -> Any:
    """Return JSON values of which browsers can read every number."""
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return None
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value
