"""HTTP/1.1 responses from bytes as they come: where the head ends, and where the body does.

The body itself is not looked at. This runs once for each token of every stream, which is why it is
written out here: a general client costs several times as much as the rest of the front together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from collm.server.front.errors import UpstreamError

_MAX_HEAD_BYTES = 64 * 1024
_MAX_LINE_BYTES = 4096
_NO_BODY = (204, 304)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status and headers of a response."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    """Names in lower case, in the order they came."""

    def get(self, name: bytes) -> bytes:
        """Return the first value of a header, empty if it is not there."""
        return next((value for key, value in self.headers if key == name), b"")


class ResponseReader:
    """Reads one response, in pieces of any size.

    ``head`` is there as soon as it is complete; ``is_complete`` says that the body has ended as its
    head had promised.
    """

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.is_complete = False
        self._held = b""
        """The start of something that is not there as a whole."""
        self._is_chunked = False
        self._num_left: int | None = None
        """Bytes until the end of the body, or of its current chunk; ``None`` if nobody knows."""
        self._is_in_trailers = False
        self._ends_chunk = False
        """Whether the line break behind a chunk comes next."""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return those of the body among them.

        Raises:
            UpstreamError: This is no HTTP response, or goes on after its end.
        """
        if self.head is None:
            data = self._take_head(self._held + data)
            if self.head is None:
                return b""
        if self._is_chunked:
            return self._take_chunks(data)
        return self._take_plain(data)

    def feed_eof(self) -> None:
        """Take the end of the connection, which ends a body of unknown length.

        Raises:
            UpstreamError: The response was not complete.
        """
        if self.is_complete:
            return
        if self.head is None or self._is_chunked or self._num_left is not None:
            raise UpstreamError("the connection ended before the response was complete")
        self.is_complete = True

    def _take_head(self, data: bytes) -> bytes:
        while self.head is None:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _MAX_HEAD_BYTES:
                    raise UpstreamError("the head of the response is too long")
                self._held = data
                return b""
            head = _parse_head(data[:end])
            data = data[end + 4 :]
            if head.status >= 200:  # lower ones announce the response
                self.head = head
                self._expect_body(head)
        self._held = b""
        return data

    def _expect_body(self, head: ResponseHead) -> None:
        self._is_chunked = head.get(b"transfer-encoding").lower() == b"chunked"
        length = head.get(b"content-length")
        if head.status in _NO_BODY:
            self._is_chunked, self._num_left, self.is_complete = False, 0, True
        elif self._is_chunked:
            self._num_left = 0
        elif length:
            self._num_left = _number(length, base=10)
            self.is_complete = self._num_left == 0

    def _take_plain(self, data: bytes) -> bytes:
        if self._num_left is None:
            return data
        if len(data) > self._num_left:
            raise UpstreamError("the response goes on after its end")
        self._num_left -= len(data)
        self.is_complete = self._num_left == 0
        return data

    def _take_chunks(self, data: bytes) -> bytes:
        if self._held:
            data, self._held = self._held + data, b""
        pieces = []
        at = 0
        while True:
            if self._num_left:
                piece = data[at : at + self._num_left]
                pieces.append(piece)
                at += len(piece)
                self._num_left -= len(piece)
                if self._num_left:
                    break
                self._ends_chunk = True
            end = data.find(b"\r\n", at)
            if end < 0:
                self._hold(data[at:])
                break
            self._take_line(data[at:end])
            at = end + 2
            if self.is_complete:
                if at < len(data):
                    raise UpstreamError("the response goes on after its end")
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_line(self, line: bytes) -> None:
        """Take a line between two chunks: the break after one, a size, or a trailer."""
        if self._ends_chunk:
            if line:
                raise UpstreamError("a chunk is longer than it says")
            self._ends_chunk = False
        elif self._is_in_trailers:
            self.is_complete = not line
        else:
            self._num_left = _number(line.partition(b";")[0], base=16)
            self._is_in_trailers = self._num_left == 0

    def _hold(self, rest: bytes) -> None:
        if len(rest) > _MAX_LINE_BYTES:
            raise UpstreamError("a line between two chunks is too long")
        self._held = rest


def _parse_head(data: bytes) -> ResponseHead:
    first, *lines = data.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise UpstreamError("this is no HTTP response")
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise UpstreamError("a header of the response has no colon")
        headers.append((name.lower(), value.strip()))
    return ResponseHead(_number(rest[:3], base=10), tuple(headers))


_DIGITS: Mapping[int, bytes] = {10: b"0123456789", 16: b"0123456789abcdefABCDEF"}


def _number(text: bytes, *, base: int) -> int:
    """Return a number of digits alone; ``int`` would take signs, blanks and underscores too."""
    text = text.strip()
    if not text or text.strip(_DIGITS[base]):
        raise UpstreamError(f"{text[:20]!r} in the response is no number")
    return int(text, base)
