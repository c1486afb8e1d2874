"""An adapter's first version can be taken back, and stays so over a restart."""

import asyncio

import pytest

from collm.errors import UnknownAdapterError
from factories.checkpoints import tiny_checkpoint
from factories.replicas import learning, open_tiny_replica, publish_on_disk
from factories.waiting import wait_until

PLACE_ONLY = {"learning_rate": 1e-9}
"""Learns nothing, so that no candidate takes the place of what a test looks at."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def opened(checkpoint, tmp_path):
    """Open a replica with some jobs; the one before is closed, the last at the end."""
    replicas = []

    def open_one(*jobs):
        for replica in replicas[-1:]:
            replica.close()
        replicas.append(open_tiny_replica(checkpoint, tmp_path, *jobs))
        return replicas[-1]

    yield open_one
    for replica in replicas[-1:]:
        replica.close()


def do(call):
    return asyncio.run(asyncio.wait_for(call, 60))


def names(replica):
    wait_until(lambda: replica.client.snapshot())
    return [card.id for card in replica.client.models()]


def active(replica):
    return [info.version for info in replica.client.versions() if info.is_active]


def last_row(replica):
    row = do(replica.adapters.history("tutor"))[-1]
    return row.kind, row.version, row.previous, row.reason


TAKEN_BACK = ("rollback", "base", "tutor@1", "asked for")


def test_name_goes_for_good_without_a_job(opened, checkpoint, tmp_path):
    publish_on_disk(checkpoint, tmp_path, 1, 2, num_promoted=1)
    replica = opened()
    assert do(replica.adapters.rollback("tutor")).version == "base"
    for _ in range(2):
        assert names(replica) == ["tiny"]
        assert last_row(replica) == TAKEN_BACK
        with pytest.raises(UnknownAdapterError, match="available: tiny"):
            do(replica.adapters.rollback("tutor"))
        replica = opened()
    assert do(replica.adapters.promote("tutor@2")).is_active
    assert do(replica.adapters.rollback("tutor")).version == "base"


def test_version_before_is_returned_to_first_also_after_a_restart(opened, checkpoint, tmp_path):
    publish_on_disk(checkpoint, tmp_path, 1, 2, num_promoted=2)
    assert do(opened().adapters.rollback("tutor")).version == "tutor@1"
    assert do(opened().adapters.rollback("tutor")).version == "base"


def test_later_version_is_not_taken_for_the_first_after_a_restart(opened, checkpoint, tmp_path):
    publish_on_disk(checkpoint, tmp_path, 1, 2, 3, num_promoted=3)
    replica = opened()
    assert do(replica.adapters.rollback("tutor")).version == "tutor@2"
    with pytest.raises(UnknownAdapterError, match="no earlier version"):
        do(replica.adapters.rollback("tutor"))
    assert active(replica) == ["tutor@2"]


def test_name_stays_with_a_job_that_begins_afresh(opened, checkpoint, tmp_path):
    publish_on_disk(checkpoint, tmp_path, 1, num_promoted=1)
    replica = opened(learning(**PLACE_ONLY))

    def step():
        return replica.client.snapshot()["adapters"]["tutor"]["step"]

    wait_until(lambda: step() > 1)
    assert do(replica.adapters.rollback("tutor")).version == "base"
    for _ in range(2):
        assert (names(replica), active(replica)) == (["tiny", "tutor"], [])
        assert TAKEN_BACK in [
            (row.kind, row.version, row.previous, row.reason)
            for row in do(replica.adapters.history("tutor"))
        ]
        taken = step()
        wait_until(lambda taken=taken: step() > taken)
        replica = opened(learning(**PLACE_ONLY))
        assert step() >= taken, "the place of training is kept"
