import json
import sqlite3
from contextlib import closing

import pytest

from collm.store.front_folder import FrontFolder


@pytest.fixture
def open_front(tmp_path):
    def open_front():
        return FrontFolder(tmp_path / "front", max_versions=3, now_s=lambda: 7.0)

    return open_front


def rows(tmp_path):
    """What anybody reads from the file, in order."""
    with closing(sqlite3.connect(tmp_path / "front" / "front.db")) as database:
        found = database.execute("SELECT number, content FROM allocations ORDER BY number")
        return [(number, json.loads(content)) for number, content in found]


def test_allocations_are_numbered_and_survive_the_front(open_front, tmp_path):
    with open_front() as folder:
        first = folder.allocations.add({"objective": {"total": 1.5}})
        assert (first.number, first.made_at_s) == (1, 7.0)
    with open_front() as folder:
        assert folder.allocations.add({"objective": {"total": 2.0}}).number == 2
    assert rows(tmp_path) == [
        (1, {"objective": {"total": 1.5}}),
        (2, {"objective": {"total": 2.0}}),
    ]


def test_only_the_latest_hundred_are_kept_and_numbers_go_on(open_front, tmp_path):
    with open_front() as folder:
        for number in range(120):
            folder.allocations.add({"n": number})
    assert [number for number, _ in rows(tmp_path)] == list(range(21, 121))
