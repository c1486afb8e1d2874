"""The paths of requests and rounds as spans, read from the SDK's in-memory exporter."""

from dataclasses import replace

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from collm.metrics.otel import OtelTraces
from collm.metrics.records import RequestRecord
from collm.metrics.traces import NoTraces, TracedRound, TracedStage

TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
PARENT_ID = 0xB7AD6B7169203331
CLIENT = f"00-{TRACE_ID:032x}-{PARENT_ID:016x}-01"
UNSAMPLED = f"00-{TRACE_ID:032x}-{PARENT_ID:016x}-00"
RECORD = RequestRecord(
    request_id="chatcmpl-1",
    model="clinc",
    versions=("clinc@3",),
    arrived_at_s=10.0,
    admitted_at_s=10.25,
    first_token_at_s=11.0,
    last_token_at_s=13.0,
    num_prompt_tokens=20,
    num_output_tokens=4,
    finish_reason="stop",
    outcome="completed",
)


class Traced:
    """Traces of one process, and the spans that came out."""

    def __init__(self, sample_share=1.0):
        self.now_s = 1_000.0
        self.exporter = InMemorySpanExporter()
        processor = SimpleSpanProcessor(self.exporter)
        self.traces = OtelTraces(processor, sample_share, "r0", "0.1", lambda: self.now_s)

    @property
    def spans(self):
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traced():
    return Traced()


def times(span):
    return span.start_time / 1e9, span.end_time / 1e9


def test_a_request_is_a_span_with_one_each_of_queue_prefill_and_decode(traced):
    traced.traces.request_ended(RECORD, None, now_s=13.5)
    whole = traced.spans["generate clinc"]
    assert times(whole) == (996.5, 1_000.0)
    parts = {name: times(traced.spans[name]) for name in ("queue", "prefill", "decode")}
    assert parts == {
        "queue": (996.5, 996.75),
        "prefill": (996.75, 997.5),
        "decode": (997.5, 999.5),
    }
    assert all(traced.spans[name].parent.span_id == whole.context.span_id for name in parts)
    assert whole.attributes["gen_ai.usage.input_tokens"] == 20
    assert whole.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert whole.attributes["collm.versions"] == ("clinc@3",)
    assert whole.resource.attributes["service.instance.id"] == "r0"


def test_a_request_goes_on_in_the_trace_that_it_came_with(traced):
    traced.traces.request_ended(RECORD, CLIENT, now_s=13.5)
    span = traced.spans["generate clinc"]
    assert (span.context.trace_id, span.parent.span_id) == (TRACE_ID, PARENT_ID)
    assert {span.context.trace_id for span in traced.spans.values()} == {TRACE_ID}


def test_a_trace_that_is_not_kept_elsewhere_is_not_kept_here(traced):
    traced.traces.request_ended(RECORD, UNSAMPLED, now_s=13.5)
    assert traced.spans == {}


@pytest.mark.parametrize("garbage", ["", "00-0-0-01", "gibberish", "00-" + "f" * 200])
def test_what_is_no_traceparent_begins_a_trace_of_its_own(traced, garbage):
    traced.traces.request_ended(RECORD, garbage, now_s=13.5)
    assert traced.spans["generate clinc"].parent is None


def test_a_request_that_failed_is_an_error_and_has_the_parts_that_it_got_to(traced):
    failed = replace(
        RECORD, first_token_at_s=None, last_token_at_s=None, outcome="failed", error="no room"
    )
    traced.traces.request_ended(failed, None, now_s=11.0)
    assert sorted(traced.spans) == ["generate clinc", "queue"]
    status = traced.spans["generate clinc"].status
    assert (status.status_code, status.description) == (StatusCode.ERROR, "no room")


def test_no_share_traces_nothing_of_its_own():
    traced = Traced(sample_share=0.0)
    traced.traces.request_ended(RECORD, None, now_s=13.5)
    assert traced.spans == {}
    traced.traces.request_ended(RECORD, CLIENT, now_s=13.5)
    assert len(traced.spans) == 4


def test_a_front_is_the_parent_of_what_a_replica_does(traced):
    replica = Traced()
    client = [(b"content-type", b"application/json"), (b"traceparent", CLIENT.encode())]
    request = traced.traces.proxied("/v1/chat/completions", client)
    headers = dict(request.headers(client))
    assert headers[b"content-type"] == b"application/json"
    replica.traces.request_ended(RECORD, headers[b"traceparent"].decode(), now_s=13.5)
    request.note("sent", "r0")
    traced.now_s = 1_002.0
    request.end("answered")
    request.end("failed")
    front = traced.spans["POST /v1/chat/completions"]
    assert (front.context.trace_id, front.parent.span_id) == (TRACE_ID, PARENT_ID)
    assert replica.spans["generate clinc"].parent.span_id == front.context.span_id
    assert (times(front), front.kind) == ((1_000.0, 1_002.0), SpanKind.SERVER)
    assert front.attributes["collm.outcome"] == "answered"
    assert [(it.name, it.attributes["collm.replica"]) for it in front.events] == [("sent", "r0")]
    assert front.status.status_code is StatusCode.UNSET


def test_a_round_is_a_span_with_one_of_each_stage(traced):
    traced.traces.round_ended(
        TracedRound(
            adapter="clinc",
            number=7,
            outcome="abandoned",
            reason="too few updates",
            members=["r0 reported", "r1 dead"],
            started_at_s=500.0,
            ended_at_s=560.0,
            stages=[TracedStage("planned", 500.0, 501.0), TracedStage("training", 501.0, 560.0)],
        )
    )
    span = traced.spans["round clinc"]
    assert (times(span), times(traced.spans["training"])) == ((500.0, 560.0), (501.0, 560.0))
    assert span.attributes["collm.members"] == ("r0 reported", "r1 dead")
    assert (span.status.status_code, span.parent) == (StatusCode.ERROR, None)


def test_without_traces_headers_go_on_as_they_came():
    client = [(b"traceparent", CLIENT.encode())]
    assert NoTraces().proxied("/v1/completions", client).headers(client) is client
