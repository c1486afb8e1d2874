import asyncio
from collections.abc import Callable

import httpx
import pytest

from collm.cluster.endpoints import Endpoint
from collm.cluster.http_source import HttpSnapshotSource
from collm.errors import UnreachableError

ENDPOINT = Endpoint(replica_id="a", url="http://replica:1/", pid=1, started_at_s=1.0)


def fetch(handler: Callable[[httpx.Request], httpx.Response]) -> object:
    async def call() -> object:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
            return await HttpSnapshotSource(client).fetch(ENDPOINT)

    return asyncio.run(call())


def reach(handler: Callable[[httpx.Request], httpx.Response]) -> None:
    async def call() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
            await HttpSnapshotSource(client).reach(ENDPOINT)

    asyncio.run(call())


def test_state_is_asked_for_and_parsed() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"asked": str(request.url), "method": request.method})

    assert fetch(answer) == {"asked": "http://replica:1/control/state", "method": "GET"}


@pytest.mark.parametrize(
    "response",
    [httpx.Response(503), httpx.Response(200, text="{"), httpx.Response(200, text=" " * 2**21)],
)
def test_what_is_no_answer_is_one_error(response: httpx.Response) -> None:
    with pytest.raises(UnreachableError, match="http://replica:1"):
        fetch(lambda request: response)


def test_no_connection_is_the_same_error() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(UnreachableError, match="refused"):
        fetch(refuse)


@pytest.mark.parametrize("status", [200, 404, 503])
def test_any_answer_is_a_sign_of_life(status: int) -> None:
    reach(lambda request: httpx.Response(status))


def test_no_connection_is_no_sign_of_life() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(UnreachableError, match="refused"):
        reach(refuse)
