"""What became of requests while replicas were killed. No torch, and no server."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from collm.metrics.records import RequestRecord
from collm.types import BASE, VersionId

SETTLED_S = 2.0
"""After a promotion, the time until which an answer of the version before is no fault."""
FLOWING_S = 10.0
"""An answer that got a token so shortly before its client's patience ended does not hang."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A request that ended, on the wall clock, which the front's decisions are dated by."""

    record: RequestRecord
    arrived_at_s: float
    ended_at_s: float


@dataclass(frozen=True, slots=True)
class Promotion:
    """A version that became active everywhere, and when that was decided."""

    decided_at_s: float
    version: VersionId


@dataclass(frozen=True, slots=True)
class Stall:
    """The whole machine stood still: what was under way then says nothing of the server."""

    begun_at_s: float
    ended_at_s: float


@dataclass(frozen=True, slots=True)
class Look:
    """How things stood at a time."""

    at_s: float
    num_live: int | None
    """Replicas that the front had heard; ``None`` when it did not say."""
    load: float
    """The machine's load average over its cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A request that did not complete; times are seconds since 1970, as in the server's log."""

    kind: str
    arrived_at_s: float
    first_token_at_s: float | None
    last_token_at_s: float | None
    ended_at_s: float
    num_tokens: int
    fewest_live: int | None
    """Replicas at the worst look meanwhile; ``None`` without a look that tells."""
    most_load: float | None
    """The machine's highest load meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Counts over all requests of a run."""

    num_requests: int
    num_completed: int
    cut: int
    """Ended with an error after their first token: what a kill may cost."""
    lost: int
    """Failed or turned away before their first token."""
    hung: int
    """Without an end within the client's time, and without a token in the last part of it."""
    slow: int
    """Without an end within the client's time, but with tokens to the last."""
    mixed: int
    """Answered by more than one version."""
    unknown: int
    """Answered by a version that was never promoted, and is not the bare base model."""
    stale: int
    """Answered by an older version than the one that was settled when they arrived."""
    forked: int
    """Versions whose content differs between replicas."""
    left_out: int
    """Under way while the machine stood still."""
    versions: Mapping[str, int]
    """Completed requests by the version that answered; without any it is ``""``."""
    errors: Mapping[str, int]
    """What requests that did not complete were told."""
    failures: tuple[Failure, ...]
    """Each of them."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing happened that must not."""
        return not (
            self.lost or self.hung or self.mixed or self.unknown or self.stale or self.forked
        )


def judge(
    answers: Iterable[Answer],
    promotions: Sequence[Promotion],
    digests: Mapping[str, frozenset[str]],
    stalls: Sequence[Stall] = (),
    looks: Sequence[Look] = (),
) -> Findings:
    """Count what became of requests.

    Args:
        answers: Every request.
        promotions: Every one of the run, oldest first; there were no rollbacks.
        digests: What was seen of each version's content, by the version.
        stalls: When the machine stood still.
        looks: How things stood, again and again.
    """
    found: Counter[str] = Counter()
    versions: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    failures = []
    known = {BASE, *(one.version for one in promotions)}
    for answer in answers:
        record = answer.record
        found["requests"] += 1
        if any(_overlaps(answer, stall) for stall in stalls):
            found["left out"] += 1
            continue
        found["mixed"] += record.is_mixed
        found["unknown"] += not known.issuperset(record.versions)
        found["stale"] += _is_stale(answer, promotions)
        if record.outcome == "completed":
            versions[record.versions[0] if record.versions else ""] += 1
            continue
        failure = _failure(answer, looks)
        failures.append(failure)
        found[failure.kind] += 1
        errors[record.error or record.outcome] += 1
    return Findings(
        num_requests=found["requests"],
        num_completed=versions.total(),
        cut=found["cut"],
        lost=found["lost"],
        hung=found["hung"],
        slow=found["slow"],
        mixed=found["mixed"],
        unknown=found["unknown"],
        stale=found["stale"],
        forked=sum(len(seen) > 1 for seen in digests.values()),
        left_out=found["left out"],
        versions=dict(versions),
        errors=dict(errors),
        failures=tuple(failures),
    )


def _overlaps(answer: Answer, stall: Stall) -> bool:
    return answer.arrived_at_s < stall.ended_at_s and answer.ended_at_s > stall.begun_at_s


def _failure(answer: Answer, looks: Sequence[Look]) -> Failure:
    record = answer.record
    meanwhile = [look for look in looks if answer.arrived_at_s <= look.at_s <= answer.ended_at_s]

    def on_wall(time_s: float | None) -> float | None:
        return None if time_s is None else answer.arrived_at_s + time_s - record.arrived_at_s

    last_s = on_wall(record.last_token_at_s)
    if record.error is not None and record.error.startswith("no end within"):
        kind = "slow" if last_s is not None and answer.ended_at_s - last_s < FLOWING_S else "hung"
    else:
        kind = "lost" if record.first_token_at_s is None else "cut"
    return Failure(
        kind=kind,
        arrived_at_s=answer.arrived_at_s,
        first_token_at_s=on_wall(record.first_token_at_s),
        last_token_at_s=last_s,
        ended_at_s=answer.ended_at_s,
        num_tokens=record.num_output_tokens,
        fewest_live=min((it.num_live for it in meanwhile if it.num_live is not None), default=None),
        most_load=max((look.load for look in meanwhile), default=None),
    )


def _is_stale(answer: Answer, promotions: Sequence[Promotion]) -> bool:
    """Return whether another version was settled when the request arrived.

    A later one than that may answer: a request waits before it is bound to a version.
    """
    settled = [
        index
        for index, one in enumerate(promotions)
        if one.decided_at_s + SETTLED_S < answer.arrived_at_s
    ]
    if not settled or answer.record.first_token_at_s is None:
        return False
    allowed = {one.version for one in promotions[settled[-1] :]}
    return not (answer.record.versions and allowed.issuperset(answer.record.versions))
