"""The slow loop's output: who serves what, who trains what, with how much."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What an adapter gets on a replica in a round."""

    credit_share: float
    """Share of wall time guaranteed beyond slack (``u_ij``)."""
    time_share: float
    """Share of the replica's training time, credit and free time alike; a replica's add up to 1."""
    batch_tokens: int
    """Tokens per optimizer step (``B_ij``)."""
    expected_tokens: float
    """Effective tokens that the round is expected to bring, the discount taken off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a replica is expected to go through in a round."""

    arrivals_per_s: float
    attainment: float
    """Chance that a request meets its objectives."""
    free_share: float
    """Share of wall time that serving leaves over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What an allocation is worth, in requests times quality."""

    serving: float
    """Quality of the round's requests that meet their objectives."""
    learning: float
    """Quality gained by the requests within the horizon, by what the round trains."""
    debt: float
    """What the expected misses cost beside their own quality."""

    @property
    def total(self) -> float:
        """The sum that is maximised."""
        return self.serving + self.learning - self.debt


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another allocation that was looked at."""

    name: str
    """What it does, in words for people."""
    total: float
    """Its objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """How a round is shared out."""

    traffic: Mapping[str, Mapping[str, float]]
    """By adapter, each replica's share of its requests (``v_ij``)."""
    grants: Mapping[str, Mapping[str, Grant]]
    """By replica, what each adapter gets that it trains."""
    members: Mapping[str, tuple[str, ...]]
    """By adapter, the replicas whose part in a round is worth waiting for."""
    prices: Mapping[str, float]
    """Quality that a second of each replica's work must be worth."""
    expected: Mapping[str, Expectation]
    """By replica."""
    objective: Objective
    alternatives: tuple[Alternative, ...] = ()
    """What was looked at, the chosen one included."""
    chosen: str = ""
    """Name of the chosen one: the best, or traffic as it is where that is not worth moving for."""

    def credit_share(self, replica_id: str) -> float:
        """Return a replica's credit over all adapters."""
        return sum(grant.credit_share for grant in self.grants.get(replica_id, {}).values())
