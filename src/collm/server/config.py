"""Settings of a replica's HTTP listener."""

from dataclasses import dataclass

from collm.errors import ConfigError

_MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where a replica listens and what it accepts."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 accepts connections from other machines."""
    port: int = 8000
    """TCP port; 0 takes a free one, which the ready line names."""
    max_body_bytes: int = 8 * 1024 * 1024
    """Largest request body; a larger one is answered with 413."""
    max_file_bytes: int = 64 * 1024 * 1024
    """Largest training file that can be uploaded; a larger one is answered with 413."""
    max_adapter_bytes: int = 512 * 1024 * 1024
    """Largest weights file of an imported adapter; a larger one is answered with 413."""
    drain_timeout_s: float = 30.0
    """How long open answers may go on after SIGTERM before they are ended with an error event."""
    access_log: bool = False
    """Log one line per HTTP request."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= _MAX_PORT:
            raise ConfigError(f"port is {self.port}; allowed: 0 to {_MAX_PORT}")
        if self.max_body_bytes < 1:
            raise ConfigError(f"max_body_bytes is {self.max_body_bytes}; allowed: 1 or more")
        if self.max_file_bytes < 1:
            raise ConfigError(f"max_file_bytes is {self.max_file_bytes}; allowed: 1 or more")
        if self.max_adapter_bytes < 1:
            raise ConfigError(f"max_adapter_bytes is {self.max_adapter_bytes}; allowed: 1 or more")
        if not 0 <= self.drain_timeout_s < float("inf"):
            raise ConfigError(f"drain_timeout_s is {self.drain_timeout_s}; allowed: 0 or more")
