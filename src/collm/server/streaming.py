"""Server-sent events: chunks written from a template, usage, errors, ``[DONE]``."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from collm.server.answers import AnswerGroup
from collm.server.choices import Delta
from collm.server.dialects import Dialect
from collm.server.disconnects import until_disconnect
from collm.server.errors import ClientGoneError, reply_to
from collm.server.transcripts import Transcript

_DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """Writes one stream's chunks; what they share is serialized once.

    Args:
        common: Members that every chunk starts with.
        dialect: Wording of the choices.
        includes_usage: Whether a usage chunk will follow; if so, every other chunk says ``null``.
        reports_logprobs: Whether the client asked for log-probabilities.
    """

    def __init__(
        self,
        common: dict[str, Any],
        dialect: Dialect,
        *,
        includes_usage: bool,
        reports_logprobs: bool,
    ) -> None:
        self._dialect = dialect
        self._reports_logprobs = reports_logprobs
        shared = json.dumps(common, separators=(",", ":"))[:-1]
        self._start = f'data: {shared},"choices":['
        self._end = '],"usage":null}\n\n' if includes_usage else "]}\n\n"

    def openings(self, num_choices: int) -> bytes:
        """Return the chunks that come before any text; may be empty."""
        opening = self._dialect.opening()
        if opening is None:
            return b""
        return b"".join(self._chunk(index, opening, "null", "null") for index in range(num_choices))

    def delta(self, delta: Delta) -> bytes:
        """Return the chunks of one delta: its text, then the reason of its end."""
        logprobs = "null"
        if self._reports_logprobs and delta.tokens:
            logprobs = json.dumps(self._dialect.logprobs(delta.tokens))
        chunks = b""
        if delta.text or logprobs != "null":
            members = self._dialect.members(delta.text)
            chunks = self._chunk(delta.index, members, logprobs, "null")
        if delta.finish_reason is not None:
            members = self._dialect.members("")
            chunks += self._chunk(delta.index, members, "null", f'"{delta.finish_reason.value}"')
        return chunks

    def usage(self, usage: dict[str, object]) -> bytes:
        """Return the usage chunk, which has no choices."""
        return f'{self._start}],"usage":{json.dumps(usage)}}}\n\n'.encode()

    def _chunk(self, index: int, members: str, logprobs: str, finish_reason: str) -> bytes:
        return (
            f'{self._start}{{"index":{index},{members},"logprobs":{logprobs},'
            f'"finish_reason":{finish_reason}}}{self._end}'
        ).encode()


class EventStreamResponse(Response):
    """Streams a started group of answers; whatever ends it, the group is closed."""

    media_type = "text/event-stream"

    def __init__(
        self,
        group: AnswerGroup,
        writer: ChunkWriter,
        transcript: Transcript,
        *,
        includes_usage: bool,
        headers: dict[str, str],
    ) -> None:
        self.status_code = 200
        self.background = None
        self._group = group
        self._writer = writer
        self._transcript = transcript
        self._includes_usage = includes_usage
        # A proxy that buffers would turn a stream of tokens into one block.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})

    def init_headers(self, headers: Any = None) -> None:
        """Set headers without a length, which a stream does not know."""
        self.raw_headers = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
        ]
        self.raw_headers.append((b"content-type", b"text/event-stream; charset=utf-8"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream (ASGI)."""
        try:
            await until_disconnect(receive, self._send_all(send))
        except ClientGoneError:
            pass
        finally:
            await self._group.aclose()

    async def _send_all(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with aclosing(self._frames()) as frames:
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        opening = self._writer.openings(self._group.num_choices)
        if opening:
            yield opening
        try:
            async with aclosing(self._group.deltas()) as deltas:
                async for delta in deltas:
                    self._transcript.add(delta)
                    yield self._writer.delta(delta)
        except Exception as error:  # the headers are gone: the client learns it in the stream
            yield f"data: {json.dumps(reply_to(error).body())}\n\n".encode()
            return
        if self._includes_usage:
            yield self._writer.usage(self._group.usage())
        yield _DONE
