from collm.server.choices import ChoiceText
from collm.server.stops import StopMatcher
from collm.types import FinishReason, RequestId, TokenEvent, TokenLogprobs
from factories.fake_replica import EOS, ByteDetokenizer


def events(output, finish=FinishReason.LENGTH):
    return [
        TokenEvent(
            request_id=RequestId("r"),
            choice=0,
            token_id=token_id,
            finish_reason=finish if number == len(output) - 1 else None,
            logprobs=TokenLogprobs(-1.0, ()),
        )
        for number, token_id in enumerate(output)
    ]


def play(output, *stops, min_tokens=0, include=False, finish=FinishReason.LENGTH):
    matcher = StopMatcher(stops, include=include) if stops else None
    choice = ChoiceText(0, ByteDetokenizer(), matcher, min_tokens)
    deltas = [choice.push(event) for event in events(output, finish)]
    return choice, [delta for delta in deltas if delta is not None]


def text_of(deltas):
    return "".join(delta.text for delta in deltas)


def test_character_of_several_tokens_comes_whole():
    _, deltas = play("aü🦙".encode())
    assert [delta.text for delta in deltas] == ["a", "ü", "🦙"]


def test_output_cut_inside_a_character_ends_with_a_replacement():
    _, deltas = play("🦙".encode()[:2])
    assert text_of(deltas) == "�"
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_token_that_stopped_the_choice_is_counted_but_not_shown():
    choice, deltas = play([*b"ab", ord("!")], finish=FinishReason.STOP)
    assert text_of(deltas) == "ab"
    assert choice.num_tokens == 3
    assert sum(len(delta.tokens) for delta in deltas) == 2


def test_special_tokens_are_not_shown():
    _, deltas = play([ord("a"), EOS, ord("b")])
    assert text_of(deltas) == "ab"


def test_stop_inside_multibyte_text():
    _, deltas = play("aüb🦙c".encode(), "🦙")
    assert text_of(deltas) == "aüb"
    assert deltas[-1].finish_reason is FinishReason.STOP


def test_stop_string_may_be_kept():
    _, deltas = play(b"one two", "e t", include=True)
    assert text_of(deltas) == "one t"


def test_stop_strings_are_ignored_before_min_tokens():
    _, deltas = play(b"a.b.c.", ".", min_tokens=3)
    assert text_of(deltas) == "a.b"


def test_nothing_is_counted_after_a_stop():
    choice, deltas = play(b"a.bcdef", ".")
    assert text_of(deltas) == "a"
    assert choice.num_tokens == 2


def test_logprobs_wait_for_their_text_and_go_with_a_cut():
    _, deltas = play(b"ab##c##", "##c#")
    assert [[t.text_offset for t in delta.tokens] for delta in deltas] == [[0], [1], []]


def test_logprobs_of_held_text_come_when_it_is_released():
    _, deltas = play(b"a#b", "##")
    assert [delta.text for delta in deltas] == ["a", "#b"]
    assert [[t.text_offset for t in delta.tokens] for delta in deltas] == [[0], [1, 2]]
