"""Worked examples: what the log makes of events at given times."""

import pytest

from collm.errors import CapacityError, QueueFullError, RequestError, UnknownAdapterError
from collm.metrics.traces import NoTraces
from collm.pacing.config import Objectives
from collm.pacing.credit import Credit
from collm.replica.request_log import RequestLog
from collm.types import FinishReason, Request, RequestId, SamplingParams, TokenEvent, VersionId


class RecordedMetrics:
    def __init__(self):
        self.records, self.gaps, self.lookups, self.arrivals = [], [], [], []

    def observe_request(self, record):
        self.records.append(record)

    def observe_token_gap(self, seconds):
        self.gaps.append(seconds)

    def arrived(self, model, now_s):
        self.arrivals.append((model, now_s))

    def looked_up_prefix(self, num_queried, num_hit):
        self.lookups.append((num_queried, num_hit))


class RecordedTraces(NoTraces):
    def __init__(self):
        self.ended = []

    def request_ended(self, record, traceparent, now_s):
        self.ended.append((record.request_id, traceparent, now_s))


class Log:
    def __init__(self, n=1, arrived_at_s=10.0):
        self.metrics = RecordedMetrics()
        self.credit = Credit(0.5)
        self.traces = RecordedTraces()
        objectives = Objectives(ttft_s=0.8, tpot_s=0.1)
        self.log = RequestLog(self.metrics, objectives, self.credit, self.traces)
        self.log.begin(
            Request(
                request_id=RequestId("r"),
                model="a",
                prompt=(1, 2, 3, 4, 5),
                sampling=SamplingParams(),
                n=n,
                arrived_at_s=arrived_at_s,
                traceparent="a trace",
            )
        )

    def token(self, now_s, choice=0, finish=None, cached=0):
        self.event(now_s, choice, 7, finish, cached=cached)

    def event(
        self, now_s, choice=0, token_id=None, finish=None, error=None, cached=0, admitted_at_s=None
    ):
        event = TokenEvent(
            request_id=RequestId("r"),
            choice=choice,
            token_id=token_id,
            finish_reason=finish,
            version=VersionId("a@1"),
            num_cached_tokens=cached,
            admitted_at_s=admitted_at_s,
            error=error,
        )
        self.log.observe([event], now_s)

    @property
    def arrivals(self):
        return self.metrics.arrivals

    @property
    def record(self):
        (record,) = self.metrics.records
        return record


def test_an_arrival_is_counted_at_its_own_time():
    assert Log(arrived_at_s=12.5).arrivals == [("a", 12.5)]


def test_times_of_one_choice():
    log = Log()
    log.token(10.5, cached=4)
    log.token(10.6)
    log.token(11.0, finish=FinishReason.LENGTH)
    record = log.record
    assert record.ttft_s == pytest.approx(0.5)
    assert record.tpot_s == pytest.approx(0.25)
    assert record.max_gap_s == pytest.approx(0.4)
    assert (record.num_prompt_tokens, record.num_output_tokens) == (5, 3)
    assert (record.outcome, record.finish_reason) == ("completed", FinishReason.LENGTH)
    assert record.versions == ("a@1",)
    assert record.ended_at_s == 11.0
    assert log.metrics.gaps == pytest.approx([0.1, 0.4])
    assert log.metrics.lookups == [(5, 4)]
    assert log.log.num_finished == 1


def test_times_count_from_the_first_token_even_at_time_zero():
    log = Log(arrived_at_s=0.0)
    log.token(0.0)
    log.token(1.0, finish=FinishReason.STOP)
    assert log.record.ttft_s == 0.0
    assert log.record.tpot_s == 1.0


def test_longest_choice_speaks_for_its_request():
    log = Log(n=2)
    log.token(10.2, choice=0)
    log.token(10.4, choice=1)
    log.token(10.6, choice=0, finish=FinishReason.STOP)
    log.token(10.7, choice=1)
    assert log.metrics.records == []
    log.token(11.2, choice=1, finish=FinishReason.LENGTH)
    record = log.record
    assert record.num_output_tokens == 3
    assert record.ttft_s == pytest.approx(0.2)
    assert record.tpot_s == pytest.approx(0.5)
    assert record.max_gap_s == pytest.approx(0.5)
    assert log.metrics.gaps == pytest.approx([0.4, 0.3, 0.5])
    assert log.metrics.lookups == [(5, 0)]


def test_choice_that_is_finished_from_outside_completes_its_request():
    log = Log()
    log.token(10.2)
    log.event(10.3, finish=FinishReason.STOP)
    assert (log.record.outcome, log.record.finish_reason) == ("completed", FinishReason.STOP)
    assert log.record.num_output_tokens == 1
    assert log.record.last_token_at_s == 10.2


@pytest.mark.parametrize(
    ("finish", "error", "outcome"),
    [
        (FinishReason.ABORT, None, "aborted"),
        (FinishReason.ERROR, QueueFullError("full"), "rejected"),
        (FinishReason.ERROR, CapacityError("too large"), "rejected"),
        (FinishReason.ERROR, RequestError("wrong"), "refused"),
        (FinishReason.ERROR, UnknownAdapterError("no such version"), "refused"),
        (FinishReason.ERROR, RuntimeError("broken"), "failed"),
    ],
)
def test_request_that_ends_badly(finish, error, outcome):
    log = Log()
    log.event(10.1, finish=finish, error=error)
    record = log.record
    assert record.outcome == outcome
    assert record.error == (None if error is None else str(error))
    assert record.ttft_s is None
    assert record.tpot_s is None
    assert log.log.num_failed == (outcome == "failed")


def test_only_completed_requests_move_the_credit():
    log = Log()
    log.event(10.1, finish=FinishReason.ABORT)
    assert log.credit.scale == 1.0
    log = Log()
    log.token(12.0, finish=FinishReason.STOP)
    assert log.credit.scale == 0.5


def test_events_of_an_unknown_or_ended_request_are_ignored():
    log = Log()
    log.token(10.1, finish=FinishReason.STOP)
    log.token(10.2, finish=FinishReason.STOP)
    assert log.log.num_finished == 1


def test_a_request_left_the_queue_when_its_first_choice_did():
    log = Log(n=2)
    log.event(10.5, 0, 7, admitted_at_s=10.25)
    log.event(10.6, 1, 7, FinishReason.STOP, admitted_at_s=10.5)
    log.event(10.7, 0, 7, FinishReason.STOP, admitted_at_s=10.25)
    assert (log.record.queue_s, log.record.prefill_s) == (0.25, 0.25)


def test_a_request_is_traced_once_when_its_last_choice_ends():
    log = Log(n=2)
    log.token(10.5, 0, FinishReason.STOP)
    assert log.traces.ended == []
    log.token(10.75, 1, FinishReason.STOP)
    assert log.traces.ended == [("r", "a trace", 10.75)]
