"""From the configuration to what traces; the extra is loaded only when it is asked for."""

from importlib import import_module
from importlib.metadata import version

from collm.cluster.round_path import RoundPath
from collm.errors import ConfigError
from collm.metrics.config import TracesConfig
from collm.metrics.traces import NoTraces, TracedRound, TracedStage, Traces


def open_traces(config: TracesConfig, instance: str) -> Traces:
    """Return what traces; close it at the end.

    Args:
        config: Where to.
        instance: Name of this process.

    Raises:
        ConfigError: The extra that it takes is not installed.
    """
    if config.endpoint is None:
        return NoTraces()
    try:
        otel = import_module("collm.metrics.otel")
    except ImportError as error:
        raise ConfigError(
            f"traces.endpoint is set, but {error.name} is not installed: pip install 'collm[otel]'"
        ) from error
    traces: Traces = otel.open_traces(config, instance, version("collm"))
    return traces


def trace_round(traces: Traces, path: RoundPath) -> None:
    """Show a round that has ended."""
    record = path.record
    assert record.ended_at_s is not None
    traces.round_ended(
        TracedRound(
            adapter=record.adapter,
            number=record.round,
            outcome=record.status,
            reason=record.reason or "",
            members=[f"{part.member} {part.outcome.value}" for part in path.members],
            started_at_s=record.started_at_s,
            ended_at_s=record.ended_at_s,
            stages=[
                TracedStage(stage.name, stage.started_at_s, stage.ended_at_s)
                for stage in path.stages
            ],
        )
    )
