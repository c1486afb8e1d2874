"""Replicas in virtual time behind a real router: honest, lying and hung ones."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from collm.cluster.lanes import Ticket
from collm.cluster.router import Router
from collm.cluster.routes import Choice, RouteRequest
from collm.cluster.sent import Sent
from collm.cluster.table import ReplicaTable
from collm.server.prompt_ratio import PromptRatio
from collm.types import ReplicaSnapshot
from factories.snapshots import COEFFICIENTS, make_snapshot

SNAPSHOT_EVERY_S = 0.2
NUM_TEMPLATE_TOKENS = 31
_BYTES_PER_TOKEN = 4.3
_CHUNK = 128


@dataclass
class Stream:
    """One request inside a replica."""

    ticket: Ticket
    arrived_at_s: float
    num_prefill: int
    num_output: int
    first_token_at_s: float | None = None


@dataclass
class FakeReplica:
    """Computes steps at ``slowness`` times the cost that its snapshots claim.

    One that ``claims_idle`` reports no load whatever it has; one that ``is_hung`` computes nothing.
    One that ``has_cache`` has cached what the router believes. Snapshots further say what is in
    ``claims``, such as a quality. Training takes up to ``quantum_s`` between two steps. With
    ``lengths`` a prompt's true tokens are counted, and snapshots say what these tell of bytes.
    """

    replica_id: str
    slowness: float = 1.0
    claims_idle: bool = False
    is_hung: bool = False
    has_cache: bool = True
    claims: Mapping[str, Any] = field(default_factory=dict)
    quantum_s: float = 0.0
    lengths: PromptRatio | None = None
    random: Random = field(default_factory=lambda: Random(0))
    streams: list[Stream] = field(default_factory=list)
    ended: list[Stream] = field(default_factory=list)
    free_at_s: float = 0.0

    def snapshot(self, now_s: float) -> ReplicaSnapshot:
        streams = [] if self.claims_idle else self.streams
        lengths = {}
        if self.lengths is not None:
            lengths["bytes_per_token"] = self.lengths.bytes_per_token
            lengths["num_template_tokens"] = self.lengths.num_template_tokens
        return make_snapshot(
            self.replica_id,
            taken_at_s=now_s,
            num_running=len(streams),
            queued_prefill_tokens=sum(one.num_prefill for one in streams),
            num_context_tokens=100 * len(streams),
            **{**lengths, **self.claims},
        )

    def num_prefill(self, request: RouteRequest, choice: Choice) -> int:
        """Take in a prompt; return its tokens that are not cached: of the template all are."""
        if self.lengths is not None:
            num_text = round(request.num_prompt_bytes / _BYTES_PER_TOKEN)
            self.lengths.observe(request.num_prompt_bytes, num_text + NUM_TEMPLATE_TOKENS)
            return num_text + 1
        return choice.num_prefill_tokens if self.has_cache else choice.num_prompt_tokens

    def advance(self, to_s: float, sent: Sent) -> None:
        """Compute every step that starts before ``to_s``."""
        while self.streams and self.free_at_s < to_s and not self.is_hung:
            decoding = [one for one in self.streams if one.num_prefill == 0]
            budget, num_prefilled, last = _CHUNK, 0, []
            for one in self.streams:
                taken = min(one.num_prefill, budget)
                budget -= taken
                num_prefilled += taken
                one.num_prefill -= taken
                if taken and one.num_prefill == 0:
                    last.append(one)
            self.free_at_s += self.slowness * (
                COEFFICIENTS.constant_s
                + COEFFICIENTS.decode_s * len(decoding)
                + COEFFICIENTS.prefill_s * num_prefilled
            )
            self.free_at_s += self.random.uniform(0.0, self.quantum_s)
            for one in (*decoding, *last):
                self._emit(one, sent)

    def _emit(self, stream: Stream, sent: Sent) -> None:
        if stream.first_token_at_s is None:
            stream.first_token_at_s = self.free_at_s
            sent.started(stream.ticket, self.free_at_s)
        stream.num_output -= 1
        if stream.num_output == 0:
            self.streams.remove(stream)
            self.ended.append(stream)
            sent.finished(stream.ticket, self.free_at_s)


class FakeFleet:
    """A front's loop: snapshots every 0.2 s, requests as they arrive."""

    def __init__(self, router: Router, replicas: list[FakeReplica]) -> None:
        self.router, self.replicas = router, {one.replica_id: one for one in replicas}
        self.sent = Sent()
        self.table = ReplicaTable([one.snapshot(0.0) for one in replicas])
        self.counts: Counter[str] = Counter()
        self.now_s = 0.0
        self._next_snapshot_s = SNAPSHOT_EVERY_S

    def play(self, request: RouteRequest, per_s: float, duration_s: float, seed: int = 0) -> None:
        """Send copies of a request at random times."""
        rng, end_s = Random(seed), self.now_s + duration_s
        while (arrival_s := self.now_s + rng.expovariate(per_s)) < end_s:
            self._advance(arrival_s)
            self.send(request)
        self._advance(end_s)

    def send(self, request: RouteRequest) -> Choice:
        """Route one request now."""
        choice = self.router.choose(request, self.table, self.sent, self.now_s)
        assert isinstance(choice, Choice)
        ticket = self.sent.add(request, choice, self.now_s)
        replica = self.replicas[choice.replica_id]
        replica.free_at_s = max(replica.free_at_s, self.now_s if not replica.streams else 0.0)
        num_prefill = replica.num_prefill(request, choice)
        stream = Stream(ticket, self.now_s, num_prefill, request.num_output_tokens_guess)
        replica.streams.append(stream)
        self.counts[choice.replica_id] += 1
        return choice

    def met_share(self, ttft_s: float = 0.8) -> float:
        """Return the share of all requests whose first token came in time."""
        ended = [s for one in self.replicas.values() for s in (*one.ended, *one.streams)]
        met = [
            s
            for s in ended
            if s.first_token_at_s is not None and s.first_token_at_s - s.arrived_at_s <= ttft_s
        ]
        return len(met) / len(ended)

    def _advance(self, to_s: float) -> None:
        while self._next_snapshot_s <= to_s:
            self._compute(self._next_snapshot_s)
            for replica in self.replicas.values():
                self.table.put(replica.snapshot(self.now_s))
            self._next_snapshot_s += SNAPSHOT_EVERY_S
        self._compute(to_s)

    def _compute(self, to_s: float) -> None:
        for replica in self.replicas.values():
            replica.advance(to_s, self.sent)
        self.now_s = to_s
