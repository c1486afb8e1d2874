"""Messages from asyncio to the step loop, and its answers."""

import asyncio
import threading
from concurrent.futures import Future
from typing import TypeVar

from collm.errors import CollmError
from collm.replica.inbox import Inbox, Message

T = TypeVar("T")
_ALIVE_POLL_S = 0.5


class Post:
    """Carries messages to the loop; used in the event loop's thread."""

    def __init__(self, inbox: Inbox, thread: threading.Thread) -> None:
        """Put messages into ``inbox``, which ``thread`` drains."""
        self._inbox = inbox
        self._thread = thread

    @property
    def is_alive(self) -> bool:
        """Whether the step loop still runs."""
        return self._thread.is_alive()

    def send(self, message: Message) -> None:
        """Hand a message over."""
        self._inbox.put(message)

    async def ask(self, message: Message, reply: "Future[T]") -> T:
        """Hand a message over and wait for the answer that it names.

        Raises:
            CollmError: The step loop has ended, so that no answer comes; or what it answers.
        """
        self._inbox.put(message)
        future = asyncio.wrap_future(reply)
        while not future.done():
            if not self.is_alive:
                raise CollmError("the step loop has ended; restart the server")
            await asyncio.wait((future,), timeout=_ALIVE_POLL_S)
        return future.result()
