"""How long a prompt is by the bytes of its texts, as a front needs it to guess lengths."""

from collm.errors import RequestError
from collm.server.backend import Tokenizer

_PRIOR_TOKENS = 200
_PRIOR_BYTES = 4.0 * _PRIOR_TOKENS
"""English text, until there were prompts; they outweigh it soon."""
_MAX_TOKENS = 100_000
"""Tokens that the ratio remembers; older prompts fade."""


class PromptRatio:
    """Mean UTF-8 bytes of text per token, over the latest prompts.

    What the chat template adds to each prompt is no text. Counted as such it would make short
    prompts have few bytes in a token, so that where only these are sent, long ones would seem
    twice as long as they are, and would never be sent there.

    Args:
        num_template_tokens: Those of a prompt without any text.
    """

    def __init__(self, num_template_tokens: int = 0) -> None:
        self.num_template_tokens = num_template_tokens
        self._num_bytes = _PRIOR_BYTES
        self._num_tokens = float(_PRIOR_TOKENS)

    @property
    def bytes_per_token(self) -> float:
        """The ratio now."""
        return self._num_bytes / self._num_tokens

    def observe(self, num_bytes: int, num_tokens: int) -> None:
        """Count a chat's texts, and its prompt of so many tokens."""
        num_text_tokens = max(num_tokens - self.num_template_tokens, 0)
        keep = min(1.0, _MAX_TOKENS / (self._num_tokens + num_text_tokens))
        self._num_bytes = keep * self._num_bytes + num_bytes
        self._num_tokens = keep * self._num_tokens + num_text_tokens


def count_template_tokens(tokenizer: Tokenizer) -> int:
    """Return the tokens of a chat that says nothing; 0 where there are no chats."""
    try:
        return len(tokenizer.encode_chat([{"role": "user", "content": ""}]))
    except RequestError:
        return 0
