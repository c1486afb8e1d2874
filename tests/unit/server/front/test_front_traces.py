"""A request's path through the front, as spans, and what the replica is told of it."""

import asyncio
import json

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from collm.metrics.otel import OtelTraces
from factories.front_server import running_front

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENT = f"00-{TRACE}-b7ad6b7169203331-01"


async def answer(line):
    await line.whole(json.dumps({"object": "chat.completion"}).encode())


async def die(line):
    line.die()


def run(scripts, check, *, is_traced=True):
    exporter = InMemorySpanExporter()
    traces = OtelTraces(SimpleSpanProcessor(exporter), 1.0, "front", "0.1") if is_traced else None

    async def main():
        async with running_front(scripts, traces=traces) as front:
            headers = {"traceparent": CLIENT}
            await front.http.post("/v1/chat/completions", json=BODY, headers=headers)
            check(front)

    asyncio.run(main())
    return exporter.get_finished_spans()


def traceparent(upstream):
    (seen,) = upstream.seen
    return seen.headers["traceparent"]


def test_the_replica_is_told_of_the_fronts_span_in_the_clients_trace():
    told = []
    (span,) = run({"r0": answer}, lambda front: told.append(traceparent(front.upstreams["r0"])))
    assert told == [f"00-{TRACE}-{span.context.span_id:016x}-01"]
    assert f"{span.context.trace_id:032x}" == TRACE
    assert [event.name for event in span.events] == ["sent", "first byte"]
    assert span.attributes["collm.outcome"] == "answered"


def test_a_lost_replica_is_an_event_and_the_next_one_another():
    (span,) = run({"r0": die, "r1": answer}, lambda front: None)
    events = [(event.name, event.attributes["collm.replica"]) for event in span.events]
    assert events == [("sent", "r0"), ("failed", "r0"), ("sent", "r1"), ("first byte", "r1")]


def test_a_request_that_nobody_takes_is_an_error():
    (span,) = run({"r0": die}, lambda front: None)
    assert span.attributes["collm.outcome"] == "turned_away"
    assert span.status.status_code is StatusCode.ERROR


def test_without_traces_the_clients_own_goes_on_to_the_replica():
    told = []
    run(
        {"r0": answer},
        lambda front: told.append(traceparent(front.upstreams["r0"])),
        is_traced=False,
    )
    assert told == [CLIENT]
