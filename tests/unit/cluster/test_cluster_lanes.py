import pytest

from collm.cluster.lanes import FLOOR_S, NOTHING_SENT, SentLoad
from collm.cluster.routes import Choice, RouteRequest
from collm.cluster.sent import Sent

EXPECTED_S = 0.1
STREAM = RouteRequest(model="m", num_prompt_bytes=400)
WHOLE = RouteRequest(model="m", num_prompt_bytes=400, is_streamed=False)


def choice(replica_id: str = "r", num_prefill: int = 50) -> Choice:
    return Choice(
        replica_id=replica_id,
        ttft_s=9.0,
        tpot_s=0.02,
        chance=1.0,
        claimed_ttft_s=EXPECTED_S,
        num_prompt_tokens=100,
        num_prefill_tokens=num_prefill,
    )


def load(sent: Sent, taken_at_s: float, now_s: float) -> SentLoad:
    return sent.load("r", taken_at_s, now_s)


def test_an_unknown_replica_was_sent_nothing() -> None:
    assert load(Sent(), 0.0, 1.0) == NOTHING_SENT
    assert Sent().num_open("r") == 0


def test_what_was_sent_before_a_snapshot_is_left_to_it() -> None:
    sent = Sent()
    for at_s in (1.0, 2.0, 3.0):
        sent.add(STREAM, choice(), at_s)
    assert load(sent, 0.0, 3.0)[:3] == (3, 150, 3)
    assert load(sent, 2.5, 3.0)[:3] == (1, 50, 3)
    assert load(sent, 3.5, 3.5)[:3] == (0, 0, 3)


def test_a_request_sent_as_the_snapshot_was_asked_for_counts_as_sent_since() -> None:
    sent = Sent()
    sent.add(STREAM, choice(), 1.0)
    assert load(sent, 1.0, 1.0).num_sequences == 1


def test_a_first_byte_ends_the_prefill_and_an_end_the_sequence() -> None:
    sent = Sent()
    ticket = sent.add(STREAM, choice(), 1.0)
    sent.started(ticket, 1.1)
    assert load(sent, 0.0, 1.1)[:3] == (1, 0, 1)
    sent.finished(ticket, 1.5)
    assert load(sent, 0.0, 1.5)[:3] == (0, 0, 0)


@pytest.mark.parametrize("request_", [STREAM, WHOLE])
def test_notes_that_come_twice_or_late_change_nothing(request_: RouteRequest) -> None:
    sent = Sent()
    ticket = sent.add(request_, choice(), 1.0)
    for _ in range(2):
        sent.finished(ticket, 1.05)
        sent.started(ticket, 1.05)
    assert load(sent, 0.0, 1.05) == NOTHING_SENT
    assert sent.num_open("r") == 0


def test_the_longest_waiting_prompt_is_not_counted_as_queued() -> None:
    sent = Sent()
    for num_prefill in (70, 20, 30):
        sent.add(STREAM, choice(num_prefill=num_prefill), 1.0)
    assert load(sent, 5.0, 5.0).num_queued_tokens == 50


def test_times_beyond_the_claim_raise_the_ratio_and_times_below_lower_it() -> None:
    for took_s, low, high in ((EXPECTED_S, 1.0, 1.0), (1.0, 1.5, 8.5), (0.01, 0.5, 0.99)):
        sent = Sent()
        for at_s in range(3):
            ticket = sent.add(STREAM, choice(), float(at_s))
            sent.started(ticket, at_s + took_s)
            sent.finished(ticket, at_s + took_s)
        assert low - 1e-9 <= load(sent, 9.0, 3.0).ratio <= high + 1e-9


def test_a_correction_fades_while_nothing_is_sent() -> None:
    sent = Sent()
    sent.started(sent.add(STREAM, choice(), 0.0), 3.0)
    ratio = load(sent, 9.0, 3.0).ratio
    assert load(sent, 9.0, 13.0).ratio - 1.0 == pytest.approx((ratio - 1.0) / 2)


def test_a_wait_counts_before_it_has_ended() -> None:
    sent = Sent()
    sent.add(STREAM, choice(), 0.0)
    assert load(sent, 9.0, 0.05).ratio == 1.0
    assert load(sent, 9.0, 2.0).ratio == pytest.approx((2.0 + FLOOR_S) / (EXPECTED_S + FLOOR_S))


def test_one_request_that_hangs_is_not_held_against_a_replica_that_answers_others() -> None:
    sent = Sent()
    sent.add(STREAM, choice(), 0.0)
    sent.started(sent.add(STREAM, choice(), 60.0), 60.0 + EXPECTED_S)
    assert load(sent, 90.0, 60.15).ratio == pytest.approx(1.0)


def test_a_wait_that_the_client_gave_up_counts_and_a_quick_end_does_not() -> None:
    patient, quick = Sent(), Sent()
    patient.finished(patient.add(STREAM, choice(), 0.0), 5.0)
    quick.finished(quick.add(STREAM, choice(), 0.0), 0.01)
    assert load(patient, 9.0, 5.0).ratio > 5.0
    assert load(quick, 9.0, 0.01).ratio == 1.0


def test_an_answer_that_is_not_streamed_says_nothing_about_first_tokens() -> None:
    sent = Sent()
    ticket = sent.add(WHOLE, choice(), 0.0)
    assert load(sent, 0.0, 8.0) == SentLoad(1, 50, 1, 0, 1.0)
    sent.started(ticket, 8.0)
    sent.finished(ticket, 8.0)
    assert load(sent, 0.0, 8.0) == NOTHING_SENT


def test_notes_from_before_a_death_do_not_touch_the_replica_that_came_back() -> None:
    sent = Sent()
    old = sent.add(STREAM, choice(), 0.0)
    sent.forget("r")
    sent.add(STREAM, choice(), 1.0)
    sent.started(old, 9.0)
    sent.finished(old, 9.0)
    assert load(sent, 0.0, 1.05)[:3] == (1, 50, 1)
