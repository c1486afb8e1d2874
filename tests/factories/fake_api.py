"""A server that answers as told, for the commands that talk to one."""

import json
from collections.abc import Callable
from typing import Any

import httpx

Answer = Callable[[httpx.Request], httpx.Response]


class FakeApi:
    """Answers by method and path, and remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self._answers: dict[tuple[str, str], Answer] = {}

    def on(self, method: str, path: str, body: Any = None, *, status: int = 200) -> None:
        """Answer with a JSON body."""
        self.answer(method, path, lambda _: httpx.Response(status, json=body))

    def answer(self, method: str, path: str, answer: Answer) -> None:
        """Answer with whatever ``answer`` makes of the request, or raises."""
        self._answers[method, path] = answer

    def refuse(
        self, method: str, path: str, status: int, message: str, *, code: str | None = None
    ) -> None:
        """Answer with an error object as the OpenAI API shapes it."""
        error = {"message": message, "type": "x", "param": None, "code": code}
        self.on(method, path, {"error": error}, status=status)

    def sent(self, number: int = -1) -> Any:
        """Return the JSON body of one of the requests."""
        return json.loads(self.requests[number].content)

    def open_http(self, url: str, *, is_local: bool) -> httpx.Client:
        """Return a client that is answered by this server."""
        return httpx.Client(base_url=url, transport=httpx.MockTransport(self._handle))

    def _handle(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        path = request.url.raw_path.decode().partition("?")[0]
        return self._answers[request.method, path](request)
