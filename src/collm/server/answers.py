"""Requests in flight for one HTTP call: started together, read as one stream of deltas."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from collm.server.backend import EventStream
from collm.server.choices import ChoiceText, Delta
from collm.server.errors import UnavailableError
from collm.types import BASE, FinishReason, Request, RequestId, TokenEvent, VersionId


class Answer:
    """One request in flight and the text of its choices.

    Args:
        events: The replica's events for it.
        choices: One per choice, in order.
    """

    def __init__(
        self, events: EventStream, request: Request, choices: Sequence[ChoiceText]
    ) -> None:
        self._events = events
        self._choices = choices
        self._first: TokenEvent | None = None
        self.request = request
        self.version: VersionId = BASE
        """The version that serves it; known once started."""
        self.num_cached_tokens = 0

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far, over all choices."""
        return sum(choice.num_tokens for choice in self._choices)

    async def start(self) -> None:
        """Wait for the first event; raises what the replica says against the request."""
        try:
            self._first = await anext(self._events)
        except StopAsyncIteration:
            raise UnavailableError("The replica ended without an answer.") from None
        _check(self._first)
        self.version = self._first.version or BASE
        self.num_cached_tokens = self._first.num_cached_tokens

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Yield what becomes visible until every choice has ended.

        Raises:
            UnavailableError: The replica dropped the request.
            CollmError: What went wrong in the replica.
        """
        event = self._first
        while event is not None:
            _check(event)
            if event.version not in (None, self.version):
                raise UnavailableError(
                    f"The answer was begun by {self.version} and cannot go on with {event.version}."
                )
            delta = self._choices[event.choice].push(event)
            if delta is not None:
                if delta.finish_reason is not None and event.finish_reason is None:
                    self._events.finish(event.choice)  # a stop string, which the replica can't see
                yield delta
            if all(choice.is_finished for choice in self._choices):
                return
            event = await anext(self._events, None)
        raise UnavailableError("The replica ended before the answer was complete.")

    async def aclose(self) -> None:
        """Abort what still runs."""
        await self._events.aclose()


def _check(event: TokenEvent) -> None:
    if event.finish_reason is FinishReason.ERROR:
        raise event.error or UnavailableError("The replica failed to answer.")
    if event.finish_reason is FinishReason.ABORT:
        raise UnavailableError("The replica dropped this answer before it was complete.")


class AnswerGroup:
    """The answers of one HTTP call, one per prompt; choice indices run on over all of them.

    Args:
        answers: At least one.
        open_ids: The server's set of requests in flight; holds these until ``aclose``.
    """

    def __init__(self, answers: Sequence[Answer], open_ids: set[RequestId]) -> None:
        self._answers = answers
        self._open_ids = open_ids
        self._ids = {answer.request.request_id for answer in answers}
        open_ids.update(self._ids)

    @property
    def version(self) -> VersionId:
        """The version that serves them all."""
        return self._answers[0].version

    @property
    def num_choices(self) -> int:
        """Choices over all prompts."""
        return sum(answer.request.n for answer in self._answers)

    def usage(self) -> dict[str, object]:
        """Return token counts so far, as the OpenAI API words them."""
        num_prompt = sum(len(answer.request.prompt) for answer in self._answers)
        num_output = sum(answer.num_output_tokens for answer in self._answers)
        num_cached = sum(answer.num_cached_tokens for answer in self._answers)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": num_cached},
        }

    async def start(self) -> None:
        """Wait for every prompt's first event; raises the first failure."""
        if len(self._answers) == 1:
            await self._answers[0].start()
            return
        tasks = [asyncio.create_task(answer.start()) for answer in self._answers]
        try:
            await asyncio.gather(*tasks)
        finally:
            await _end(tasks)

    def deltas(self) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of all prompts as they come."""
        if len(self._answers) == 1:
            return self._answers[0].deltas()
        return _merge([answer.deltas() for answer in self._answers])

    async def aclose(self) -> None:
        """Abort what still runs and forget the call."""
        self._open_ids.difference_update(self._ids)
        for answer in self._answers:
            await answer.aclose()


async def _merge(streams: Sequence[AsyncGenerator[Delta, None]]) -> AsyncGenerator[Delta, None]:
    arrived: asyncio.Queue[Delta | Exception | None] = asyncio.Queue()

    async def pump(stream: AsyncGenerator[Delta, None]) -> None:
        try:
            async with aclosing(stream):
                async for delta in stream:
                    arrived.put_nowait(delta)
            arrived.put_nowait(None)
        except Exception as error:  # handed to the reader, which raises it
            arrived.put_nowait(error)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        num_open = len(tasks)
        while num_open:
            item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Leave no task behind: a stream cannot be closed while one still reads it."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
