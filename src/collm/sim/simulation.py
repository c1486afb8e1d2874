"""One run of a simulated cluster, from the first arrival to the last answer."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from collm.errors import ConfigError
from collm.federated.rounds import RoundStatus
from collm.metrics.goodput import paper_quality
from collm.metrics.records import RequestRecord
from collm.sim.assembly import build_replica
from collm.sim.config import SimConfig
from collm.sim.events import EventQueue, Rank
from collm.sim.faults import Fault
from collm.sim.front import RoundRobin, RouterDispatcher
from collm.sim.garbage import no_collector
from collm.sim.log import OpenRequest
from collm.sim.planning import Deliberation, SimPlanner
from collm.sim.policies import Policy
from collm.sim.profile import Profile
from collm.sim.records import OnRecord, RecordOrder
from collm.sim.replica import SimReplica
from collm.sim.requests import Mix, SimRequest
from collm.sim.rounds import SimRounds
from collm.sim.tally import Tally
from collm.sim.trainer import Weights
from collm.sim.versions import ADAPTER, Version
from collm.types import RequestId, VersionId

_STRIDE_S = 1.0
"""A replica that answers the rest is moved on by so much at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a cluster stood at the end of the observation."""

    duration_s: float
    training_tokens: Mapping[str, int]
    """Trained on by each replica, finished optimizer steps alone."""
    seconds: Mapping[str, Mapping[str, float]]
    """Where each replica's time went, by kind of work."""
    knowledge: tuple[float, ...]
    """Of the best adapter that is served."""
    num_promotions: int
    """Versions promoted, over all replicas."""
    rounds: Mapping[RoundStatus, int]
    """How many ended how."""


