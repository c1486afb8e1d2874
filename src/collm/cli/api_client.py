"""Talks to a running server; every failure becomes one line that says what to do about it."""

import ipaddress
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Annotated, Any, Self
from urllib.parse import quote

import httpx
import typer

from collm.cli.admin_key import admin_key
from collm.errors import CollmError, ConfigError, UnreachableError

DEFAULT_URL = "http://127.0.0.1:8000"

Url = Annotated[
    str, typer.Option("--url", envvar="COLLM_URL", metavar="URL", help="Address of the server.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

_CONNECT_TIMEOUT_S = 5.0
# A promotion may wait for a slot, and an upload is checked before it is answered.
_ANSWER_TIMEOUT_S = 300.0
_MAX_PAGE = 100
"""Most objects asked for at once, as the OpenAI API allows."""


class ServerError(CollmError):
    """The server cannot be reached, or refused; the message says which.

    Args:
        message: What is wrong, and what to do.
        code: The server's short reason for refusing.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class NoServerError(ServerError, UnreachableError):
    """Nothing answers at the address."""


class ApiClient:
    """The HTTP API of one server. Close it, or use it as a context manager.

    Every method raises ``ServerError`` when the server cannot be reached or refuses.
    """

    def __init__(self, http: httpx.Client, url: str) -> None:
        self._http = http
        self._url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, path: str, params: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """Return the object at ``path``."""
        return self._object("GET", path, params=params)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a JSON object, or nothing; return the answer."""
        return self._object("POST", path, json=body)

    def upload(
        self, path: str, fields: Mapping[str, str], files: Mapping[str, tuple[str, IO[bytes]]]
    ) -> dict[str, Any]:
        """Send a form; ``files`` holds a name and an open file per field, read as it is sent."""
        return self._object("POST", path, data=fields, files=files)

    def delete(self, path: str) -> dict[str, Any]:
        """Delete the object at ``path``; return the answer."""
        return self._object("DELETE", path)

    def list_objects(
        self, path: str, *, limit: int, params: Mapping[str, str] | None = None
    ) -> tuple[list[dict[str, Any]], bool]:
        """Return up to ``limit`` objects of a paged list, and whether there are more."""
        rows: list[dict[str, Any]] = []
        query: dict[str, str | int] = {**(params or {})}
        while True:
            query["limit"] = min(limit - len(rows), _MAX_PAGE)
            page = self.get(path, query)
            rows += page["data"]
            has_more = bool(page.get("has_more")) and bool(page["data"])
            if not has_more or len(rows) >= limit:
                return rows, has_more
            query["after"] = rows[-1]["id"]

    def download(self, path: str, params: Mapping[str, str], into: IO[bytes]) -> None:
        """Write the content at ``path`` to an open file."""
        with self._answering(), self._http.stream("GET", path, params=params) as response:
            if not response.is_success:
                response.read()
                raise self._refusal(response)
            for part in response.iter_bytes():
                into.write(part)

    def _object(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        with self._answering():
            response = self._http.request(method, path, **content)
        if not response.is_success:
            raise self._refusal(response)
        found = _json_object(response)
        if found is None:
            raise ServerError(f"{self._url} does not answer as a collm server does")
        return found

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Say what to do about a server that does not answer."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NoServerError(
                f"no server answers at {self._url}; start one with `collm serve`, or say where it "
                "is with --url or COLLM_URL"
            ) from error
        except httpx.TimeoutException as error:
            raise ServerError(
                f"{self._url} did not answer within {_ANSWER_TIMEOUT_S:g} s; what was asked for "
                "may still happen"
            ) from error
        except httpx.HTTPError as error:
            raise ServerError(f"{self._url} broke off: {error}") from error

    def _refusal(self, response: httpx.Response) -> ServerError:
        """Return what the server says is wrong, or its status where it says nothing."""
        error = (_json_object(response) or {}).get("error")
        if isinstance(error, dict) and error.get("message"):
            return ServerError(str(error["message"]), code=error.get("code"))
        status = f"{response.status_code} {response.reason_phrase}".rstrip()
        return ServerError(f"{self._url} answered {status}")


def connect(url: str) -> ApiClient:
    """Return a client of the server at ``url``; nothing is sent yet.

    Raises:
        ConfigError: ``url`` is not the address of an HTTP server.
    """
    # OpenAI's clients are given the address with /v1; the same setting should do here.
    url = url.rstrip("/").removesuffix("/v1")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"--url is {url!r}; {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"--url is {url!r}; it must be like {DEFAULT_URL}")
    return ApiClient(_open_http(url, is_local=_is_local(parsed.host)), url)


def segment(text: str) -> str:
    """Return ``text`` as one segment of a path."""
    return quote(text, safe="@")


def _open_http(url: str, *, is_local: bool) -> httpx.Client:
    timeout = httpx.Timeout(_ANSWER_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    key = admin_key()
    return httpx.Client(
        base_url=url,
        timeout=timeout,
        headers=None if key is None else {"authorization": f"Bearer {key}"},
        # A proxy set in the environment cannot reach this machine's own servers.
        trust_env=not is_local,
    )


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _json_object(response: httpx.Response) -> dict[str, Any] | None:
    try:
        found = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None
