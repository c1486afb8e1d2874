import pytest
from hypothesis import given
from hypothesis import strategies as st

from collm.server.front.errors import UpstreamError
from collm.server.front.framing import ResponseReader

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"


def read(reader, data, cuts=()):
    edges = [0, *sorted(cuts), len(data)]
    return b"".join(
        reader.feed(data[start:end])
        for start, end in zip(edges, edges[1:], strict=False)
        if end > start
    )


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=5), st.data())
def test_a_chunked_body_is_the_same_however_it_arrives(chunks, data):
    body = b"".join(b"%X;ext=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    wire = CHUNKED + body + b"0\r\nTrailer: x\r\n\r\n"
    cuts = data.draw(st.lists(st.integers(1, len(wire) - 1), max_size=10, unique=True))
    reader = ResponseReader()
    assert read(reader, wire, cuts) == b"".join(chunks)
    assert reader.is_complete
    assert reader.head.get(b"x") == b"y"


@given(st.data())
def test_a_chunked_body_that_is_cut_is_never_complete(data):
    wire = CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"
    end = data.draw(st.integers(0, len(wire) - 1))
    reader = ResponseReader()
    assert b"hello".startswith(read(reader, wire[:end]))
    assert not reader.is_complete
    with pytest.raises(UpstreamError):
        reader.feed_eof()


def test_a_counted_body_ends_where_it_says():
    reader = ResponseReader()
    assert read(reader, b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab") == b"ab"
    with pytest.raises(UpstreamError):
        reader.feed_eof()
    assert reader.feed(b"c") == b"c"
    assert reader.is_complete
    reader.feed_eof()


def test_a_body_of_unknown_length_ends_with_the_connection():
    reader = ResponseReader()
    assert read(reader, b"HTTP/1.0 200 OK\r\n\r\nabc") == b"abc"
    assert not reader.is_complete
    reader.feed_eof()
    assert reader.is_complete


def test_announcements_are_skipped_and_empty_answers_have_no_body():
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")
    assert (reader.head.status, reader.is_complete) == (204, True)


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0 hello\r\n\r\n",
        b"HTTP/1.1 abc X\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab",
        CHUNKED + b"-5\r\n",
        CHUNKED + b"1_0\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"1\r\nab\r\n",
        CHUNKED + b"0\r\n\r\nmore",
        CHUNKED + b"x" * 5000,
        b"HTTP/1.1 200 OK\r\n" + b"a" * 70_000,
    ],
)
def test_what_is_no_response_is_refused(wire):
    with pytest.raises(UpstreamError):
        ResponseReader().feed(wire)
