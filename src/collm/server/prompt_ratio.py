"""How many bytes of a prompt's text make a token, as a front needs it to guess lengths."""

_PRIOR_TOKENS = 200
_PRIOR_BYTES = 4.0 * _PRIOR_TOKENS
"""English text, until there were prompts; they outweigh it soon."""
_MAX_TOKENS = 100_000
"""Tokens that the ratio remembers; older prompts fade."""


class PromptRatio:
    """Mean UTF-8 bytes of text per prompt token, template included, over the latest prompts."""

    def __init__(self) -> None:
        """Begin with what English text has."""
        self._num_bytes = _PRIOR_BYTES
        self._num_tokens = float(_PRIOR_TOKENS)

    @property
    def bytes_per_token(self) -> float:
        """The ratio now."""
        return self._num_bytes / self._num_tokens

    def observe(self, num_bytes: int, num_tokens: int) -> None:
        """Count a prompt."""
        keep = min(1.0, _MAX_TOKENS / (self._num_tokens + num_tokens))
        self._num_bytes = keep * self._num_bytes + num_bytes
        self._num_tokens = keep * self._num_tokens + num_tokens
