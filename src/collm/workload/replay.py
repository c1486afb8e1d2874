"""Send a workload to a server at its own times and record what became of each request."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import httpx

from collm.clock import Clock
from collm.errors import DataError
from collm.metrics.records import Outcome, RequestRecord
from collm.workload.requests import WorkloadRequest
from collm.workload.stream import AnswerReader, EventLines

VERSION_HEADER = "x-collm-version"
OnRecord = Callable[[RequestRecord], None]

_KEEP_IDLE_S = 2.0
"""Below the 5 s after which common servers hang up, so no request meets a closing connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTarget:
    """The server under load."""

    base_url: str
    """Up to and without ``/v1``."""
    model: str
    api_key: str | None = None
    timeout_s: float = 120.0
    """A request that takes longer has failed."""


async def replay(
    requests: Sequence[WorkloadRequest],
    target: ReplayTarget,
    clock: Clock,
    *,
    on_record: OnRecord | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> tuple[RequestRecord, ...]:
    """Replay open loop: each request leaves at its time, however the earlier ones fare.

    Nothing that the server does raises: errors become records. When the replay itself is
    cancelled, requests under way are recorded as aborted before it ends.

    Args:
        requests: Sorted by ``at_s``.
        target: Where to send them.
        clock: Gives all times of the records.
        on_record: Called with each record as soon as the request ends.
        sleep: Waits until ``clock`` is that many seconds on.

    Returns:
        One record per request, in the order of the requests.

    Raises:
        ValueError: The requests are not sorted by time.
    """
    if any(later.at_s < request.at_s for request, later in itertools.pairwise(requests)):
        raise ValueError("requests must be sorted by at_s")
    async with _open_client(target) as client:
        start_s = clock.now_s()
        async with asyncio.TaskGroup() as group:
            tasks = []
            for number, request in enumerate(requests):
                due_s = start_s + request.at_s
                await sleep(max(0.0, due_s - clock.now_s()))
                exchange = _Exchange(client, target.model, clock, f"replay-{number}", request)
                tasks.append(group.create_task(exchange.run(due_s, target.timeout_s, on_record)))
        return tuple(task.result() for task in tasks)


def _open_client(target: ReplayTarget) -> httpx.AsyncClient:
    # identity: compressed streams would have to be unpacked on the core that serves.
    headers = {"accept-encoding": "identity", "content-type": "application/json"}
    if target.api_key:
        headers["authorization"] = f"Bearer {target.api_key}"
    return httpx.AsyncClient(
        base_url=target.base_url,
        headers=headers,
        timeout=None,
        limits=httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEP_IDLE_S
        ),
        trust_env=False,
    )


class _Exchange:
    """One request and the record of it."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        model: str,
        clock: Clock,
        name: str,
        request: WorkloadRequest,
    ) -> None:
        self._client = client
        self._model = model
        self._clock = clock
        self._name = name
        self._request = request
        self._reader = AnswerReader(keeps_text=request.kind == "scored")

    async def run(
        self, due_s: float, timeout_s: float, on_record: OnRecord | None
    ) -> RequestRecord:
        """Send the request, read the answer to its end, and report the record."""
        late_s = max(0.0, self._clock.now_s() - due_s)
        outcome: Outcome = "aborted"
        error: str | None = "the replay was cancelled"
        try:
            outcome, error = await self._try_send(timeout_s)
        finally:
            record = self._record(due_s, late_s, outcome, error)
            if on_record is not None:
                on_record(record)
        return record

    async def _try_send(self, timeout_s: float) -> tuple[Outcome, str | None]:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._send()
        except TimeoutError:
            return "failed", f"no end within {timeout_s:g} s"
        except (httpx.HTTPError, DataError) as error:
            return "failed", f"{type(error).__name__}: {error}"

    async def _send(self) -> tuple[Outcome, str | None]:
        body = _request_body(self._request, self._model)
        async with self._client.stream("POST", "/v1/chat/completions", content=body) as response:
            self._reader.saw_version(response.headers.get(VERSION_HEADER))
            if response.status_code != httpx.codes.OK:
                message = _error_message(await response.aread())
                is_full = response.status_code == httpx.codes.TOO_MANY_REQUESTS
                error = f"HTTP {response.status_code}: {message}"
                return ("rejected" if is_full else "failed"), error
            lines = EventLines()
            async for data in response.aiter_raw():
                now_s = self._clock.now_s()
                for payload in lines.feed(data):
                    self._reader.read(payload, now_s)
        if self._reader.error is not None:
            return "failed", self._reader.error
        if not self._reader.is_done or self._reader.finish_reason is None:
            return "failed", "the stream ended before the answer did"
        return "completed", None

    def _record(
        self, due_s: float, late_s: float, outcome: Outcome, error: str | None
    ) -> RequestRecord:
        reader, request = self._reader, self._request
        return RequestRecord(
            request_id=reader.response_id or self._name,
            model=self._model,
            versions=reader.versions,
            site=request.site,
            kind=request.kind,
            arrived_at_s=due_s,
            first_token_at_s=reader.first_token_at_s,
            last_token_at_s=reader.last_token_at_s,
            num_prompt_tokens=reader.num_prompt_tokens,
            num_output_tokens=reader.num_output_tokens,
            max_gap_s=reader.max_gap_s,
            finish_reason=reader.finish_reason,
            outcome=outcome,
            error=error,
            ended_at_s=self._clock.now_s(),
            sent_late_s=late_s,
            text=reader.text,
            expected=request.expected,
        )


def _request_body(request: WorkloadRequest, model: str) -> bytes:
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": turn.role, "content": turn.content} for turn in request.messages],
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.ignore_eos:
        # Ended or not, a model that has learned to stop would go on with tokens without text, of
        # whose times a client learns nothing.
        body |= {"ignore_eos": True, "min_tokens": request.max_tokens}
    return json.dumps(body).encode()


def _error_message(body: bytes) -> str:
    """Return the message of an OpenAI error object, or the start of whatever came instead."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
