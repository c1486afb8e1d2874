"""What is decided in a round: who is asked, when to stop waiting, who is behind. Pure functions."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from collm.gate.config import GateConfig
from collm.store.rounds import MemberOutcome, MemberRecord
from collm.types import BASE, ReplicaSnapshot, VersionId

PATIENCE_S = 10.0
"""How long a silent member is waited for when enough others have reported: about as long as a
replica that was killed needs to be back."""

GRACE_S = 15.0
"""Time between the deadline, when members are told to stop, and going on without the rest."""

GATE_PATIENCE = 4.0
"""For so many times its deadline a gate is waited for beyond it while too few have judged: members
that are busy serving take their time, and what all have trained would be lost."""

MAX_STALE_ROUNDS = 2
"""How many rounds later an update may still be used; an older one says little about the base that
others have built on since."""


class Move(Enum):
    """What collecting does next."""

    WAIT = auto()
    HURRY = auto()
    """Tell who is still training to report what it has."""
    ENOUGH = auto()
    """Go on with what there is."""
    TOO_FEW = auto()
    """No quorum is possible."""


@dataclass(frozen=True, slots=True)
class MemberState:
    """Where one member of a round stands."""

    outcome: MemberOutcome
    silent_s: float
    """Since it last answered, or since collecting began."""

    @property
    def is_open(self) -> bool:
        """Whether it may still report."""
        return self.outcome is MemberOutcome.OPEN

    @property
    def is_silent(self) -> bool:
        """Whether it seems to be gone."""
        return self.silent_s >= PATIENCE_S


def num_needed(num_members: int, quorum_share: float) -> int:
    """Return how many of so many members make a quorum; at least one."""
    return max(1, math.ceil(quorum_share * num_members - 1e-9))  # 0.1 · 30 is 3, not 4


def next_move(
    states: Iterable[MemberState], *, quorum_share: float, left_s: float, grace_s: float
) -> Move:
    """Decide how collecting goes on.

    Members that declined do not count: the others' quorum is what a round needs. A silent member is
    waited for only while it could still matter.

    Args:
        states: All members of the round.
        quorum_share: Share of the members that a round needs.
        left_s: Until the deadline; negative past it.
        grace_s: From the deadline until nobody is waited for.
    """
    states = list(states)
    num_reported = sum(state.outcome is MemberOutcome.REPORTED for state in states)
    pending = [state for state in states if state.is_open]
    num_declined = sum(state.outcome is MemberOutcome.DECLINED for state in states)
    needed = num_needed(len(states) - num_declined, quorum_share)
    if num_reported + len(pending) < needed:
        return Move.TOO_FEW
    if left_s <= -grace_s:
        return Move.ENOUGH if num_reported >= needed else Move.TOO_FEW
    if num_reported >= needed and all(state.is_silent for state in pending):
        return Move.ENOUGH
    return Move.HURRY if left_s <= 0.0 else Move.WAIT


def next_gate_move(
    states: Iterable[MemberState], *, quorum_share: float, left_s: float, deadline_s: float
) -> Move:
    """Decide how gathering members' judgements goes on; from the deadline on a quorum is enough.

    Args:
        states: All judges.
        quorum_share: Share of them that a verdict needs.
        left_s: Until the deadline; negative past it.
        deadline_s: The time that they have.
    """
    states = list(states)
    move = next_move(states, quorum_share=quorum_share, left_s=left_s, grace_s=0.0)
    if move is Move.TOO_FEW and left_s > -GATE_PATIENCE * deadline_s:
        return next_move(states, quorum_share=quorum_share, left_s=deadline_s, grace_s=0.0)
    return move


def num_judged(gate: GateConfig, num_judges: int) -> int:
    """Return how many held-out samples each of so many judges compares a candidate on.

    Two compare ``max_samples`` each. More of them share what two would: a verdict rests on as much
    then, and all are back to training sooner. None compares fewer than ``min_samples``, for what
    ruins one member is to be seen in that member's own samples.

    Args:
        gate: A round's.
        num_judges: At least one.
    """
    share = -(-2 * gate.max_samples // num_judges)
    return min(gate.max_samples, max(gate.min_samples, share))


def newest_updates(parts: Iterable[MemberRecord]) -> tuple[MemberRecord, ...]:
    """Return each member's newest update, by member, unless an aggregate holds it already.

    A member's later training goes on from the earlier, so its older updates would count twice.
    """
    newest: dict[str, MemberRecord] = {}
    for part in parts:
        if part.member not in newest or newest[part.member].round < part.round:
            newest[part.member] = part
    return tuple(part for _, part in sorted(newest.items()) if part.used_in is None)


@dataclass(frozen=True, slots=True)
class Cast:
    """Who is asked to take part in a round."""

    members: tuple[str, ...]
    base_digest: str
    """Digest of the base model that all of them serve."""


def choose_members(
    snapshots: Mapping[str, ReplicaSnapshot], base_digest: str | None, min_members: int
) -> Cast | None:
    """Return the replicas of one base model that are there to stay; ``None`` if too few.

    Args:
        snapshots: The live replicas.
        base_digest: The base model that the adapter was made for; ``None`` for a new adapter, which
            goes to the base that most replicas serve.
        min_members: Replicas that a round needs.
    """
    staying = {name: item for name, item in snapshots.items() if not item.is_draining}
    if base_digest is None:
        counts = Counter(item.base_digest for item in staying.values())
        base_digest = min(counts, key=lambda digest: (-counts[digest], digest), default=None)
    members = tuple(sorted(name for name, it in staying.items() if it.base_digest == base_digest))
    if base_digest is None or len(members) < min_members:
        return None
    return Cast(members, base_digest)


def why_left_out(snapshots: Mapping[str, ReplicaSnapshot], cast: Cast) -> dict[str, str]:
    """Return why live replicas are not asked, for people, by replica.

    Args:
        snapshots: The live replicas.
        cast: Who is asked.
    """
    reasons = {}
    for name in sorted(snapshots.keys() - set(cast.members)):
        if snapshots[name].is_draining:
            reasons[name] = "it is about to stop"
        elif snapshots[name].base_digest != cast.base_digest:
            reasons[name] = "it serves another base model"
        else:
            reasons[name] = "the allocation has it do other work"
    return reasons


def is_behind(active: VersionId | None, target: VersionId) -> bool:
    """Return whether a replica that serves ``active`` shall be brought to ``target``.

    A replica's own versions ``NAME@N.replica.k`` go on from federated version N. The base, to which
    a first version was taken back, takes the place of federated versions only.
    """
    if target == BASE:
        return active is not None and active.partition("@")[2].isdecimal()
    return active is None or (active != target and not active.startswith(f"{target}."))
