"""The simulated front: chooses a replica for each request and hears of the answers."""

import math
from collections.abc import Mapping, Sequence
from random import Random

from collm.cluster.lanes import SentLoad, Ticket
from collm.cluster.prediction import Standing
from collm.cluster.router import Router
from collm.cluster.routes import OUTPUT_TOKENS_GUESS, RouteRequest, Turned
from collm.cluster.sent import Sent
from collm.cluster.table import ReplicaTable
from collm.sim.config import SimConfig
from collm.sim.replica import Glance, SimReplica
from collm.sim.requests import SimRequest
from collm.sim.versions import ADAPTER
from collm.types import ReplicaSnapshot


class CurrentSent(Sent):
    """The front's book; a replica does what is due before its page is read.

    So replicas need not be looked at whenever a token or an answer may be ready: nobody else hears
    of these.

    Args:
        replicas: The cluster, by name.
    """

    def __init__(self, replicas: Mapping[str, SimReplica]) -> None:
        super().__init__()
        self._replicas = replicas

    def load(self, replica_id: str, taken_at_s: float, now_s: float) -> SentLoad:
        """Return what to add to a replica's snapshot that was taken at ``taken_at_s``."""
        self._replicas[replica_id].loop.advance(now_s)
        return super().load(replica_id, taken_at_s, now_s)


class GlanceTable(ReplicaTable):
    """The front's table; a snapshot is written up when it is read, or when it changes the pools.

    At a request a second two of three are never read. Where it is sure beforehand that one changes
    no pool, it is not even taken before it is read: then the replica does what was due until the
    poll, is looked at, and goes on.

    Args:
        replicas: The cluster, by name.
        changes_s: When replicas' own data change, and with them what they say of their quality.
    """

    def __init__(self, replicas: Mapping[str, SimReplica], changes_s: float = math.inf) -> None:
        super().__init__()
        self._replicas = replicas
        self._unread: dict[str, Glance] = {}
        self._pooled: dict[str, Glance] = {}  # those that pools were made from
        self._changes_s = changes_s
        self._same_until_s = dict.fromkeys(replicas, -math.inf)
        self._looked_at_s = dict.fromkeys(replicas, -math.inf)
        self._polled_at_s = -math.inf

    def __getitem__(self, replica_id: str) -> ReplicaSnapshot:
        return self.standing(replica_id).snapshot

    def standing(self, replica_id: str) -> Standing:
        """Return what predictions need of a replica; ``KeyError`` if it is not here."""
        if self._looked_at_s[replica_id] < self._polled_at_s:
            self._catch_up(self._replicas[replica_id], self._polled_at_s)
        glance = self._unread.pop(replica_id, None)
        if glance is not None:
            self.put(self._replicas[replica_id].write_up(glance))
        return super().standing(replica_id)

    def poll(self, now_s: float) -> None:
        """Take in how all replicas stand now.

        Nothing may be told to any of them but requests, for which its standing was read.
        """
        if self._polled_at_s < self._changes_s <= now_s:
            self._same_until_s = dict.fromkeys(self._replicas, -math.inf)
        self._polled_at_s = now_s
        for name, same_until_s in self._same_until_s.items():
            if same_until_s <= now_s:
                replica = self._replicas[name]
                self._catch_up(replica, now_s)
                self._same_until_s[name] = replica.same_until_s(now_s)

    def _catch_up(self, replica: SimReplica, now_s: float) -> None:
        assert replica.loop.came_to_s <= now_s, "somebody spoke to it before it was looked at"
        replica.loop.advance(now_s)
        self.look_at(replica, now_s)
        self._looked_at_s[replica.name] = now_s

    def look_at(self, replica: SimReplica, now_s: float) -> None:
        """Take in how a replica stands now."""
        glance, pooled = replica.glance(now_s), self._pooled.get(replica.name)
        if (
            pooled is not None
            and pooled.adapter is glance.adapter
            and pooled.is_draining == glance.is_draining
        ):
            self._unread[replica.name] = glance
            return
        self._pooled[replica.name] = glance
        self._unread.pop(replica.name, None)
        self.put(replica.write_up(glance))

    def drop(self, replica_id: str) -> None:
        """Forget a replica, if it is known."""
        self._pooled.pop(replica_id, None)
        self._unread.pop(replica_id, None)
        super().drop(replica_id)


class RouterDispatcher:
    """The cluster's router, its table and its book, as in ``server.front``.

    Args:
        config: Of the router, and what requests say; the seed draws candidates.
        bytes_per_token: Of prompts.
        replicas: The cluster, by name.
    """

    def __init__(
        self, config: SimConfig, bytes_per_token: float, replicas: Mapping[str, SimReplica]
    ) -> None:
        self.router = Router(config.router, Random(f"{config.seed}/router"))
        drift_at_s = config.mix.drift_at_s
        self.table = GlanceTable(replicas, math.inf if drift_at_s is None else drift_at_s)
        self.sent = CurrentSent(replicas)
        self._bytes_per_token = bytes_per_token
        self._says_lengths = config.says_lengths

    def choose(self, request: SimRequest, now_s: float) -> tuple[str, Ticket | None] | None:
        """Return a replica, and the front's note of the request; ``None`` turns it away."""
        asked = RouteRequest(
            model=ADAPTER,
            num_prompt_bytes=int(request.num_prompt_tokens * self._bytes_per_token),
            num_output_tokens_guess=(
                request.num_output_tokens if self._says_lengths else OUTPUT_TOKENS_GUESS
            ),
        )
        choice = self.router.choose(asked, self.table, self.sent, now_s)
        if isinstance(choice, Turned):
            return None
        return choice.replica_id, self.sent.add(asked, choice, now_s)

    def poll(self, now_s: float) -> None:
        """Take in the snapshots of all replicas, to which nobody else speaks."""
        self.table.poll(now_s)

    def observe(self, replica: SimReplica, now_s: float) -> None:
        """Take in a replica's snapshot."""
        self.table.look_at(replica, now_s)

    def lose(self, replica_id: str) -> None:
        """Forget a replica until its next snapshot."""
        self.table.drop(replica_id)
        self.sent.forget(replica_id)


class RoundRobin:
    """Serving replicas in turn, whatever they have to do."""

    def __init__(self, replica_ids: Sequence[str]) -> None:
        self._ids = list(replica_ids)
        self._place = 0

    def choose(self, request: SimRequest, now_s: float) -> tuple[str, Ticket | None] | None:
        """Return the replica whose turn it is."""
        if not self._ids:
            return None
        self._place = (self._place + 1) % len(self._ids)
        return self._ids[self._place], None

    def poll(self, now_s: float) -> None:
        """Do nothing: all are there, and how they stand is of no interest."""

    def observe(self, replica: SimReplica, now_s: float) -> None:
        """Take note that a replica is there."""
        if replica.role.serves and replica.name not in self._ids:
            self._ids.append(replica.name)

    def lose(self, replica_id: str) -> None:
        """Take a replica out of the turns."""
        if replica_id in self._ids:
            self._ids.remove(replica_id)
