import pytest

from collm.cluster.routing_config import RegistryConfig, RouterConfig
from collm.errors import ConfigError


@pytest.mark.parametrize("trust_s", [0.0, -1.0, float("nan")])
def test_trust_must_be_a_time(trust_s: float) -> None:
    with pytest.raises(ConfigError, match="trust_s"):
        RouterConfig(trust_s=trust_s)


@pytest.mark.parametrize("name", ["poll_every_s", "timeout_s", "dead_after_s"])
def test_times_must_be_above_zero(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        RegistryConfig(**{name: 0.0})


def test_death_takes_more_than_one_missed_poll() -> None:
    with pytest.raises(ConfigError, match="dead_after_s"):
        RegistryConfig(poll_every_s=0.6, dead_after_s=1.0)
