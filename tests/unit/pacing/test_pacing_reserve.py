import pytest

from collm.pacing.config import Objectives
from collm.pacing.reserve import Reserve
from collm.types import SequenceProgress, StepLoad

OBJECTIVES = Objectives(ttft_s=0.8, tpot_s=0.1)
RESERVE_S = 1.6
"""Sixteen tokens."""


class LinearCost:
    """20 ms a step, 5 ms per decode, 1 ms per prefill token."""

    def upper_s(self, load: StepLoad) -> float:
        return 0.02 + 0.005 * load.num_decode_tokens + 0.001 * load.num_prefill_tokens


def sequence(
    num_prompt_tokens: int, arrived_at_s: float, num_output: int = 0, num_computed: int = 0
) -> SequenceProgress:
    num_known = num_prompt_tokens + num_output
    return SequenceProgress(
        arrived_at_s=arrived_at_s,
        num_output_tokens=num_output,
        num_remaining_prefill=num_known - num_computed,
        num_context_tokens=num_computed,
        last_token_at_s=None,
        is_running=True,
    )


def decodes(count: int) -> list[SequenceProgress]:
    return [sequence(10, 0.0, num_output=5, num_computed=14) for _ in range(count)]


def reserve_after(lengths: list[int]) -> Reserve:
    reserve = Reserve(OBJECTIVES, LinearCost())
    for number, length in enumerate(lengths):
        reserve.look([sequence(length, arrived_at_s=1.0 + number)])
    return reserve


def test_before_any_prompt_nothing_is_kept() -> None:
    assert Reserve(OBJECTIVES, LinearCost()).seconds(decodes(3)) == 0.0


@pytest.mark.parametrize(
    ("num_tokens", "num_decodes", "expected_s"),
    [
        # Beside 2 decodes 70 of 100 ms are for prefill: 168 tokens take 240 ms, 0.3 of 0.8 s.
        (167, 2, 0.0),
        (169, 2, RESERVE_S),
        # Beside 8 decodes 40 ms are.
        (95, 8, 0.0),
        (97, 8, RESERVE_S),
        (1, 16, RESERVE_S),  # no room at all
    ],
)
def test_decodes_keep_ahead_once_a_long_prompt_would_come_too_late_beside_them(
    num_tokens: int, num_decodes: int, expected_s: float
) -> None:
    assert reserve_after([num_tokens]).seconds(decodes(num_decodes)) == pytest.approx(expected_s)


def test_one_prompt_in_twenty_may_be_longer_than_planned_for() -> None:
    assert reserve_after([100] * 39 + [169]).seconds(decodes(2)) == 0.0
    assert reserve_after([100] * 17 + [169] * 3).seconds(decodes(2)) == pytest.approx(RESERVE_S)


def test_long_prompts_of_the_past_are_forgotten() -> None:
    assert reserve_after([169] * 64 + [100] * 64).seconds(decodes(2)) == 0.0


def test_each_prompt_counts_once_whatever_is_computed_of_it() -> None:
    reserve = reserve_after([100] * 19)
    for num_output in range(1, 60):
        seen = sequence(169, arrived_at_s=50.0, num_output=num_output, num_computed=168)
        reserve.look([seen])
    assert reserve.seconds(decodes(2)) == pytest.approx(RESERVE_S)  # one in twenty is the longest
    reserve.look([sequence(100, arrived_at_s=51.0), sequence(100, arrived_at_s=51.0)])
    assert reserve.seconds(decodes(2)) == 0.0
