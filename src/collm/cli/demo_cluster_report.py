"""The figures of a finished demo of several replicas."""

from collections.abc import Mapping
from dataclasses import dataclass

from collm.cli.demo_answers import ExactMatch
from collm.cli.demo_cluster_progress import ClusterProgress, Marks, SiteProgress, Stage
from collm.cli.demo_progress import Look
from collm.cli.demo_report import Serving, measure_serving
from collm.cli.demo_rounds import Round
from collm.cli.demo_session import End
from collm.metrics.records import Objectives


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVersion:
    """A version, and when a look first found a replica serving it."""

    at_s: float
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReport:
    """What became of one replica."""

    domains: tuple[str, ...]
    """What it alone had samples of."""
    exam: Mapping[Stage, Marks]
    """On the fixed questions, after the traffic."""
    own: ExactMatch
    """In the traffic that it answered, on its own domains."""
    foreign: ExactMatch
    """Likewise, on the others' domains."""
    num_requests: int
    """That it answered."""
    training_tokens_per_s: float | None
    versions: tuple[ServedVersion, ...]
    last_look: Look | None
    """Its own figures at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """One run, ready to be written."""

    end: End
    elapsed_s: float
    sites: Mapping[str, SiteReport]
    exact_match: ExactMatch
    """In the traffic, of the task's ten domains, whichever replica answered."""
    out_of_scope: ExactMatch
    """Of requests that fit no intent."""
    serving: Serving
    rounds: tuple[Round, ...]


def make_cluster_report(
    progress: ClusterProgress, objectives: Objectives, elapsed_s: float, end: End
) -> ClusterReport:
    """Compute the figures of a run from what was seen of it."""
    return ClusterReport(
        end=end,
        elapsed_s=elapsed_s,
        sites={name: _site(site) for name, site in progress.sites.items()},
        exact_match=ExactMatch.of(progress.whole.answers),
        out_of_scope=ExactMatch.of(progress.whole.out_of_scope),
        serving=measure_serving(progress.whole, objectives, elapsed_s),
        rounds=tuple(progress.rounds[number] for number in sorted(progress.rounds)),
    )


def _site(progress: SiteProgress) -> SiteReport:
    seen = progress.seen
    return SiteReport(
        domains=tuple(sorted(progress.site.domains)),
        exam=dict(progress.exam),
        own=ExactMatch.of(progress.own),
        foreign=ExactMatch.of(progress.foreign),
        num_requests=len(seen.records),
        training_tokens_per_s=seen.tokens_per_s(),
        versions=tuple(ServedVersion(at_s=swap.at_s, version=swap.version) for swap in seen.swaps),
        last_look=seen.latest,
    )
