"""A front's folder, and two members beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from collm.store.front_folder import FrontFolder
from factories.fake_members import FakeCluster, FakeMember
from factories.rounds import open_folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[FrontFolder]:
    with open_folder(tmp_path) as opened:
        yield opened


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(FakeMember("a", content=b"a"), FakeMember("b", content=b"b"))
