import json

import pytest

from collm.chats import MAX_LINE_BYTES, Message, parse_sample, parse_samples
from collm.errors import DataError

TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
LINE = json.dumps({"messages": TURNS}).encode()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "messages: must be a list"),
        ('{"messages": [{"role": "user", "content": "hi"}]}', "messages: must be a list of at"),
        (json.dumps({"messages": [*TURNS, TURNS[0]]}), r"messages\[2\].role: the last turn"),
        (json.dumps({"messages": [{"role": [], "content": ""}, TURNS[1]]}), r"messages\[0\].role"),
        (json.dumps({"messages": ["hi", TURNS[1]]}), r"messages\[0\]: must be an object"),
        (json.dumps({"messages": [{"role": "user"}, TURNS[1]]}), r"messages\[0\].content"),
        (json.dumps({"messages": [TURNS[0] | {"x": 1}, TURNS[1]]}), r"messages\[0\].x: unknown"),
        (json.dumps({"messages": [TURNS[0], TURNS[1] | {"content": ""}]}), "answer is empty"),
        (json.dumps({"messages": TURNS, "group": 3}), "group: must be a string"),
        (json.dumps({"messages": TURNS, "tools": [{}]}), "tools: tools cannot be learned"),
        (json.dumps({"messages": TURNS, "functions": [{}]}), "functions: tools cannot"),
        (
            json.dumps({"messages": [TURNS[0], TURNS[1] | {"tool_calls": [{}]}]}),
            r"messages\[1\].tool_calls: tools cannot",
        ),
        (json.dumps({"messages": [TURNS[0] | {"role": "tool"}, TURNS[1]]}), r"messages\[0\].role"),
        (
            json.dumps({"messages": [TURNS[0] | {"weight": 1}, TURNS[1]]}),
            r"messages\[0\].weight: allowed for the role 'assistant' alone",
        ),
        (
            json.dumps({"messages": [TURNS[0], TURNS[1] | {"weight": 0}]}),
            r"messages\[1\].weight: 0 on the last turn",
        ),
        (json.dumps({"messages": [TURNS[0], TURNS[1] | {"weight": True}]}), "weight: must be 0"),
        (json.dumps({"messages": [TURNS[0], TURNS[1] | {"weight": 0.5}]}), "weight: must be 0"),
        (
            json.dumps({"messages": [TURNS[0], TURNS[1] | {"content": "\ud800"}]}),
            r"messages\[1\].content: has half a character",
        ),
        (json.dumps({"messages": [TURNS[0], TURNS[1] | {"content": [{}]}]}), "must be a string"),
        (b'{"messages": "\xff"}', "not UTF-8: invalid start byte at byte 14"),
        (b"[" * 100_000, "not JSON"),
        (b'{"x": ' + b"9" * 5_000 + b"}", "not JSON"),
        (b" " * (MAX_LINE_BYTES + 1), "longer than 1048576 bytes"),
    ],  # fmt: skip
)
def test_line_that_is_no_sample_names_the_field(line, complaint):
    with pytest.raises(DataError, match=complaint):
        parse_sample(line)


def test_answer_and_prompt_are_told_apart():
    sample = parse_sample(json.dumps({"messages": TURNS, "group": "g", "label": 3}))
    assert sample.prompt == (Message("user", "hi"),)
    assert sample.answer == "hello"
    assert (sample.group, sample.extra) == ("g", {"label": 3})


def test_fields_that_change_nothing_are_taken_as_when_serving():
    turns = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": "hi", "name": "ann", "tool_calls": None},
        {"role": "assistant", "content": "hello", "weight": 1, "function_call": None},
    ]
    sample = parse_sample(json.dumps({"messages": turns, "tools": [], "functions": None}))
    assert [message.role for message in sample.messages] == ["system", "user", "assistant"]
    assert sample.extra == {}


def test_turn_of_weight_0_is_kept_and_not_to_be_learned():
    first, second = TURNS[1] | {"weight": 0}, TURNS[1] | {"weight": 1}
    sample = parse_sample(json.dumps({"messages": [TURNS[0], first, TURNS[0], second]}))
    assert [turn.is_learned for turn in sample.messages] == [True, False, True, True]
    assert sample.messages[1].content == "hello"


def test_mark_at_the_start_windows_line_ends_and_blank_lines_are_fine():
    lines = [b"\xef\xbb\xbf" + LINE + b"\r\n", b"\r\n", b"  \n", LINE]
    assert [sample.answer for sample in parse_samples(lines)] == ["hello", "hello"]


def test_bad_line_is_named_by_its_number_in_the_file():
    with pytest.raises(DataError, match=r"^line 3: messages: must be a list"):
        list(parse_samples([LINE, b"\n", b"{}"]))


def test_mark_inside_a_file_is_refused():
    with pytest.raises(DataError, match="line 2: not JSON"):
        list(parse_samples([LINE, b"\xef\xbb\xbf" + LINE]))
