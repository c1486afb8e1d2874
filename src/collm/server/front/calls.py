"""A client's call as it goes to a replica, and a replica's answer as it goes to the client."""

from collections.abc import AsyncIterable, Iterable, Sequence
from dataclasses import dataclass

from collm.server.front.framing import ResponseHead

Headers = Iterable[tuple[bytes, bytes]]

REPLICA_HEADER = b"x-collm-replica"
"""Response header that says which replica answered."""

# About one connection or one message, not about the call: RFC 9110, section 7.6.1. The host and the
# length are written anew; asking for compression would cost the replicas more than it saves.
_NOT_PASSED = frozenset(
    {
        b"accept-encoding",
        b"connection",
        b"content-length",
        b"date",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request to a replica."""

    head: bytes
    """Request line and headers, to the empty line."""
    body: bytes | AsyncIterable[bytes]
    """What follows it; an iterable starts anew each time it is iterated over."""
    is_repeatable: bool
    """Whether a replica may get it twice, when a connection is lost before it has answered."""


def make_call(
    method: str,
    target: str,
    headers: Headers = (),
    body: bytes | AsyncIterable[bytes] = b"",
    *,
    num_body_bytes: int | None = None,
    is_repeatable: bool | None = None,
) -> Call:
    """Return a call.

    Args:
        method: In upper case.
        target: Path and query, as they go on the wire.
        headers: The client's; those that are about its own connection are left out.
        body: All of it, or its pieces.
        num_body_bytes: Length of a body in pieces.
        is_repeatable: ``None`` says so of GET and DELETE alone.
    """
    length = len(body) if isinstance(body, bytes) else num_body_bytes
    lines = [f"{method} {target} HTTP/1.1\r\nhost: replica\r\n".encode()]
    lines += [b"%b: %b\r\n" % pair for pair in headers if pair[0] not in _NOT_PASSED]
    if length or method not in ("GET", "DELETE"):
        lines.append(b"content-length: %d\r\n" % (length or 0))
    return Call(
        head=b"".join(lines) + b"\r\n",
        body=body,
        is_repeatable=method in ("GET", "DELETE") if is_repeatable is None else is_repeatable,
    )


def passed_headers(head: ResponseHead, replica_id: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of a replica's answer that the client gets, and the replica's name."""
    passed: Sequence[tuple[bytes, bytes]] = [
        pair for pair in head.headers if pair[0] not in _NOT_PASSED
    ]
    return [*passed, (REPLICA_HEADER, replica_id.encode())]
