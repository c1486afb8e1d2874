"""How a trace and sample sets become requests."""

from dataclasses import dataclass

from collm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """The mix of scored and length requests, and how long their texts are."""

    scored_share: float = 0.5
    """Share of requests that are scored; at most half keeps decoding the larger part."""
    max_scored_tokens: int = 24
    """Most tokens of a scored answer."""
    chars_per_token: float = 4.5
    """Characters of filler text that make one token, on average."""
    template_tokens: int = 30
    """Tokens that the chat template adds to a message."""

    def __post_init__(self) -> None:
        if not 0 <= self.scored_share <= 1:
            raise ConfigError(f"scored_share must be in [0, 1], not {self.scored_share}")
        if self.max_scored_tokens < 1:
            raise ConfigError(f"max_scored_tokens must be at least 1, not {self.max_scored_tokens}")
        if self.chars_per_token <= 0:
            raise ConfigError(f"chars_per_token must be above 0, not {self.chars_per_token}")
        if self.template_tokens < 0:
            raise ConfigError(f"template_tokens must be at least 0, not {self.template_tokens}")
