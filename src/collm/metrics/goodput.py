"""Throughput within objectives, weighted by quality or not."""

from collections.abc import Callable, Iterable, Mapping

from collm.metrics.records import Objectives, RequestRecord
from collm.types import VersionId

MIN_CROSS_ENTROPY = 0.1
"""Cross-entropies below this count as this, so that quality stays bounded (nats per token)."""
MIN_RATIO_QUALITY = 0.05
"""No ratio is taken over a policy whose quality is below this."""


def throughput_per_s(
    records: Iterable[RequestRecord], objectives: Objectives, duration_s: float
) -> float:
    """Return F: requests per second that met every objective."""
    return _weighted_per_s(records, objectives, duration_s, lambda _: 1.0)


def paper_quality(cross_entropy: float) -> float:
    """Return Q = 1 / cross-entropy in nats per token, at most 10."""
    return 1.0 / max(cross_entropy, MIN_CROSS_ENTROPY)


def paper_goodput_per_s(
    records: Iterable[RequestRecord],
    objectives: Objectives,
    duration_s: float,
    cross_entropies: Mapping[VersionId, float],
) -> float:
    """Return the quality-weighted throughput in Q-requests per second.

    Args:
        records: Requests that arrived in ``duration_s``.
        objectives: What a request must meet to count.
        duration_s: Length of the observation, above 0.
        cross_entropies: Held-out cross-entropy of every version that served, nats per token.

    Raises:
        ValueError: A request that met names no version, or one without a cross-entropy.
    """

    def quality(record: RequestRecord) -> float:
        missing = [version for version in record.versions if version not in cross_entropies]
        if missing or not record.versions:
            named = missing or "no version"
            raise ValueError(f"request {record.request_id}: no cross-entropy for {named}")
        return min(paper_quality(cross_entropies[version]) for version in record.versions)

    return _weighted_per_s(records, objectives, duration_s, quality)


def task_goodput_per_s(
    records: Iterable[RequestRecord],
    objectives: Objectives,
    duration_s: float,
    score: Callable[[RequestRecord], float | None],
) -> float:
    """Return the throughput of scored requests, each weighted by its answer's score.

    Args:
        records: Requests that arrived in ``duration_s``.
        objectives: What a request must meet to count.
        duration_s: Length of the observation, above 0.
        score: The task's score of one answer in [0, 1]; ``None`` for a request that has none.
    """
    return _weighted_per_s(records, objectives, duration_s, lambda record: score(record) or 0.0)


def goodput_ratio(goodput: float, base_goodput: float, *, base_quality: float) -> float | None:
    """Return ``goodput / base_goodput``; ``None`` when the base is too poor to compare with."""
    if base_quality < MIN_RATIO_QUALITY or base_goodput <= 0:
        return None
    return goodput / base_goodput


def regret(goodput: float, oracle_goodput: float) -> float:
    """Return the share of the oracle's goodput that was not reached; below 0 if it was beaten.

    The oracle serves the final adapter from the start and does not train.

    Raises:
        ValueError: The oracle's goodput is not above 0.
    """
    if oracle_goodput <= 0:
        raise ValueError(f"the oracle's goodput must be above 0, not {oracle_goodput}")
    return 1.0 - goodput / oracle_goodput


def _weighted_per_s(
    records: Iterable[RequestRecord],
    objectives: Objectives,
    duration_s: float,
    weight: Callable[[RequestRecord], float],
) -> float:
    if duration_s <= 0:
        raise ValueError(f"duration_s must be above 0, not {duration_s}")
    return sum(weight(record) for record in records if record.met(objectives)) / duration_s
