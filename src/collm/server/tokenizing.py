"""Tokenizing that does not hold up the streams of others."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_INLINE_CHARS = 8192
"""Up to this long (about a millisecond), a trip to another thread costs more than it saves."""


async def run_by_size(num_chars: int, encode: Callable[[], T]) -> T:
    """Return ``encode()``, run in a thread when the text is long."""
    if num_chars <= _INLINE_CHARS:
        return encode()
    return await asyncio.to_thread(encode)
