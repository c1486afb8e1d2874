"""Whatever is uploaded as a training file is counted or refused, never a crash."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collm.errors import RequestError
from collm.replica.courtesy import Courtesy
from collm.replica.uploads import count_samples

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", ""])
NAMES = st.sampled_from(["role", "content", "name", "weight", "tool_calls", "x", "\ud800"])
TURNS = st.builds(lambda role, rest: {"role": role, **rest}, ROLES, st.dictionaries(NAMES, VALUES))
GOOD_TURNS = st.lists(
    st.builds(lambda role, text: {"role": role, "content": text}, ROLES.filter(bool), st.text()),
    min_size=1,
    max_size=4,
).filter(lambda turns: all(turn["role"] != "tool" for turn in turns))
ANSWER = st.text(min_size=1).map(lambda text: {"role": "assistant", "content": text})
ENDS = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n \t\n"])


def assert_can_be_sent(error):
    assert error.param == "file"
    str(error).encode()


@given(st.binary() | st.lists(TURNS).map(lambda turns: json.dumps({"messages": turns}).encode()))
def test_any_bytes_are_counted_or_refused(content):
    try:
        num_samples = count_samples(content, Courtesy(lambda: False))
    except RequestError as error:
        assert_can_be_sent(error)
    else:
        assert num_samples >= 1


@given(
    st.lists(st.tuples(GOOD_TURNS, ANSWER, ENDS), min_size=1),
    st.booleans(),
    st.booleans(),
)
def test_every_sample_of_a_good_file_is_counted(samples, escapes, has_mark):
    content = b"\xef\xbb\xbf" if has_mark else b""
    for turns, answer, end in samples:
        record = {"messages": [*turns, answer]}
        content += json.dumps(record, ensure_ascii=escapes).encode() + end
    assert count_samples(content, Courtesy(lambda: False)) == len(samples)


@given(st.integers(0, 5), st.sampled_from([b"{}", b"[]", b"x", b"\xff", b'{"messages": []}']))
def test_first_bad_line_is_the_one_named(num_good, bad):
    good = json.dumps(
        {"messages": [{"role": "user", "content": "a"}] + [{"role": "assistant", "content": "b"}]}
    ).encode()
    with pytest.raises(RequestError, match=rf"line {num_good + 1}: "):
        count_samples(b"\n".join([good] * num_good + [bad, good, bad]), Courtesy(lambda: False))
