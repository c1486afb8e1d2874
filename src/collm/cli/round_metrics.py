"""From a round's path to the front's metrics."""

from collm.cluster.round_path import RoundPath
from collm.metrics.front import FrontMetrics


def count_round(metrics: FrontMetrics, path: RoundPath) -> None:
    """Count a round that has ended."""
    record = path.record
    assert record.ended_at_s is not None
    metrics.round_ended(
        record.adapter,
        record.status,
        members=[part.outcome.value for part in path.members],
        stages=[(stage.name, stage.ended_at_s - stage.started_at_s) for stage in path.stages],
        ended_at_s=record.ended_at_s,
    )
