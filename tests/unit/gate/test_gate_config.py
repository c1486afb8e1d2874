import math

import pytest

from collm.errors import ConfigError
from collm.gate.config import GENERAL, GateConfig


def test_defaults_are_allowed_and_general_text_has_its_own_bound() -> None:
    config = GateConfig(slice_bound=0.2, general_bound=0.5)

    assert (config.bound("code"), config.bound(GENERAL)) == (0.2, 0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("error", 0.0),
        ("error", 1.0),
        ("watch_error", math.nan),
        ("min_samples", 0),
        ("min_slice_samples", 0),
        ("max_worse", 0),
        ("max_samples", 23),
        ("slice_bound", -0.1),
        ("general_bound", math.inf),
        ("evaluation_share", 0.0),
        ("evaluation_share", 1.1),
        ("rotate_share", 1.1),
    ],
)
def test_a_value_out_of_range_is_named_with_what_is_allowed(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"gate\.{name} is {value}; allowed is "):
        GateConfig(**{name: value})
