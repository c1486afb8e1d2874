"""Figures of a front's replicas, for the dashboard: each is asked, and none is waited for long."""

import asyncio
import json
from collections.abc import Mapping

from collm.errors import CollmError
from collm.server.front.calls import make_call
from collm.server.front.front import Front

_TIMEOUT_S = 0.8
"""Within the second that a frame is about."""
_CALL = make_call("GET", "/control/snapshot")


class ReplicaFigures:
    """Asks every live replica; the others are shown as missing."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def figures(self) -> Mapping[str, object]:
        """Return what each replica shows."""
        members = self._front.registry.members()
        live = [member.endpoint.replica_id for member in members if member.is_live]
        found = await asyncio.gather(*map(self._ask, live))
        silent = dict.fromkeys(member.endpoint.replica_id for member in members)
        return silent | dict(zip(live, found, strict=True))

    async def _ask(self, replica_id: str) -> object:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                exchange = await self._front.start(replica_id, _CALL)
                try:
                    return json.loads(await exchange.read_all())
                finally:
                    exchange.close()
        except (CollmError, TimeoutError, ValueError):
            return None
