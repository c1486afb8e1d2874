"""What holds for all tests: hypothesis calls nothing late, for any other process may go first."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "however busy", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("however busy")
