"""Tokenizing that does not hold up the streams of others."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_INLINE_CHARS = 8192
"""Up to this long (about a millisecond), a trip to another thread costs more than it saves."""
_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenizing")
"""Apart from those that read adapters and files from outside, which may take their time."""


_CHARS_OF_A_MESSAGE = 32
"""What a message costs by itself, in characters: the template is run over empty ones too."""


def chat_size(contents: Sequence[str]) -> int:
    """Return what encoding a chat of these messages costs, in characters of plain text."""
    return sum(map(len, contents)) + _CHARS_OF_A_MESSAGE * len(contents)


async def run_by_size(num_chars: int, encode: Callable[[], T]) -> T:
    """Return ``encode()``, run in a thread when the text is long."""
    if num_chars <= _INLINE_CHARS:
        return encode()
    return await asyncio.get_running_loop().run_in_executor(_THREADS, encode)
