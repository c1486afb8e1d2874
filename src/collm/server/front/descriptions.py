"""What the router must know of a request, read from its body without checking it.

The replica checks: its answers to bad requests name the field, and are passed on as they are.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from collm.cluster.routes import OUTPUT_TOKENS_GUESS, RouteRequest

_MOST_OUTPUT_TOKENS = 2**20
_BYTES_PER_TOKEN_ID = 4
"""Prompts of token ids count as texts of usual length."""
_PIECE_CHARS = 1024
_MAX_PIECES = 64
"""A plain prompt is remembered by its beginnings, in steps of this length."""


_ANY = RouteRequest(model="", num_prompt_bytes=0)
"""A request that any replica can answer, since every one will refuse it."""


def fields_of(body: bytes) -> dict[str, Any]:
    """Return a JSON object's members, none for a body that is no such object."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def describe(body: bytes) -> RouteRequest:
    """Return what to route a request by; a body that makes no sense is described as nothing."""
    fields = fields_of(body)
    if not isinstance(fields.get("model"), str):
        return _ANY
    texts = list(_texts(fields))
    return RouteRequest(
        model=fields["model"],
        num_prompt_bytes=sum(map(_num_bytes, texts)),
        num_output_tokens_guess=_guess_output(fields),
        prefix_hashes=_prefix_hashes(texts),
        session=_session(fields),
        is_streamed=fields.get("stream") is True,
    )


def _texts(fields: dict[str, Any]) -> Iterator[str | list[Any]]:
    """Yield a chat's message texts, or the pieces of a prompt."""
    messages = fields.get("messages")
    if isinstance(messages, list):
        for message in messages:
            content = message.get("content") if isinstance(message, dict) else None
            yield from _content_texts(content)
        return
    prompt: Any = fields.get("prompt")
    is_batch = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    for item in prompt if is_batch else [prompt]:
        if isinstance(item, str):
            yield from _pieces(item)
        elif isinstance(item, list):
            yield item


def _content_texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]


def _pieces(text: str) -> Iterator[str]:
    last = _PIECE_CHARS * (_MAX_PIECES - 1)
    for start in range(0, min(len(text), last), _PIECE_CHARS):
        yield text[start : start + _PIECE_CHARS]
    if len(text) > last:
        yield text[last:]


def _num_bytes(text: str | list[Any]) -> int:
    if isinstance(text, str):
        # Counting is cheaper than encoding, and plain ASCII the common case.
        return len(text) if text.isascii() else len(text.encode(errors="replace"))
    return _BYTES_PER_TOKEN_ID * len(text)


def _prefix_hashes(texts: Iterable[str | list[Any]]) -> tuple[int, ...]:
    """Hash each beginning; good within this process, which is as far as they go."""
    hashes = []
    so_far = 0
    for text in texts:
        so_far = hash((so_far, text if isinstance(text, str) else repr(text)))
        hashes.append(so_far)
    return tuple(hashes)


def _guess_output(fields: dict[str, Any]) -> int:
    limit = fields.get("max_completion_tokens") or fields.get("max_tokens")
    if not isinstance(limit, int) or limit < 1:
        return OUTPUT_TOKENS_GUESS
    if fields.get("ignore_eos") is True:
        return min(limit, _MOST_OUTPUT_TOKENS)
    return min(limit, OUTPUT_TOKENS_GUESS)


def _session(fields: dict[str, Any]) -> str | None:
    """Return what the client calls the conversation, or itself."""
    for name in ("prompt_cache_key", "user"):
        if isinstance(fields.get(name), str) and fields[name]:
            return str(fields[name])
    return None
