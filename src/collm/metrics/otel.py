"""Traces by OpenTelemetry: the one place that needs the extra ``collm[otel]``.

Names of attributes follow its semantic conventions for generative AI and for HTTP where they have
one, and begin with ``collm.`` elsewhere. No span holds text of prompts or answers.

Source: W3C, "Trace Context"; OpenTelemetry, "Semantic conventions for generative AI systems".
"""

import time
from collections.abc import Callable, Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from collm.metrics.config import TracesConfig
from collm.metrics.records import RequestRecord
from collm.metrics.traces import Headers, TracedRound

_PARENT = "traceparent"
_STATE = "tracestate"
_W3C = TraceContextTextMapPropagator()
_FAILED = ("failed", "rejected", "broken", "turned_away", "abandoned")
"""Outcomes that a trace shows as errors."""


def open_traces(config: TracesConfig, instance: str, version: str) -> "OtelTraces":
    """Return what sends spans to ``config.endpoint``, in a thread of its own.

    Args:
        config: With an endpoint.
        instance: Name of this process: a replica's, or the front's.
        version: Of collm.
    """
    exporter = OTLPSpanExporter(endpoint=config.endpoint)
    return OtelTraces(BatchSpanProcessor(exporter), config.sample_share, instance, version)


class OtelTraces:
    """Makes spans of what has happened; safe to use from several threads.

    Args:
        processor: Takes spans as they end; closed with this.
        sample_share: Share of traces begun here that are kept.
        instance: Name of this process.
        version: Of collm.
        wall_s: Seconds since 1970.
    """

    def __init__(
        self,
        processor: SpanProcessor,
        sample_share: float,
        instance: str,
        version: str,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        about = {
            "service.name": "collm",
            "service.version": version,
            "service.instance.id": instance,
        }
        # Ends with the process by `close` alone: at exit, threads may be gone already.
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_share)),
            resource=Resource.create(about),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("collm", version)
        self._wall_s = wall_s

    def proxied(self, path: str, client: Headers) -> "_Proxied":
        """Begin a span for a request that a front passes on."""
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in client}
        span = self._tracer.start_span(
            f"POST {path}",
            context=_W3C.extract({key: named[key] for key in (_PARENT, _STATE) if key in named}),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": "POST", "http.route": path},
            start_time=_ns(self._wall_s()),
        )
        return _Proxied(span, self._wall_s)

    def request_ended(self, record: RequestRecord, traceparent: str | None, now_s: float) -> None:
        """Make a span of the request, and in it one each of queue, prefill and decode."""
        offset_s = self._wall_s() - now_s
        parent = _W3C.extract({_PARENT: traceparent}) if traceparent else Context()
        span = self._tracer.start_span(
            f"generate {record.model}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=_about(record),
            start_time=_ns(record.arrived_at_s + offset_s),
        )
        if not span.is_recording():
            return
        inside = set_span_in_context(span)
        times = (
            ("queue", record.arrived_at_s, record.admitted_at_s),
            ("prefill", record.admitted_at_s, record.first_token_at_s),
            ("decode", record.first_token_at_s, record.last_token_at_s),
        )
        for name, started_s, ended_s in times:
            if started_s is not None and ended_s is not None:
                _part(self._tracer, name, inside, started_s + offset_s, ended_s + offset_s)
        if record.outcome in _FAILED:
            span.set_status(Status(StatusCode.ERROR, record.error))
        span.end(_ns(now_s + offset_s))

    def round_ended(self, path: TracedRound) -> None:
        """Make a span of the round, and in it one of each stage."""
        span = self._tracer.start_span(
            f"round {path.adapter}",
            context=Context(),
            attributes={
                "collm.adapter": path.adapter,
                "collm.round": path.number,
                "collm.outcome": path.outcome,
                "collm.reason": path.reason,
                "collm.members": list(path.members),
            },
            start_time=_ns(path.started_at_s),
        )
        inside = set_span_in_context(span)
        for stage in path.stages:
            _part(self._tracer, stage.name, inside, stage.started_at_s, stage.ended_at_s)
        if path.outcome in _FAILED:
            span.set_status(Status(StatusCode.ERROR, path.reason))
        span.end(_ns(path.ended_at_s))

    def close(self) -> None:
        """Send what is still to be sent; nothing is traced afterwards."""
        self._provider.shutdown()


class _Proxied:
    """A request on its way through a front, as a span."""

    def __init__(self, span: Span, wall_s: Callable[[], float]) -> None:
        self._span = span
        self._wall_s = wall_s

    def headers(self, client: Headers) -> Headers:
        """Return the client's headers with this span as the replica's parent."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, set_span_in_context(self._span))
        own = [(name.encode(), value.encode()) for name, value in carrier.items()]
        replaced = {name for name, _ in own}
        return [*(pair for pair in client if pair[0] not in replaced), *own]

    def note(self, event: str, replica_id: str) -> None:
        """Add an event to the span."""
        at_ns = _ns(self._wall_s())
        self._span.add_event(event, {"collm.replica": replica_id}, timestamp=at_ns)

    def end(self, outcome: str) -> None:
        """End the span."""
        if not self._span.is_recording():
            return
        self._span.set_attribute("collm.outcome", outcome)
        if outcome in _FAILED:
            self._span.set_status(Status(StatusCode.ERROR, outcome))
        self._span.end(_ns(self._wall_s()))


def _about(record: RequestRecord) -> Mapping[str, str | int | list[str]]:
    attributes: dict[str, str | int | list[str]] = {
        "gen_ai.operation.name": "generate",
        "gen_ai.provider.name": "collm",
        "gen_ai.request.model": record.model,
        "gen_ai.response.id": record.request_id,
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": record.num_output_tokens,
        "collm.outcome": record.outcome,
        "collm.versions": list(record.versions),
    }
    if record.finish_reason is not None:
        attributes["gen_ai.response.finish_reasons"] = [record.finish_reason]
    return attributes


def _part(tracer: Tracer, name: str, inside: Context, started_s: float, ended_s: float) -> None:
    tracer.start_span(name, context=inside, start_time=_ns(started_s)).end(_ns(ended_s))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
