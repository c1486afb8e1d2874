from typing import Any

import pytest

from collm.errors import ConfigError
from collm.pacing.config import Objectives, PacingConfig


def test_objectives_keep_the_margin_back() -> None:
    objectives = PacingConfig(ttft_s=1.0, tpot_s=0.2, margin_share=0.25).objectives
    assert objectives.ttft_s == pytest.approx(0.75)
    assert objectives.tpot_s == pytest.approx(0.15)
    assert objectives.gap_s == pytest.approx(0.3)


def test_gap_is_twice_tpot_unless_given() -> None:
    assert Objectives(tpot_s=0.05).gap_s == 0.1
    assert Objectives(tpot_s=0.05, max_itl_s=0.3).gap_s == 0.3


def test_quantum_limit_is_converted_to_seconds() -> None:
    assert PacingConfig(max_quantum_ms=25).max_quantum_s == 0.025


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("budget", "fast"),
        ("ttft_s", 0.0),
        ("tpot_s", float("nan")),
        ("max_itl_s", -0.1),
        ("margin_share", 1.0),
        ("max_quantum_ms", float("inf")),
        ("quantile", 1.0),
        ("credit_share", -0.1),
        ("credit_burst_s", 0.0),
        ("min_prefill_tokens", 0),
        ("min_prefill_tokens", 1_000),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_value(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{field}: .*{value}.*must be"):
        PacingConfig(**{field: value})
