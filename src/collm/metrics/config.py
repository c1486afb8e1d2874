"""What an operator sets about traces."""

from dataclasses import dataclass

from collm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesConfig:
    """Where the paths of requests and rounds are shown; needs `pip install collm[otel]`."""

    endpoint: str | None = None
    """An OpenTelemetry collector's address for traces by OTLP over HTTP, such as
    http://127.0.0.1:4318/v1/traces; null traces nothing and costs nothing."""
    sample_share: float = 1.0
    """Share of requests that are traced, in [0, 1]; one that comes as part of a trace follows
    that one's choice."""

    def __post_init__(self) -> None:
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"endpoint is {self.endpoint!r}; it must begin with http:// or https://"
            )
        if not 0.0 <= self.sample_share <= 1.0:
            raise ConfigError(f"sample_share is {self.sample_share}; allowed: 0 to 1")
