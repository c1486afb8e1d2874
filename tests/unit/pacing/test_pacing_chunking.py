import pytest
from hypothesis import given
from hypothesis import strategies as st

from collm.pacing.chunking import CostPrefillLimit, make_prefill_limit
from collm.pacing.config import Objectives, PacingConfig
from collm.pacing.cost import StepCostModel
from collm.types import SequenceProgress, StepLoad


class LinearCost:
    """20 ms a step, 1 ms per decode, 0.5 ms per prefill token, 1 µs per key."""

    def upper_s(self, load: StepLoad) -> float:
        return (
            0.02
            + 1e-3 * load.num_decode_tokens
            + 0.5e-3 * load.num_prefill_tokens
            + 1e-6 * load.num_context_tokens
        )


NOW_S = 100.0
OBJECTIVES = Objectives(tpot_s=0.1, max_itl_s=0.25)


def decodes(
    num_decodes: int, num_context: int = 100, ahead_s: float = 0.0, since_token_s: float = 0.0
) -> list[SequenceProgress]:
    """Sequences whose next token is due ``ahead_s`` from now, at a pace of 100 ms a token."""
    return [
        SequenceProgress(
            arrived_at_s=90.0,
            num_output_tokens=10,
            num_remaining_prefill=1,
            num_context_tokens=num_context - 1,
            last_token_at_s=NOW_S - since_token_s,
            is_running=True,
            first_token_at_s=NOW_S - 1.0 + ahead_s,
        )
        for _ in range(num_decodes)
    ]


def waiting(num_tokens: int, since_s: float = 0.0) -> SequenceProgress:
    return SequenceProgress(
        arrived_at_s=NOW_S - since_s,
        num_output_tokens=0,
        num_remaining_prefill=num_tokens,
        num_context_tokens=0,
        last_token_at_s=None,
        is_running=False,
    )


def limit(max_itl_s: float = 0.25) -> CostPrefillLimit:
    objectives = Objectives(tpot_s=0.1, max_itl_s=max_itl_s)
    return CostPrefillLimit(LinearCost(), objectives, min_tokens=16, max_tokens=512)


def tokens_for(step_s: float, num_decodes: int, num_context: int) -> int:
    """Return what fits a step at 0.501 ms a token."""
    rest_s = step_s - 0.02 - 1e-3 * num_decodes - 1e-6 * num_decodes * num_context
    return int(rest_s / 0.501e-3)


def test_nothing_decoding_takes_the_maximum() -> None:
    assert limit().prefill_tokens([], NOW_S) == 512


@pytest.mark.parametrize(
    ("ahead_s", "step_s"),
    [
        (-5.0, 0.1),  # late as it may be: the objective's time per token
        (0.1, 0.1),
        (0.15, 0.15),
        (3.0, 0.2),  # four fifths of the longest gap, however far ahead
    ],
)
def test_chunk_fills_the_time_until_a_token_is_due(ahead_s: float, step_s: float) -> None:
    progress = [*decodes(10, 100, ahead_s), waiting(20)]
    assert limit().prefill_tokens(progress, NOW_S) == tokens_for(step_s, 10, 100)


@pytest.mark.parametrize(
    ("ahead_s", "step_s"),
    [
        (-0.45, 0.1),  # more than four tokens late already
        (-0.25, 0.15),
        (0.0, 0.2),
    ],
)
def test_decodes_fall_some_tokens_behind_for_a_first_token(ahead_s: float, step_s: float) -> None:
    progress = [*decodes(10, 100, ahead_s), waiting(400, since_s=0.6)]
    assert limit().prefill_tokens(progress, NOW_S) == tokens_for(step_s, 10, 100)


def test_prompts_before_it_make_a_first_token_late() -> None:
    few = [*decodes(10), waiting(400)]
    many = [*few, *(waiting(400) for _ in range(3))]
    assert limit().prefill_tokens(few, NOW_S) == tokens_for(0.1, 10, 100)
    assert limit().prefill_tokens(many, NOW_S) == tokens_for(0.2, 10, 100)


def test_the_decode_that_is_behind_the_others_counts() -> None:
    mixed = [*decodes(9, 100, ahead_s=3.0), *decodes(1, 100, ahead_s=0.15)]
    assert limit().prefill_tokens(mixed, NOW_S) == tokens_for(0.15, 10, 100)


def test_what_passed_since_the_latest_token_is_taken_off() -> None:
    waited = decodes(10, 100, ahead_s=3.0, since_token_s=0.12)
    assert limit().prefill_tokens(waited, NOW_S) == tokens_for(0.08, 10, 100)


def test_a_gap_shorter_than_the_objective_bounds_the_chunk() -> None:
    assert limit(0.08).prefill_tokens(decodes(10, 100, 3.0), NOW_S) == tokens_for(0.064, 10, 100)


def test_prefill_gets_on_when_decodes_alone_take_too_long() -> None:
    assert limit().prefill_tokens(decodes(200), NOW_S) == 16


@given(st.integers(1, 100), st.integers(1, 300), st.floats(-1.0, 1.0), st.floats(0.0, 0.3))
def test_chunk_keeps_the_longest_gap_or_is_the_least(
    num_decodes: int, num_context: int, ahead_s: float, since_token_s: float
) -> None:
    progress = decodes(num_decodes, num_context, ahead_s, since_token_s)
    num_tokens = limit().prefill_tokens(progress, NOW_S)
    load = StepLoad(
        num_decode_tokens=num_decodes,
        num_prefill_tokens=num_tokens,
        num_context_tokens=num_decodes * num_context + num_tokens,
    )
    assert num_tokens == 16 or since_token_s + LinearCost().upper_s(load) <= 0.2 + 1e-9
    assert 16 <= num_tokens <= 512


def test_prefill_that_costs_nothing_takes_the_maximum() -> None:
    cost = StepCostModel(prior=(1e-3, 1e-4, 0.0, 0.0, 0.0))
    assert make_prefill_limit(PacingConfig(), cost).prefill_tokens(decodes(4), NOW_S) == 512


@pytest.mark.parametrize("num_decodes", [1, 32])
def test_configured_limit_works_on_the_prior(num_decodes: int) -> None:
    config = PacingConfig(min_prefill_tokens=8, max_prefill_tokens=64)
    limit = make_prefill_limit(config, StepCostModel())
    assert 8 <= limit.prefill_tokens(decodes(num_decodes), NOW_S) <= 64
