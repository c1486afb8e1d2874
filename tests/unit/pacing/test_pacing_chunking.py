import pytest
from hypothesis import given
from hypothesis import strategies as st

from collm.pacing.chunking import CostPrefillLimit, make_prefill_limit
from collm.pacing.config import PacingConfig
from collm.pacing.cost import StepCostModel
from collm.types import StepLoad


class LinearCost:
    """20 ms a step, 1 ms per decode, 0.5 ms per prefill token, 1 µs per key."""

    def upper_s(self, load: StepLoad) -> float:
        return (
            0.02
            + 1e-3 * load.num_decode_tokens
            + 0.5e-3 * load.num_prefill_tokens
            + 1e-6 * load.num_context_tokens
        )


def limit() -> CostPrefillLimit:
    return CostPrefillLimit(LinearCost(), tpot_s=0.1, min_tokens=16, max_tokens=512)


def test_nothing_decoding_takes_the_maximum() -> None:
    assert limit().prefill_tokens(0, 0) == 512


def test_chunk_fills_what_decodes_leave_of_the_objective() -> None:
    # 100 - 20 - 10 - 1 = 69 ms at 0.501 ms a token.
    assert limit().prefill_tokens(10, 1_000) == 137


def test_prefill_gets_on_when_decodes_alone_take_too_long() -> None:
    assert limit().prefill_tokens(90, 1_000) == 16


@given(st.integers(1, 100), st.integers(0, 30_000))
def test_chunk_is_the_largest_that_keeps_the_objective(num_decode: int, num_context: int) -> None:
    num_tokens = limit().prefill_tokens(num_decode, num_context)

    def total_s(num_prefill: int) -> float:
        load = StepLoad(
            num_decode_tokens=num_decode,
            num_prefill_tokens=num_prefill,
            num_context_tokens=num_context + num_prefill,
        )
        return LinearCost().upper_s(load)

    assert num_tokens == 16 or total_s(num_tokens) <= 0.1 + 1e-9
    assert num_tokens == 512 or total_s(num_tokens + 1) > 0.1 - 1e-9


def test_prefill_that_costs_nothing_takes_the_maximum() -> None:
    cost = StepCostModel(prior=(1e-3, 1e-4, 0.0, 0.0, 0.0))
    assert make_prefill_limit(PacingConfig(), cost).prefill_tokens(4, 100) == 512


@pytest.mark.parametrize("num_decode", [1, 32])
def test_configured_limit_works_on_the_prior(num_decode: int) -> None:
    config = PacingConfig(min_prefill_tokens=8, max_prefill_tokens=64)
    tokens = make_prefill_limit(config, StepCostModel()).prefill_tokens(num_decode, 500)
    assert 8 <= tokens <= 64
