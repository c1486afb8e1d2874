"""The coordinator's line to a replica: its ``/control`` routes over HTTP."""

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import httpx

from collm.errors import CollmError, RoundError, StateError, UnknownObjectError, UnreachableError
from collm.federated.allotment import Allotment
from collm.federated.rounds import GatePlan, GateReport, Progress, RoundPlan, UpdateReport
from collm.types import RollbackCause, VersionId

T = TypeVar("T")

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""Names of an adapter's files, as PEFT has them."""
_CALL_S = 10.0
"""Longest that a short call may take; a replica answers between two steps."""
_TRANSFER_S = 120.0
"""Longest that an adapter's way through the network may take."""
_MAX_MESSAGE_BYTES = 4 << 20
MAX_UPDATE_BYTES = 1 << 30
"""Larger answers are not read: what a member sends must not fill the front's memory."""
_BUSY = (httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.TOO_MANY_REQUESTS)
_MAX_QUOTED = 300


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """A PEFT folder's content."""

    config: bytes
    """``ADAPTER_CONFIG``."""
    weights: bytes
    """``ADAPTER_WEIGHTS``."""


class MemberControl(Protocol):
    """What the coordinator asks of a member; every call may be repeated.

    All raise ``UnreachableError`` when the member does not answer, and another ``CollmError`` when
    it refuses: ``UnknownObjectError`` for what it does not know (any more), ``StateError`` for what
    it cannot do yet.
    """

    async def follow(self, allotment: Allotment) -> None:
        """Allot it its part of an allocation; repeating that renews it."""
        ...

    async def start_round(self, plan: RoundPlan) -> None:
        """Ask it to train; no effect when it does already."""
        ...

    async def round_report(self, adapter: str, number: int) -> Progress[UpdateReport]:
        """Return how far it is with a round."""
        ...

    async def finish_round(self, adapter: str, number: int) -> None:
        """Ask it to stop training for a round and report what it has."""
        ...

    async def update(self, adapter: str, number: int) -> bytes:
        """Return the safetensors file of a round that it has reported."""
        ...

    async def publish(
        self, version: VersionId, files: AdapterFiles, metadata: Mapping[str, str]
    ) -> None:
        """Bring it a version; no effect when it has it already."""
        ...

    async def promote(
        self,
        version: VersionId,
        reason: str,
        numbers: Mapping[str, Any],
        cause: RollbackCause | None = None,
    ) -> None:
        """Make it serve a version, by ``cause`` an earlier one; returns when it does."""
        ...

    async def return_to_base(
        self,
        adapter: str,
        reason: str,
        numbers: Mapping[str, Any],
        cause: RollbackCause = "asked",
    ) -> None:
        """Make it serve the bare base model under an adapter's name; returns when it does."""
        ...

    async def start_gate(self, plan: GatePlan) -> None:
        """Ask it to compare a candidate; no effect when it does already."""
        ...

    async def gate_report(self, adapter: str, number: int) -> Progress[GateReport]:
        """Return how far it is with comparing a round's candidate."""
        ...


