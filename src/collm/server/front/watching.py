"""What becomes of calls to a replica that hangs: one that is killed cuts them by itself."""

import asyncio
import logging
from typing import NoReturn

from collm.server.front.front import Front

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_HUNG_AFTER_S = 10.0
"""A replica that has not said how it stands for so long will not finish its answers either. Shorter
silences happen when its machine has much else to do."""


async def watch(front: Front) -> NoReturn:
    """Break off calls to replicas that hang, and let go of replicas that left; never ends."""
    while True:
        cut_hung(front)
        await asyncio.sleep(_LOOK_EVERY_S)


def cut_hung(front: Front) -> None:
    """Break off the calls to replicas that were silent for too long, and forget those that left."""
    members, pool = front.registry.members(), front.pool
    for member in members:
        if not member.is_live and (member.silent_s or 0.0) > _HUNG_AFTER_S:
            num_cut = pool.cut(member.endpoint.url)
            if num_cut:
                replica_id = member.endpoint.replica_id
                _log.warning("replica %s: hangs; %d calls ended", replica_id, num_cut)
    pool.keep_only({member.endpoint.url for member in members})
