import json

from hypothesis import given
from hypothesis import strategies as st

from collm.server.front.descriptions import describe


def described(**fields):
    return describe(json.dumps({"model": "m", **fields}).encode())


def turns(*texts):
    return [{"role": "user", "content": text} for text in texts]


def test_prompts_count_in_bytes_of_all_texts():
    parts = [{"type": "text", "text": "né"}, {"type": "text", "text": "b"}]
    request = described(messages=[*turns("abc"), {"role": "user", "content": parts}])
    assert (request.model, request.num_prompt_bytes) == ("m", 7)
    assert described(prompt=["ab", "c"]).num_prompt_bytes == 3
    assert described(prompt=[1, 2, 3]).num_prompt_bytes == 12
    assert described(prompt=[[1, 2], [3]]).num_prompt_bytes == 12


def test_conversations_that_begin_alike_share_the_hashes_of_their_beginning():
    first = described(messages=turns("a", "b", "c")).prefix_hashes
    longer = described(messages=turns("a", "b", "c", "d")).prefix_hashes
    other = described(messages=turns("a", "x", "c")).prefix_hashes
    assert longer[:3] == first
    assert (other[0], other[1] == first[1], other[2] == first[2]) == (first[0], False, False)


def test_long_plain_prompts_share_the_hashes_of_their_beginning():
    first = described(prompt="a" * 1024 + "b").prefix_hashes
    other = described(prompt="a" * 1024 + "c").prefix_hashes
    assert (first[0], len(first)) == (other[0], 2)
    assert first[1] != other[1]
    assert described(prompt="a" * 10**6).num_prompt_bytes == 10**6


def test_output_is_guessed_from_the_limit_where_it_will_be_reached():
    assert described(max_tokens=5).num_output_tokens_guess == 5
    assert described(max_tokens=4000).num_output_tokens_guess == 64
    assert described(max_tokens=4000, ignore_eos=True).num_output_tokens_guess == 4000
    assert described(max_tokens="many").num_output_tokens_guess == 64


def test_conversation_and_kind_of_answer_are_read():
    request = described(user="u", prompt_cache_key="k", stream=True)
    assert (request.session, request.is_streamed) == ("k", True)
    request = described(user="u", stream="yes")
    assert (request.session, request.is_streamed) == ("u", False)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = ["model", "messages", "prompt", "max_tokens", "user", "stream", "ignore_eos"]


@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_any_object_is_described(fields):
    describe(json.dumps(fields).encode())


@given(st.binary())
def test_any_bytes_are_described(body):
    assert describe(body).num_prompt_bytes >= 0
