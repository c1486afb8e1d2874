"""What the HTTP side needs from a replica and its tokenizer, as protocols.

``replica.client.ReplicaClient`` fits in production; tests script a fake.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from collm.server.adapter_backend import AdapterDesk, FeedbackDesk
from collm.server.control_backend import RoundDesk
from collm.server.learning_backend import FineTuning, Uploads
from collm.types import ModelCard, Request, RequestId, TokenEvent, VersionInfo


class Detokenizer(Protocol):
    """Turns one choice's tokens into text, a complete character at a time."""

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; may be empty."""
        ...

    def flush(self) -> str:
        """Return what is still held back, replacing bytes that form no character."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids; every id is below it."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a plain text."""
        ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Return the token ids of a conversation under the model's chat template."""
        ...

    def detokenizer(self) -> Detokenizer:
        """Return a fresh incremental detokenizer, which leaves special tokens out."""
        ...

    def token_text(self, token_id: int) -> str:
        """Return one token as text, special ones included."""
        ...


class EventStream(Protocol):
    """Events of all choices of one request, until each has ended."""

    def __aiter__(self) -> AsyncIterator[TokenEvent]: ...

    def __anext__(self) -> Awaitable[TokenEvent]: ...

    def finish(self, choice: int) -> None:
        """End one choice with ``FinishReason.STOP``; no effect if it has ended."""
        ...

    def aclose(self) -> Awaitable[None]:
        """Abort what still runs; after the last event there is nothing to abort."""
        ...


class Replica(Protocol):
    """A replica's step loop, seen from asyncio."""

    @property
    def base_model(self) -> str:
        """The id that names the bare base model."""
        ...

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output together."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The base model's tokenizer."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether the step loop still runs."""
        ...

    def now_s(self) -> float:
        """Return the replica's monotonic time, which arrivals are measured on."""
        ...

    def submit(self, *requests: Request) -> Sequence[EventStream]:
        """Start the requests of one call, which one version serves; closing a stream aborts its."""
        ...

    def abort(self, request_id: RequestId) -> None:
        """End a request's choices with ``FinishReason.ABORT``; unknown ids are ignored."""
        ...

    def models(self) -> tuple[ModelCard, ...]:
        """Return everything that a request may name now."""
        ...

    def versions(self) -> tuple[VersionInfo, ...]:
        """Return the adapter versions on the device."""
        ...

    def snapshot(self) -> Mapping[str, Any]:
        """Return live numbers, ready for JSON."""
        ...

    def metrics_text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """Everything that the routes of one server act on."""

    replica: Replica
    uploads: Uploads
    fine_tuning: FineTuning
    feedback: FeedbackDesk
    adapters: AdapterDesk
    rounds: RoundDesk
