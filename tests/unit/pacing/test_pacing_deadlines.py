import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collm.pacing.config import Objectives
from collm.pacing.deadlines import PrefillLimit, look_ahead, look_ahead_decoding, next_deadline_s
from collm.types import SequenceProgress, StepLoad

OBJECTIVES = Objectives(ttft_s=0.8, tpot_s=0.1)


class LinearCost:
    """20 ms a step, 1 ms per decode and per prefill token."""

    def upper_s(self, load: StepLoad) -> float:
        return 0.02 + 0.001 * (load.num_decode_tokens + load.num_prefill_tokens)


class FixedLimit:
    def prefill_tokens(self, progress: Sequence[SequenceProgress], now_s: float) -> int:
        return 50


def slack_s(
    progress: Sequence[SequenceProgress], now_s: float, limit: PrefillLimit | None = None
) -> float:
    return look_ahead(progress, OBJECTIVES, LinearCost(), now_s, limit).slack_s


def decoding(
    num_output: int, arrived_s: float = 0.0, first_s: float | None = None, last_s: float = 0.0
) -> SequenceProgress:
    return SequenceProgress(
        arrived_at_s=arrived_s,
        num_output_tokens=num_output,
        num_remaining_prefill=1,
        num_context_tokens=40,
        last_token_at_s=last_s,
        is_running=True,
        first_token_at_s=first_s,
    )


def waiting(num_tokens: int, arrived_s: float = 0.0, is_running: bool = False) -> SequenceProgress:
    return SequenceProgress(
        arrived_at_s=arrived_s,
        num_output_tokens=0,
        num_remaining_prefill=num_tokens,
        num_context_tokens=0,
        last_token_at_s=None,
        is_running=is_running,
    )


def test_first_token_is_due_at_arrival_plus_ttft() -> None:
    assert next_deadline_s(waiting(10, arrived_s=5.0), OBJECTIVES, 5.0, 0.1) == 5.8


def test_token_k_is_due_k_tpot_after_the_first_tokens_deadline() -> None:
    due_s = next_deadline_s(decoding(3, arrived_s=5.0), OBJECTIVES, 5.0, 0.1)
    assert due_s == pytest.approx(5.8 + 0.3)


def test_a_known_first_token_anchors_the_following_ones() -> None:
    early = decoding(3, arrived_s=5.0, first_s=5.2)
    late = decoding(3, arrived_s=5.0, first_s=7.0)
    assert next_deadline_s(early, OBJECTIVES, 5.0, 0.1) == pytest.approx(5.5)
    assert next_deadline_s(late, OBJECTIVES, 5.0, 0.1) == pytest.approx(7.3)


def test_a_late_token_takes_the_next_reachable_deadline_of_its_grid() -> None:
    # Due at 1.0; ready at 1.23 + 0.05 = 1.28 at the earliest, so 1.3 is next.
    assert next_deadline_s(decoding(2), OBJECTIVES, 1.23, 0.05) == pytest.approx(1.3)


@given(st.floats(0, 100), st.integers(0, 500), st.floats(0, 200), st.floats(0, 5))
def test_deadlines_are_reachable_and_at_most_one_tpot_away_when_late(
    arrived_s: float, num_output: int, now_s: float, work_s: float
) -> None:
    progress = decoding(num_output, arrived_s)
    due_s = next_deadline_s(progress, OBJECTIVES, now_s, work_s)
    original_s = next_deadline_s(progress, OBJECTIVES, 0.0, 0.0)
    assert due_s >= now_s + work_s
    assert due_s == original_s or due_s <= now_s + work_s + OBJECTIVES.tpot_s + 1e-9


def test_slack_is_infinite_with_nothing_to_serve() -> None:
    assert slack_s((), 3.0) == math.inf


def test_decoding_sequences_share_one_step() -> None:
    # Due at 0.9 and 1.0; one step of two decodes takes 22 ms.
    progress = (decoding(1), decoding(2))
    assert slack_s(progress, 0.5) == pytest.approx(0.9 - 0.5 - 0.022)


def test_waiting_prefill_adds_up_in_order_of_deadline() -> None:
    # Both first tokens need 20 ms for the one step; 100 ms of prefill is due at 0.8,
    # 300 ms at 0.9: slack is min(0.8 - 0.12, 0.9 - 0.32).
    progress = (waiting(200, arrived_s=0.1), waiting(100))
    assert slack_s(progress, 0.0) == pytest.approx(0.58)


