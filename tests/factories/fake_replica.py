"""A scripted replica for tests of the HTTP side: bytes as tokens, events as written."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collm.errors import UnknownAdapterError
from collm.server.backend import Replica
from collm.types import (
    BASE,
    FinishReason,
    ModelCard,
    Request,
    RequestId,
    TokenEvent,
    TokenLogprobs,
    VersionId,
    VersionInfo,
)
from factories.waiting import WAIT_S

EOS = 256
"""The one special token; lower ids are bytes."""

BASE_MODEL = "org/tiny"
VERSION = VersionId("helper@2")
INFO = VersionInfo(
    version=VERSION,
    adapter="helper",
    digest="ab" * 32,
    rank=8,
    slot=0,
    num_pins=1,
    is_active=True,
)


class ByteDetokenizer:
    def __init__(self) -> None:
        self._pending = b""

    def push(self, token_id: int) -> str:
        if token_id == EOS:
            return ""
        self._pending += bytes([token_id])
        try:
            text = self._pending.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return ""
            text = self._pending.decode(errors="replace")
        self._pending = b""
        return text

    def flush(self) -> str:
        text, self._pending = self._pending.decode(errors="replace"), b""
        return text


class ByteTokenizer:
    vocab_size = EOS + 1

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        text = "".join(f"<{m['role']}>{m['content']}\n" for m in messages)
        return self.encode(text + ("<assistant>" if add_generation_prompt else ""))

    def detokenizer(self) -> ByteDetokenizer:
        return ByteDetokenizer()

    def token_text(self, token_id: int) -> str:
        return "<eos>" if token_id == EOS else bytes([token_id]).decode(errors="replace")


@dataclass(frozen=True)
class Hold:
    """In a script: wait here until the request is released or aborted."""


Script = Callable[[Request], list[TokenEvent | Hold]]


def events_for(
    request: Request,
    output: bytes,
    *,
    choice: int = 0,
    finish: FinishReason = FinishReason.STOP,
    version: VersionId = BASE,
) -> list[TokenEvent | Hold]:
    """Events of one choice that says ``output``; a stop comes as an EOS token."""
    ids = list(output) + ([EOS] if finish is FinishReason.STOP else [])
    logprobs = None
    if request.sampling.logprobs is not None:
        alternatives = [(ord("x"), -0.5), (ord("y"), float("-inf"))]
        logprobs = TokenLogprobs(-0.25, tuple(alternatives[: request.sampling.logprobs]))
    return [
        TokenEvent(
            request_id=request.request_id,
            choice=choice,
            token_id=token_id,
            finish_reason=finish if number == len(ids) - 1 else None,
            version=version,
            num_cached_tokens=3,
            logprobs=logprobs,
        )
        for number, token_id in enumerate(ids)
    ]


def saying(*outputs: bytes, finish: FinishReason = FinishReason.STOP) -> Script:
    """Return a script whose choices say these outputs, one token of each choice at a time."""

    def script(request: Request) -> list[TokenEvent | Hold]:
        version = BASE if request.model == BASE_MODEL else VERSION
        columns = [
            events_for(
                request,
                outputs[choice % len(outputs)][: request.sampling.max_tokens],
                choice=choice,
                finish=finish,
                version=version,
            )
            for choice in range(request.n)
        ]
        longest = max(map(len, columns))
        return [column[i] for i in range(longest) for column in columns if i < len(column)]

    return script


def failing(error: Exception) -> Script:
    """Return a script that fails at once."""
    return lambda request: [
        TokenEvent(
            request_id=request.request_id,
            choice=0,
            token_id=None,
            finish_reason=FinishReason.ERROR,
            error=error,
        )
    ]


class FakeStream:
    """A scripted request in flight; choices that are finished say nothing more."""

    def __init__(self, events: AsyncGenerator[TokenEvent, None], finished: list[int]) -> None:
        self._events = events
        self._finished = finished

    def __aiter__(self) -> "FakeStream":
        return self

    async def __anext__(self) -> TokenEvent:
        while (event := await anext(self._events)).choice in self._finished:
            pass
        return event

    def finish(self, choice: int) -> None:
        self._finished.append(choice)

    async def aclose(self) -> None:
        await self._events.aclose()


class FakeReplica:
    """Plays a script for every request and remembers what happened."""

    base_model = BASE_MODEL
    max_model_len = 200

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or saying(b"Hello!")
        self.tokenizer = ByteTokenizer()
        self.is_alive = True
        self.requests: list[Request] = []
        self.calls: list[tuple[Request, ...]] = []
        """The requests that were submitted together."""
        self.closed_early: list[RequestId] = []
        self.finished: dict[RequestId, list[int]] = {}
        """Choices that were ended from outside."""
        self.closing = threading.Condition()
        self._held: dict[RequestId, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}
        self._aborted: set[RequestId] = set()
        self._is_released = False

    def now_s(self) -> float:
        return 12.5

    def submit(self, *requests: Request) -> list[FakeStream]:
        self.calls.append(requests)
        return [self._start(request) for request in requests]

    def _start(self, request: Request) -> FakeStream:
        self.requests.append(request)
        finished = self.finished.setdefault(request.request_id, [])
        return FakeStream(self._play(request), finished)

    async def _play(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        is_complete = False
        events = self._events(request)
        try:
            for number, event in enumerate(events, 1):
                if isinstance(event, Hold):
                    await self._wait(request.request_id)
                    continue
                if request.request_id in self._aborted:
                    event = event._replace(token_id=None, finish_reason=FinishReason.ABORT)
                is_complete = number == len(events)
                await asyncio.sleep(0)
                yield event
        finally:
            if not is_complete:
                with self.closing:
                    self.closed_early.append(request.request_id)
                    self.closing.notify_all()

    def _events(self, request: Request) -> list[TokenEvent | Hold]:
        names = [card.id for card in self.models()]
        if request.model not in names:
            error = UnknownAdapterError(f"no '{request.model}'; being served: {', '.join(names)}")
            return failing(error)(request)
        return self.script(request)

    async def _wait(self, request_id: RequestId) -> None:
        event = asyncio.Event()
        self._held[request_id] = (asyncio.get_running_loop(), event)
        if self._is_released or request_id in self._aborted:
            return
        await event.wait()

    def release(self) -> None:
        """Let every request go on, those that have not come to their hold yet as well."""
        self._is_released = True
        for loop, event in tuple(self._held.values()):
            loop.call_soon_threadsafe(event.set)

    def abort(self, request_id: RequestId) -> None:
        self._aborted.add(request_id)
        if request_id in self._held:
            loop, event = self._held[request_id]
            loop.call_soon_threadsafe(event.set)

    def wait_closed_early(self, count: int = 1) -> bool:
        """Wait until so many requests were closed before their end."""
        with self.closing:
            return self.closing.wait_for(lambda: len(self.closed_early) >= count, WAIT_S)

    def models(self) -> tuple[ModelCard, ...]:
        return (
            ModelCard(id=BASE_MODEL, version=BASE),
            ModelCard(id="helper", version=VERSION, parent=BASE_MODEL),
            ModelCard(id=VERSION, version=VERSION, parent=BASE_MODEL),
        )

    def versions(self) -> tuple[VersionInfo, ...]:
        return (INFO,)

    def snapshot(self) -> Mapping[str, Any]:
        return {"num_running": 0}

    def metrics_text(self) -> bytes:
        return b"collm_requests_total 1.0\n"


def as_replica(fake: FakeReplica) -> Replica:
    """Check, by type, that the fake is what the server asks for."""
    return fake