class Simulation:
    """A cluster on a virtual clock; runs once.

    Args:
        profile: The device of every replica, but for its ``slowness``.
        policy: How replicas share their time.
        config: The cluster and its circumstances.
        on_record: Called with each request's record, in the order in which they end.
        final: Knowledge that a policy which ``starts_final`` serves.
        deliberation: What plans for a coordinated policy.
    """

    def __init__(
        self,
        profile: Profile,
        policy: Policy,
        config: SimConfig,
        *,
        on_record: OnRecord | None = None,
        final: tuple[float, ...] | None = None,
        deliberation: Deliberation | None = None,
    ) -> None:
        for fault in config.faults:
            if fault.replica >= config.num_replicas:
                raise ConfigError(f"{fault}: there are {config.num_replicas} replicas")
        self._profile = profile
        self._config = config
        self._records = None if on_record is None else RecordOrder(on_record)
        self._queue = EventQueue()
        self._num_open = 0
        self._is_over = False
        self._arrivals: Iterator[SimRequest] = iter(())
        first = Version(VersionId(f"{ADAPTER}@0"), _start(config, policy, final))
        self.replicas = self._build(policy, first)
        self.tallies = {name: Tally(config.pacing) for name in self.replicas}
        """Figures of each replica's requests."""
        self.turned_away = Tally(config.pacing)
        """Figures of requests that no replica got."""
        self._dispatcher: RouterDispatcher | RoundRobin
        if policy.routes == "router":
            self._dispatcher = RouterDispatcher(config, profile.bytes_per_token, self.replicas)
        else:
            self._dispatcher = RoundRobin([n for n, r in self.replicas.items() if r.role.serves])
        self.planner: SimPlanner | None = None
        is_planned = config.planning.policy == "adaptive" and policy.is_coordinated
        if is_planned and isinstance(self._dispatcher, RouterDispatcher):
            self.planner = SimPlanner(
                config.planning,
                self.replicas,
                self._dispatcher,
                self._queue,
                deliberation or Deliberation(),
            )
        self.rounds: SimRounds | None = None
        if config.rounds is not None and policy.learns:
            random = Random(f"{config.seed}/rounds")
            self.rounds = SimRounds(
                config.rounds, self.replicas, first, self._queue, random, self.planner
            )

    def run(self, requests: Iterable[SimRequest], duration_s: float) -> RunEnd:
        """Let requests arrive, and go on until all have ended or waited too long.

        Args:
            requests: In order of arrival, none after ``duration_s``.
            duration_s: Length of the observation.

        Returns:
            How things stood at the end of the observation: what is trained later does not count.
        """
        queue = self._queue
        self._arrivals = iter(requests)
        for fault in self._config.faults:
            queue.put(fault.at_s, Rank.FAULT, partial(self._suffer, fault))
        queue.put(0.0, Rank.SNAPSHOT, self._observe)
        if self.rounds is not None:
            self.rounds.start()
        if self.planner is not None:
            self.planner.start()
        self._await_arrival()
        with no_collector():
            while queue.next_s <= duration_s:
                queue.run_next()
            end = self._stand(duration_s)
            limit_s = duration_s + self._config.drain_s
            if self._is_steady:
                self._answer_rest(duration_s, limit_s)
            else:
                self._go_on_until_answered(limit_s)
            self._give_up(limit_s)
        return end

    def _build(self, policy: Policy, first: Version) -> dict[str, SimReplica]:
        config, num = self._config, self._config.num_replicas
        slowness = config.slowness or (1.0,) * num
        profiles = {factor: self._profile.slowed(factor) for factor in set(slowness)}
        replicas = (
            build_replica(
                index,
                policy.role(index, num),
                profiles[slowness[index]],
                config,
                own_weights(config.mix, index, num),
                first,
                self,
                learns_alone=config.rounds is None,
            )
            for index in range(num)
        )
        return {replica.name: replica for replica in replicas}

    # What happens

    def _await_arrival(self) -> None:
        request = next(self._arrivals, None)
        if request is not None:
            self._queue.put(request.at_s, Rank.ARRIVAL, partial(self._arrive, request))

    def _arrive(self, request: SimRequest, now_s: float) -> None:
        self._num_open += 1
        self._dispatch(request, now_s)
        self._await_arrival()

    def _dispatch(self, request: SimRequest, now_s: float) -> None:
        while (chosen := self._dispatcher.choose(request, now_s)) is not None:
            replica = self.replicas[chosen[0]]
            if replica.is_alive:
                replica.loop.submit(request, chosen[1], now_s)
                return
            self._dispatcher.lose(replica.name)  # no connection
        self._num_open -= 1
        self.turned_away.add(_rejected(request, now_s), 0.0, None)

    def _observe(self, now_s: float) -> None:
        """Take the snapshots of all replicas, as the front's registry does."""
        if self._config.fast_forward and self._is_steady:
            self._dispatcher.poll(now_s)
        else:
            self._look_at_all(now_s)
        if self._records is not None:
            self._records.release(min(one.loop.came_to_s for one in self.replicas.values()))
        self._queue.put(now_s + self._config.registry.poll_every_s, Rank.SNAPSHOT, self._observe)

    def _look_at_all(self, now_s: float) -> None:
        registry = self._config.registry
        for replica in self.replicas.values():
            if replica.answers(now_s):
                replica.loop.advance(now_s)
                self._dispatcher.observe(replica, now_s)
            elif replica.silent_s(now_s) > registry.dead_after_s - registry.poll_every_s:
                self._dispatcher.lose(replica.name)

    def _suffer(self, fault: Fault, now_s: float) -> None:
        list(self.replicas.values())[fault.replica].suffer(fault, now_s)

    def _stand(self, now_s: float) -> RunEnd:
        training_tokens = {}
        for replica in self.replicas.values():
            replica.loop.advance(now_s)
            trainer = replica.learner.trainer
            training_tokens[replica.name] = 0 if trainer is None else trainer.num_tokens
        best = max(
            (replica.learner.versions.active.knowledge for replica in self.replicas.values()),
            key=sum,
        )
        seconds = {name: one.loop.times.seconds() for name, one in self.replicas.items()}
        return RunEnd(
            duration_s=now_s,
            training_tokens=training_tokens,
            seconds=seconds,
            knowledge=best,
            num_promotions=sum(one.learner.num_promotions for one in self.replicas.values()),
            rounds={} if self.rounds is None else dict(self.rounds.outcomes),
        )

    @property
    def _is_steady(self) -> bool:
        """Whether nobody tells a replica anything but requests."""
        return self.rounds is None and self.planner is None and not self._config.faults

    def _answer_rest(self, now_s: float, limit_s: float) -> None:
        """Let each replica end what it has; what those do that have nothing counts no more."""
        for replica in self.replicas.values():
            at_s = now_s
            while replica.loop.has_requests and at_s < limit_s:
                at_s = min(at_s + _STRIDE_S, limit_s)
                replica.loop.advance(at_s)

    def _go_on_until_answered(self, limit_s: float) -> None:
        """Let everything go on until the last answer ends."""
        queue = self._queue
        while self._num_open and queue.next_s <= limit_s:
            for replica in self.replicas.values():
                if replica.loop.has_requests:
                    replica.loop.advance(queue.next_s)
            if self._num_open:
                queue.run_next()

    def _give_up(self, now_s: float) -> None:
        """End what is still open: it has missed its objectives, and nobody waits any longer."""
        self._is_over = True
        for replica in self.replicas.values():
            if replica.loop.has_requests:
                replica.loop.die(now_s)
        if self._records is not None:
            self._records.release(math.inf)

    # What the front hears

    def started(self, entry: OpenRequest, now_s: float) -> None:
        """Note a request's first token."""
        if entry.ticket is not None:
            entry.ticket.lane.start(entry.ticket, now_s)

    def ended(self, entry: OpenRequest, record: RequestRecord, replica_id: str) -> None:
        """Note a request's end; one that died before its first token is sent elsewhere."""
        assert record.ended_at_s is not None
        if entry.ticket is not None:
            entry.ticket.lane.finish(entry.ticket, record.ended_at_s)
        is_lost = record.outcome == "failed" and entry.first_token_at_s is None
        if is_lost and not self._is_over:
            self._dispatcher.lose(replica_id)
            self._dispatch(entry.request, record.ended_at_s)
            return
        self._num_open -= 1
        quality, score = 0.0, None
        if entry.version is not None:
            version = self.replicas[replica_id].learner.versions.known[entry.version]
            tokens = version.knowledge[entry.request.domain]
            quality = paper_quality(self._profile.loss.at(tokens))
            if entry.request.is_scored and self._profile.miss is not None:
                score = max(1.0 - self._profile.miss.at(tokens), 0.0)
        self.tallies[replica_id].add(record, quality, score)
        if self._records is not None:
            self._records.put(record, replica_id)


