import pytest

from collm.engine.config import SchedulerConfig
from collm.errors import ConfigError


@pytest.mark.parametrize("name", ["max_step_tokens", "max_running", "max_waiting"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True])
def test_a_limit_that_is_no_positive_integer_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=rf"{name} is {value!r}; .* at least 1"):
        SchedulerConfig(**{name: value})


def test_a_prefix_cache_switch_that_is_no_boolean_is_refused():
    with pytest.raises(ConfigError, match="enable_prefix_cache is 'yes'"):
        SchedulerConfig(enable_prefix_cache="yes")
