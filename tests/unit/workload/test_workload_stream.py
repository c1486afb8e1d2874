import json

import pytest

from collm.errors import DataError
from collm.workload.stream import AnswerReader, EventLines


def chunk(content: str | None = None, finish: str | None = None, version: str = "clinc@1") -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return json.dumps({"id": "x", "system_fingerprint": version, "choices": [choice]}).encode()


USAGE = json.dumps(
    {"id": "x", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}
).encode()


def test_events_are_cut_at_lines_wherever_the_bytes_were_cut():
    stream = b'data: {"a": 1}\r\n\r\n: comment\n\ndata:{"b": 2}\n\ndata: [DONE]\n\n'
    lines = EventLines()
    payloads = [p for i in range(len(stream)) for p in lines.feed(stream[i : i + 1])]
    assert payloads == [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]
    assert EventLines().feed(stream) == payloads


def test_times_come_from_chunks_that_carry_tokens():
    reader = AnswerReader(keeps_text=True)
    role = {"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    reader.read(json.dumps(role).encode(), 1.0)
    reader.read(chunk("oil"), 2.0)
    reader.read(chunk(" change"), 2.5)
    reader.read(chunk(finish="stop"), 2.625)
    reader.read(USAGE, 9.0)
    reader.read(b"[DONE]", 9.0)
    assert (reader.first_token_at_s, reader.last_token_at_s) == (2.0, 2.625)
    assert reader.max_gap_s == 0.5
    assert (reader.text, reader.finish_reason) == ("oil change", "stop")
    assert (reader.num_prompt_tokens, reader.num_output_tokens) == (7, 5)
    assert reader.is_done


def test_without_usage_chunks_with_text_are_counted():
    reader = AnswerReader(keeps_text=False)
    reader.read(chunk("a"), 1.0)
    reader.read(chunk("b"), 1.0)
    assert reader.num_output_tokens == 2
    assert reader.text is None


def test_every_version_named_is_kept_once_in_order():
    reader = AnswerReader(keeps_text=False)
    reader.saw_version("clinc@1")
    for version in ("clinc@1", "clinc@2", "clinc@1"):
        reader.read(chunk("a", version=version), 1.0)
    assert reader.versions == ("clinc@1", "clinc@2")


def test_error_event_is_kept():
    reader = AnswerReader(keeps_text=False)
    reader.read(b'{"error": {"message": "replica lost"}}', 1.0)
    assert reader.error == "replica lost"


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"[]",
        b'{"choices": [{}]}',
        b'{"choices": [{"delta": {"content": 3}}]}',
        b'{"error": 1}',
    ],
)
def test_malformed_chunk_is_a_data_error(payload):
    with pytest.raises(DataError, match="not a chat completion chunk"):
        AnswerReader(keeps_text=True).read(payload, 1.0)
