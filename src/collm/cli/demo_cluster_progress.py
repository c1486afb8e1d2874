"""What a running demo has seen so far of a cluster: of each replica, and of their rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from collm.cli.demo_answers import Accuracy, Answer, outside, within
from collm.cli.demo_progress import Look, Progress
from collm.cli.demo_rounds import Round
from collm.cli.demo_sites import Site
from collm.metrics.records import RequestRecord
from collm.server.front.ids import replica_of

Stage = Literal["before", "alone", "together"]
STAGES: tuple[Stage, ...] = ("before", "alone", "together")
"""Under which models a replica answers fixed questions after the traffic: the base model; its own
update of its first round, learned from its own samples and never aggregated; and the version that
it served at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """How one replica answered the fixed questions under one model."""

    model: str
    """The version, or the base model's name."""
    own: Accuracy
    """On questions of its own domains."""
    foreign: Accuracy
    """On questions of the other replicas' domains."""


@dataclass(slots=True)
class SiteProgress:
    """What was seen of one replica."""

    site: Site
    seen: Progress
    """Its requests, and looks at it."""
    exam: dict[Stage, Marks] = field(default_factory=dict)
    """Without the stages that there was nothing to show of."""

    @property
    def own(self) -> list[Answer]:
        """Its scored answers to questions of its own domains, in the order of their end."""
        return within(self.seen.answers, self.site.domains)

    @property
    def foreign(self) -> list[Answer]:
        """Its scored answers to questions of others' domains, in the order of their end."""
        return outside(self.seen.answers, self.site.domains)


class ClusterProgress:
    """Collects records, looks and rounds; all times in seconds since ``start_s``."""

    def __init__(self, groups: Mapping[str, str], sites: Sequence[Site], start_s: float) -> None:
        """Start empty.

        Args:
            groups: Group of each right answer.
            sites: The replicas.
            start_s: Start of the replay on the clock of the records.
        """
        self.whole = Progress(groups, start_s)
        """All requests, whoever answered; nobody looks at it."""
        self.sites = {site.name: SiteProgress(site, Progress(groups, start_s)) for site in sites}
        self.rounds: dict[int, Round] = {}
        """Each as of the latest look, by number."""
        self.num_live = len(sites)
        self.act = "serving"
        """What goes on, in a word or two."""

    @property
    def start_s(self) -> float:
        """Return the start of the replay on the clock of the records."""
        return self.whole.start_s

    def add(self, record: RequestRecord) -> None:
        """Take in a request that ended; one that no replica answered is nobody's."""
        self.whole.add(record)
        site = self.sites.get(replica_of(record.request_id) or "")
        if site is not None:
            site.seen.add(record)

    def look(self, looks: Mapping[str, Look], rounds: Sequence[Round], num_live: int) -> None:
        """Take in the figures of the replicas that answered, and the latest rounds."""
        for name, look in looks.items():
            self.sites[name].seen.look(look)
        self.rounds.update({found.number: found for found in rounds})
        self.num_live = num_live

    @property
    def latest_round(self) -> Round | None:
        """Return the round under way, or the latest one."""
        return self.rounds[max(self.rounds)] if self.rounds else None

    @property
    def num_promoted(self) -> int:
        """Rounds whose aggregate is served."""
        return sum(found.status == "done" for found in self.rounds.values())

    def num_sequences(self) -> tuple[int, int]:
        """Return how many requests run and how many wait, over all replicas."""
        looks = [site.seen.latest for site in self.sites.values()]
        known = [look for look in looks if look is not None]
        return sum(look.running for look in known), sum(look.waiting for look in known)
