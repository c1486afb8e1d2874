"""Read a streamed chat answer: bytes to events, events to times, versions and text."""

import json
from typing import Any

from collm.errors import DataError
from collm.types import VersionId

DONE = b"[DONE]"


class EventLines:
    """Cut a byte stream into the payloads of its ``data:`` lines.

    Takes one line for one event, as OpenAI-style servers write them.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take in bytes and return the payloads that are complete now."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class AnswerReader:
    """What one streamed answer has said so far; times are those handed in.

    Args:
        keeps_text: Whether to collect the answer's text.
    """

    def __init__(self, *, keeps_text: bool) -> None:
        self.response_id: str | None = None
        self.versions: tuple[VersionId, ...] = ()
        """Every version named by the header or any chunk, first seen first."""
        self.first_token_at_s: float | None = None
        self.last_token_at_s: float | None = None
        self.max_gap_s: float | None = None
        self.num_prompt_tokens = 0
        self.finish_reason: str | None = None
        self.error: str | None = None
        """What an error event said; the answer is void then."""
        self.is_done = False
        self._keeps_text = keeps_text
        self._pieces: list[str] = []
        self._num_text_chunks = 0
        self._num_reported_tokens: int | None = None

    @property
    def num_output_tokens(self) -> int:
        """Return the tokens that the server counted; without its count, the chunks with text."""
        if self._num_reported_tokens is None:
            return self._num_text_chunks
        return self._num_reported_tokens

    @property
    def text(self) -> str | None:
        """Return the text so far; ``None`` if it is not kept."""
        return "".join(self._pieces) if self._keeps_text else None

    def saw_version(self, name: str | None) -> None:
        """Note a version named by the server."""
        if name and name not in self.versions:
            self.versions = (*self.versions, VersionId(name))

    def read(self, payload: bytes, now_s: float) -> None:
        """Take in one event.

        Raises:
            DataError: The payload is not a JSON object of the expected shape.
        """
        if payload == DONE:
            self.is_done = True
            return
        try:
            self._read_chunk(json.loads(payload), now_s)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            start = payload[:80].decode(errors="replace")
            raise DataError(f"not a chat completion chunk: {start}") from error

    def _read_chunk(self, chunk: dict[str, Any], now_s: float) -> None:
        if "error" in chunk:
            self.error = str(chunk["error"].get("message", chunk["error"]))
            return
        self.response_id = self.response_id or chunk.get("id")
        self.saw_version(chunk.get("system_fingerprint"))
        if usage := chunk.get("usage"):
            self.num_prompt_tokens = int(usage["prompt_tokens"])
            self._num_reported_tokens = int(usage["completion_tokens"])
        for choice in chunk.get("choices", ()):
            self._read_choice(choice, now_s)

    def _read_choice(self, choice: dict[str, Any], now_s: float) -> None:
        content = choice["delta"].get("content")
        reason = choice.get("finish_reason")
        if not isinstance(content, str | None):
            raise TypeError("content is no text")
        if content:
            self._num_text_chunks += 1
            if self._keeps_text:
                self._pieces.append(content)
        if reason:
            self.finish_reason = reason
        # The first chunk carries a role and no token. A token without text (end of sequence, half
        # a character) shows at the latest with the finish reason.
        if content or reason:
            self._token_at(now_s)

    def _token_at(self, now_s: float) -> None:
        if self.last_token_at_s is None:
            self.first_token_at_s = now_s
        else:
            self.max_gap_s = max(self.max_gap_s or 0.0, now_s - self.last_token_at_s)
        self.last_token_at_s = now_s
