from collections import Counter

import pytest

from collm.gate.config import GENERAL
from collm.gate.rotation import Rotation


def slice_of(name: str, count: int) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


def test_slices_take_turns_and_every_sample_comes_once() -> None:
    pool = {"b": slice_of("b", 2), "a": slice_of("a", 4), "c": slice_of("c", 3)}

    order = Rotation(0.25).order(pool)

    assert [sample_id[0] for sample_id in order] == list("abcabcaca")
    assert sorted(order) == sorted(sample_id for ids in pool.values() for sample_id in ids)


def test_general_text_comes_after_every_third_sample_of_a_lone_slice() -> None:
    order = Rotation(0.25).order({"a": slice_of("a", 7), GENERAL: slice_of("g", 4)})

    assert [sample_id[0] for sample_id in order] == list("aaagaaagagg")


def test_general_text_takes_one_turn_in_each_round_of_many_slices() -> None:
    pool = {name: slice_of(name, 2) for name in "abcde"} | {GENERAL: slice_of("g", 2)}

    order = Rotation(0.25).order(pool)

    assert [sample_id[0] for sample_id in order] == list("abcdegabcdeg")


def test_the_order_does_not_depend_on_how_the_samples_are_listed() -> None:
    ids = slice_of("a", 50)

    assert Rotation(0.25).order({"a": ids}) == Rotation(0.25).order({"a": ids[::-1]})
    assert Rotation(0.25).order({"a": ids}) != ids


def test_a_quarter_of_a_comparison_is_replaced_in_the_next() -> None:
    rotation, pool = Rotation(0.25), {"a": slice_of("a", 200), "b": slice_of("b", 200)}
    first = rotation.order(pool)[:80]
    rotation.advance(first)
    second = rotation.order(pool)[:80]

    assert len(set(first) & set(second)) == 60


def test_in_time_every_sample_is_used_about_equally_often() -> None:
    rotation, uses = Rotation(0.25), Counter[str]()
    pool = {"a": slice_of("a", 97), "b": slice_of("b", 31), "c": slice_of("c", 3)}
    for _ in range(400):
        used = rotation.order(pool)[:30]
        uses.update(used)
        rotation.advance(used)

    assert set(uses) == {sample_id for ids in pool.values() for sample_id in ids}
    for ids in pool.values():
        counts = [uses[sample_id] for sample_id in ids]
        assert max(counts) <= 1.1 * min(counts) + 4


def test_steps_of_less_than_one_sample_add_up() -> None:
    rotation, pool = Rotation(0.25), {"a": slice_of("a", 10)}
    first = rotation.order(pool)
    for _ in range(3):
        rotation.advance(first[:1])
        assert rotation.order(pool) == first
    rotation.advance(first[:1])

    assert rotation.order(pool) == first[1:] + first[:1]


def test_a_share_of_zero_never_moves() -> None:
    rotation, pool = Rotation(0.0), {"a": slice_of("a", 10)}
    first = rotation.order(pool)
    rotation.advance(first)

    assert rotation.order(pool) == first


def test_the_starting_point_holds_when_samples_come_and_go() -> None:
    rotation, ids = Rotation(0.5), slice_of("a", 40)
    first = rotation.order({"a": ids})
    rotation.advance(first[:20])
    kept = [sample_id for sample_id in ids if sample_id not in (first[10], first[15])]

    order = rotation.order({"a": [*kept, *slice_of("new", 5)]})

    known = [sample_id for sample_id in order if not sample_id.startswith("new")]
    assert known == [i for i in first[10:] + first[:10] if i not in (first[10], first[15])]


def test_a_slice_that_emptied_is_left_out() -> None:
    rotation = Rotation(0.5)
    rotation.advance(rotation.order({"a": slice_of("a", 2), "b": slice_of("b", 2)}))

    assert rotation.order({"a": [], "b": ["b-1"]}) == ["b-1"]
    rotation.advance(["b-1"])
    assert rotation.order({}) == []


def test_only_slices_that_were_read_move_on() -> None:
    rotation, pool = Rotation(0.5), {"a": slice_of("a", 20), "b": slice_of("b", 20)}
    first = rotation.order(pool)
    rotation.advance([sample_id for sample_id in first if sample_id.startswith("a")][:8])

    second = rotation.order(pool)
    for name, moved in (("a", 4), ("b", 0)):
        before, after = ([i for i in order if i.startswith(name)] for order in (first, second))
        assert after == before[moved:] + before[:moved]


def test_samples_of_another_order_cannot_have_been_used() -> None:
    rotation = Rotation(0.5)
    rotation.order({"a": ["x", "y"]})

    with pytest.raises(ValueError, match=r"samples \['z'\] are not in the latest order"):
        rotation.advance(["x", "z"])
