"""How the two OpenAI APIs write choices, chunks and log-probabilities."""

import json
import math
from collections.abc import Sequence
from typing import Any, Protocol

from collm.server.backend import Tokenizer
from collm.server.choices import TokenReport

_LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say; vLLM uses the same number."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Dialect(Protocol):
    """The wording of one API."""

    object_name: str
    chunk_object_name: str
    id_prefix: str

    def opening(self) -> str | None:
        """Return the JSON members of a choice's first chunk, before any text."""
        ...

    def members(self, text: str) -> str:
        """Return the JSON members that carry a piece of text in a chunk."""
        ...

    def choice(self, text: str) -> dict[str, Any]:
        """Return the members that carry a whole text in a plain answer."""
        ...

    def logprobs(self, tokens: Sequence[TokenReport]) -> dict[str, Any]:
        """Return the log-probabilities of shown tokens."""
        ...


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LOWEST_LOGPROB


class ChatDialect:
    """Chat completions."""

    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"
    id_prefix = "chatcmpl-"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def opening(self) -> str | None:
        """Return the delta that names the role."""
        return '"delta":{"role":"assistant","content":""}'

    def members(self, text: str) -> str:
        """Return a delta; an empty one for no text."""
        return f'"delta":{{"content":{json.dumps(text)}}}' if text else '"delta":{}'

    def choice(self, text: str) -> dict[str, Any]:
        """Return the assistant's message."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def logprobs(self, tokens: Sequence[TokenReport]) -> dict[str, Any]:
        """Return one entry per token, each with its alternatives."""
        content = [
            self._entry(token.token_id, token.logprobs.logprob)
            | {"top_logprobs": [self._entry(*pair) for pair in token.logprobs.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._tokenizer.token_text(token_id)
        # A token that holds part of a character has no text of its own, and so no bytes to show.
        data = None if _REPLACEMENT in text else list(text.encode())
        return {"token": text, "logprob": _finite(logprob), "bytes": data}


class CompletionDialect:
    """Plain completions."""

    object_name = "text_completion"
    chunk_object_name = "text_completion"
    id_prefix = "cmpl-"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def opening(self) -> str | None:
        """Return nothing: a completion's first chunk has text already."""
        return None

    def members(self, text: str) -> str:
        """Return the text."""
        return f'"text":{json.dumps(text)}'

    def choice(self, text: str) -> dict[str, Any]:
        """Return the text."""
        return {"text": text}

    def logprobs(self, tokens: Sequence[TokenReport]) -> dict[str, Any]:
        """Return parallel lists over the tokens."""
        return {
            "tokens": [self._tokenizer.token_text(token.token_id) for token in tokens],
            "token_logprobs": [_finite(token.logprobs.logprob) for token in tokens],
            "top_logprobs": [self._alternatives(token) for token in tokens],
            "text_offset": [token.text_offset for token in tokens],
        }

    def _alternatives(self, token: TokenReport) -> dict[str, float]:
        text = self._tokenizer.token_text
        return {text(token_id): _finite(logprob) for token_id, logprob in token.logprobs.top}
