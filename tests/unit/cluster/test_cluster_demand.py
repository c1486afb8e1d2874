import pytest

from collm.cluster.demand import DemandBook


def test_requests_count_by_adapter_and_replica_whatever_the_version():
    book = DemandBook()
    for model, replica_id in (("a", "r0"), ("a@3", "r0"), ("a", "r1"), ("b", "r1")):
        book.add(model, replica_id, 10.0)
    assert book.recent("a", "r0") == 2.0
    assert book.recent("a", "r1") == 1.0
    assert book.recent("b", "r0") == 0.0


def test_old_requests_fade_as_new_ones_come():
    book = DemandBook()
    book.add("a", "r0", 0.0)
    book.add("a", "r1", 300.0)
    assert book.recent("a", "r0") == pytest.approx(0.5)
    assert book.recent("a", "r1") == 1.0
    book.add("a", "r0", 600.0)
    assert book.recent("a", "r0") == pytest.approx(1.25)


def test_excess_is_relative_to_what_the_share_comes_to():
    book = DemandBook()
    shares = {"r0": 0.5, "r1": 0.5}
    assert book.excesses("a", ["r0"], shares) == [0.0]
    for number in range(10):
        book.add("a", "r0" if number < 9 else "r1", 0.0)
    assert book.excesses("a", ["r0", "r1"], shares) == pytest.approx([4.0 / 6.0, -4.0 / 6.0])
    assert book.excesses("a", ["r0", "r2"], {"r2": 1.0}) == pytest.approx([1.0, -10.0 / 11.0])


def test_made_up_names_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr("collm.cluster.demand._MAX_ENTRIES", 3)
    book = DemandBook()
    for number in range(10):
        book.add("real", "r0", 0.0)
        book.add(f"made up {number}", "r0", 0.0)
    assert book.recent("real", "r0") == 10.0
    assert book.recent("made up 0", "r0") == 0.0
