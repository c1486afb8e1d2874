import pytest
from hypothesis import given
from hypothesis import strategies as st

from collm.server.stops import StopMatcher

PIECES = st.lists(st.text("abü🦙", max_size=4), max_size=12)
STOPS = st.lists(st.text("abü🦙", min_size=1, max_size=4), min_size=1, max_size=4)


def show(pieces, stops, include=False):
    """Run pieces through a matcher: the text shown and whether it was stopped."""
    matcher = StopMatcher(tuple(stops), include=include)
    shown = ""
    for piece in pieces:
        text, is_stopped = matcher.push(piece)
        shown += text
        if is_stopped:
            return shown, True
    return shown + matcher.flush(), False


def cut(text, stops, include=False):
    """Cut a whole text by the definition: the first end of any stop string."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: end if include else min(starts)], True
    return text, False


@given(PIECES, STOPS, st.booleans())
def test_streamed_text_equals_whole_text_cut_at_the_first_stop(pieces, stops, include):
    assert show(pieces, stops, include) == cut("".join(pieces), stops, include)


@given(PIECES, STOPS)
def test_shown_text_never_has_to_be_taken_back(pieces, stops):
    matcher = StopMatcher(tuple(stops))
    shown = ""
    for number, piece in enumerate(pieces):
        text, is_stopped = matcher.push(piece)
        shown += text
        for stop in stops:
            assert cut("".join(pieces[: number + 1]) + stop, stops)[0].startswith(shown)
        if is_stopped:
            break


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["Hello", " wor", "ld"], ["o wo"], "Hell"),
        (["Hello", " wor", "ld"], ["o wx"], "Hello world"),
        (["a\n", "\nb"], ["\n\n"], "a"),
        (["aab"], ["ab"], "a"),
        (["x", "END"], ["END", "N"], "xE"),
    ],
)
def test_stop_strings_match_across_pieces(pieces, stops, expected):
    assert show(pieces, stops)[0] == expected


def test_partial_match_is_held_until_it_cannot_grow():
    matcher = StopMatcher(("###",))
    assert matcher.push("a##") == ("a", False)
    assert matcher.push("b") == ("##b", False)