class ReplicaControl:
    """``MemberControl`` over HTTP, with the cluster's secret."""

    def __init__(self, client: httpx.AsyncClient, url: str, secret: str) -> None:
        """Talk to the replica at ``url``; ``client`` is shared and stays its owner's."""
        self._client = client
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {secret}"}

    async def follow(self, allotment: Allotment) -> None:
        """Allot it its part of an allocation; repeating that renews it."""
        await self._call("POST", "/control/allocation", json=allotment.to_json())

    async def start_round(self, plan: RoundPlan) -> None:
        """Ask it to train; no effect when it does already."""
        await self._call("POST", "/control/rounds", json=plan.to_json())

    async def round_report(self, adapter: str, number: int) -> Progress[UpdateReport]:
        """Return how far it is with a round."""
        content = await self._call("GET", _round_path(adapter, number))
        return _progress(content, UpdateReport.from_json)

    async def finish_round(self, adapter: str, number: int) -> None:
        """Ask it to stop training for a round and report what it has."""
        await self._call("POST", f"{_round_path(adapter, number)}/finish")

    async def update(self, adapter: str, number: int) -> bytes:
        """Return the safetensors file of a round that it has reported."""
        return await self._call(
            "GET",
            f"{_round_path(adapter, number)}/update",
            timeout_s=_TRANSFER_S,
            max_bytes=MAX_UPDATE_BYTES,
        )

    async def publish(
        self, version: VersionId, files: AdapterFiles, metadata: Mapping[str, str]
    ) -> None:
        """Bring it a version; no effect when it has it already."""
        await self._call(
            "PUT",
            f"/control/versions/{quote(version, safe='@')}",
            timeout_s=_TRANSFER_S,
            files={
                ADAPTER_CONFIG: (ADAPTER_CONFIG, files.config),
                ADAPTER_WEIGHTS: (ADAPTER_WEIGHTS, files.weights),
            },
            data={"metadata": json.dumps(dict(metadata))},
        )

    async def promote(
        self,
        version: VersionId,
        reason: str,
        numbers: Mapping[str, Any],
        cause: RollbackCause | None = None,
    ) -> None:
        """Make it serve a version, by ``cause`` an earlier one; returns when it does."""
        content = {"version": version, "reason": reason, "numbers": dict(numbers), "cause": cause}
        await self._call("POST", "/control/promote", json=content)

    async def return_to_base(
        self,
        adapter: str,
        reason: str,
        numbers: Mapping[str, Any],
        cause: RollbackCause = "asked",
    ) -> None:
        """Make it serve the bare base model under an adapter's name; returns when it does."""
        content = {"adapter": adapter, "reason": reason, "numbers": dict(numbers), "cause": cause}
        await self._call("POST", "/control/return_to_base", json=content)

    async def start_gate(self, plan: GatePlan) -> None:
        """Ask it to compare a candidate; no effect when it does already."""
        await self._call("POST", "/control/gate", json=plan.to_json())

    async def gate_report(self, adapter: str, number: int) -> Progress[GateReport]:
        """Return how far it is with comparing a round's candidate."""
        content = await self._call("GET", f"/control/gate/{quote(adapter, safe='')}/{number}")
        return _progress(content, GateReport.from_json)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float = _CALL_S,
        max_bytes: int = _MAX_MESSAGE_BYTES,
        **content: Any,
    ) -> bytes:
        """Return the body of a successful answer; raise what another one means."""
        try:
            async with self._client.stream(
                method, self._url + path, headers=self._headers, timeout=timeout_s, **content
            ) as response:
                body = await _read(response, max_bytes if response.is_success else _MAX_QUOTED * 8)
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"{method} {path} failed: {str(error) or type(error).__name__}"
            ) from error
        if response.is_success:
            return body
        raise _failure(response.status_code, f"{method} {path} was answered", body)


def _round_path(adapter: str, number: int) -> str:
    return f"/control/rounds/{quote(adapter, safe='')}/{number}"


async def _read(response: httpx.Response, max_bytes: int) -> bytes:
    """Return the body; of one longer than allowed, nothing when it succeeded, else a part."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            if response.is_success:
                raise RoundError(f"the answer is longer than {max_bytes} bytes")
            break
    return b"".join(parts)


def _failure(status: int, what: str, body: bytes) -> CollmError:
    message = f"{what} {status}: {_message(body)}"
    if status in _BUSY:
        return UnreachableError(message)
    if status == httpx.codes.NOT_FOUND:
        return UnknownObjectError(message)
    if status == httpx.codes.CONFLICT:
        return StateError(message)
    return RoundError(message)


def _message(body: bytes) -> str:
    """Return what an error's body says, in the OpenAI API's form or any other."""
    text = body.decode(errors="replace")
    with contextlib.suppress(ValueError, TypeError, KeyError):
        text = str(json.loads(text)["error"]["message"])
    return text[:_MAX_QUOTED]


def _progress(content: bytes, read: Callable[[object], T]) -> Progress[T]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise RoundError(f"a member's progress is no JSON: {error}") from error
    status = value.get("status") if isinstance(value, dict) else None
    match status:
        case "training" | "evaluating":
            return Progress()
        case "finished":
            return Progress(report=read(value.get("report")))
        case "failed":
            return Progress(error=str(value.get("error") or "no reason given")[:_MAX_QUOTED])
        case _:
            raise RoundError(f"a member's progress has status {str(status)[:_MAX_QUOTED]!r}")
