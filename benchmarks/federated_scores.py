"""Exact match by domain, and what it says of learning centrally, together and alone. No torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class Score:
    """Right answers and questions, by domain."""

    num_right: Mapping[str, int]
    num_asked: Mapping[str, int]

    @classmethod
    def of(cls, answers: Iterable[tuple[str, bool]]) -> "Score":
        """Count answers, each a domain and whether it was right."""
        num_right: dict[str, int] = {}
        num_asked: dict[str, int] = {}
        for domain, is_right in answers:
            num_asked[domain] = num_asked.get(domain, 0) + 1
            num_right[domain] = num_right.get(domain, 0) + is_right
        return cls(num_right, num_asked)

    def share(self, domains: Iterable[str]) -> float:
        """Return the share of right answers over some domains, which were asked about."""
        chosen = list(domains)
        return sum(self.num_right[d] for d in chosen) / sum(self.num_asked[d] for d in chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Shares of right answers for one seed; members' figures are means over members."""

    central: float
    """Over all domains, as are the next two."""
    federated: float
    local: float
    federated_own: float
    federated_foreign: float
    local_own: float
    local_foreign: float

    @property
    def to_central(self) -> float | None:
        """Return the federated share over the central one; ``None`` if that is 0."""
        return self.federated / self.central if self.central else None

    @property
    def foreign_gain(self) -> float | None:
        """Return federated over local-only on foreign domains; ``None`` if that is 0."""
        return self.federated_foreign / self.local_foreign if self.local_foreign else None


def compare(
    central: Score,
    federated: Score,
    local: Mapping[str, Score],
    domains: Mapping[str, frozenset[str]],
) -> Comparison:
    """Compare the three ways to learn.

    Args:
        central: Of one adapter that learned from everybody's samples.
        federated: Of one adapter that was aggregated.
        local: Of each member's own adapter, by member.
        domains: What each member alone had samples of.
    """
    everything = frozenset[str]().union(*domains.values())
    return Comparison(
        central=central.share(everything),
        federated=federated.share(everything),
        local=fmean(local[member].share(everything) for member in domains),
        federated_own=fmean(federated.share(own) for own in domains.values()),
        federated_foreign=fmean(federated.share(everything - own) for own in domains.values()),
        local_own=fmean(local[member].share(own) for member, own in domains.items()),
        local_foreign=fmean(
            local[member].share(everything - own) for member, own in domains.items()
        ),
    )