def _start(config: SimConfig, policy: Policy, final: tuple[float, ...] | None) -> tuple[float, ...]:
    """Return the knowledge of the adapter that is served at the start."""
    if policy.starts_final:
        if final is None:
            raise ConfigError(f"policy {policy.name} needs the adapter that another run ended with")
        return final
    mix = config.mix
    num_new = mix.num_domains_in_all - mix.num_domains
    return (config.warm_tokens,) * mix.num_domains + (0.0,) * num_new


def own_weights(mix: Mix, index: int, num_replicas: int) -> Weights:
    """Return a replica's own data: no two replicas share a domain while there are enough of them.

    A domain that appears later is everybody's.
    """
    num = mix.num_domains
    own = [d for d in range(num) if d % num_replicas == index] or [index % num]
    before = tuple(1.0 / len(own) if d in own else 0.0 for d in range(num))
    if mix.drift_at_s is None:
        return lambda now_s: before
    drift_at_s, share = mix.drift_at_s, mix.drift_share
    after = (*(weight * (1.0 - share) for weight in before), share)
    return lambda now_s: after if now_s >= drift_at_s else (*before, 0.0)


def _rejected(request: SimRequest, now_s: float) -> RequestRecord:
    return RequestRecord(
        request_id=RequestId(f"{request.number:09d}"),
        model=ADAPTER,
        arrived_at_s=request.at_s,
        num_prompt_tokens=request.num_prompt_tokens,
        outcome="rejected",
        ended_at_s=now_s,
    )
