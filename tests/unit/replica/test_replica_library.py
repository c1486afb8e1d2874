"""Names of versions: plain numbers alone, a replica's own in a cluster."""

import pytest

from collm.errors import AdapterError
from collm.replica.library import Library
from collm.store.data_folder import DataFolder
from factories.deciders import SPEC, state


@pytest.fixture
def data(tmp_path):
    with DataFolder(tmp_path, max_versions=3, now_s=lambda: 1.0) as opened:
        yield opened


def publish(library, *seeds):
    return [library.publish("a", state(seed), {}).label for seed in seeds]


def test_a_lone_replica_counts(data):
    assert publish(Library(data.versions, SPEC, "tiny", "b" * 64), 1, 2) == ["1", "2"]


def test_in_a_cluster_plain_numbers_are_left_to_the_coordinator(data):
    library = Library(data.versions, SPEC, "tiny", "b" * 64, "r0")
    assert publish(library, 1, 2) == ["0.r0.1", "0.r0.2"]
    library.adopt("a", "1", state(3), {"round": "1"})
    assert publish(library, 4, 5, 6, 7, 8) == [f"1.r0.{number}" for number in range(1, 6)]


def test_what_the_coordinator_names_is_kept_once(data):
    library = Library(data.versions, SPEC, "tiny", "b" * 64, "r0")
    first = library.adopt("a", "1", state(3), {"round": "1"})
    assert library.adopt("a", "1", state(3), {"round": "1"}) == first
    assert library.load(first.version)[0].metadata == {"round": "1"}
    with pytest.raises(AdapterError, match="other content"):
        library.adopt("a", "1", state(4), {})
