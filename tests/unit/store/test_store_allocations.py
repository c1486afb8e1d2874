import pytest

from collm.store.front_folder import FrontFolder


@pytest.fixture
def open_front(tmp_path):
    def open_front():
        return FrontFolder(tmp_path / "front", max_versions=3, now_s=lambda: 7.0)

    return open_front


def test_allocations_are_numbered_and_survive_the_front(open_front):
    with open_front() as folder:
        assert folder.allocations.latest() == ()
        first = folder.allocations.add({"objective": {"total": 1.5}})
        assert (first.number, first.made_at_s) == (1, 7.0)
    with open_front() as folder:
        second = folder.allocations.add({"objective": {"total": 2.0}})
        assert second.number == 2
        assert folder.allocations.latest(5) == (second, first)


def test_only_the_latest_hundred_are_kept_and_numbers_go_on(open_front):
    with open_front() as folder:
        for number in range(120):
            folder.allocations.add({"n": number})
        kept = folder.allocations.latest(1_000)
        assert [record.number for record in kept] == list(range(120, 20, -1))