def test_limited_prefill_pays_for_every_step_and_its_decodes() -> None:
    # 120 tokens in chunks of 50 are three steps of 21 ms plus 120 ms: 0.8 - 0.183. The decode is
    # due at 2.8 and far away.
    progress = (decoding(20), waiting(120))
    slack = slack_s(progress, 0.0, FixedLimit())
    assert slack == pytest.approx(0.8 - 0.183)


def test_the_next_step_carries_a_chunk_of_prefill_beside_the_decodes() -> None:
    # 21 ms for the decode, 30 + 20 of the 50 tokens allowed: 71 ms.
    progress = (decoding(1), waiting(30), waiting(90, arrived_s=0.1))
    outlook = look_ahead(progress, OBJECTIVES, LinearCost(), 0.0, FixedLimit())
    assert outlook.next_step_s == pytest.approx(0.071)
    assert not outlook.is_idle


def test_a_prefill_that_has_begun_counts_like_a_waiting_one() -> None:
    running, queued = (waiting(100, is_running=flag) for flag in (True, False))
    slacks = [slack_s((one,), 0.0) for one in (running, queued)]
    assert slacks == pytest.approx([0.68, 0.68])


def test_a_late_request_leaves_slack_for_training() -> None:
    # Due at 0.8, now 3.05; ready at 3.15, so the deadline is 3.2.
    assert slack_s((waiting(80),), 3.05) == pytest.approx(0.05)


def test_a_decode_keeps_its_reserve() -> None:
    # Due at 0.9; a step takes 21 ms.
    for reserve_s, expected in ((0.0, 0.379), (0.3, 0.079), (0.4, 0.0)):
        outlook = look_ahead((decoding(1),), OBJECTIVES, LinearCost(), 0.5, reserve_s=reserve_s)
        assert outlook.slack_s == pytest.approx(expected)


def test_a_decode_that_is_a_little_late_has_nothing_to_spare_until_it_caught_up() -> None:
    # Token 1 is due at 0.9 and was ready at 0.95; once the gap's 200 ms are exceeded the next
    # deadline of its grid counts, 1.2.
    assert slack_s((decoding(1),), 0.929) == 0.0
    assert slack_s((decoding(1),), 1.129) == pytest.approx(0.05)


def test_oldest_token_is_that_of_the_most_starved_decode() -> None:
    progress = (decoding(2, last_s=1.5), decoding(4, last_s=1.2), waiting(8))
    outlook = look_ahead(progress, OBJECTIVES, LinearCost(), 1.6)
    assert outlook.oldest_token_at_s == 1.2


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(0, 50), st.integers(1, 400), st.booleans())),
    st.floats(0, 20),
)
def test_slack_is_never_negative_and_no_deadline_can_raise_it(
    rows: list[tuple[float, int, int, bool]], now_s: float
) -> None:
    progress = tuple(
        SequenceProgress(
            arrived_at_s=arrived_s,
            num_output_tokens=num_output,
            num_remaining_prefill=num_prefill,
            num_context_tokens=10,
            last_token_at_s=None,
            is_running=is_running,
        )
        for arrived_s, num_output, num_prefill, is_running in rows
    )
    outlook = look_ahead(progress, OBJECTIVES, LinearCost(), now_s, FixedLimit())
    assert outlook.slack_s >= 0.0
    assert outlook.is_idle == (not rows)


@given(
    tokens=st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 60)), min_size=1, max_size=6),
    last_s=st.floats(5.0, 6.0),
    now_s=st.floats(6.0, 9.0),
    num_later=st.integers(0, 9),
    reserve_s=st.sampled_from([0.0, 0.8]),
)
def test_outlook_of_decodes_alone_is_the_general_one_bit_for_bit(
    tokens, last_s, now_s, num_later, reserve_s
) -> None:
    progress = [
        decoding(num + num_later, first_s=first_s, last_s=last_s) for first_s, num in tokens
    ]
    load = StepLoad(
        num_decode_tokens=len(tokens), num_context_tokens=40 * len(tokens), num_adapters=1
    )
    cost = LinearCost()
    general = look_ahead(progress, OBJECTIVES, cost, now_s, None, 1, reserve_s)
    in_order = sorted(tokens, key=lambda one: one[0] + one[1] * OBJECTIVES.tpot_s)
    found = look_ahead_decoding(
        in_order, num_later, last_s, OBJECTIVES, cost, now_s, load, reserve_s
    )
    assert found == general
