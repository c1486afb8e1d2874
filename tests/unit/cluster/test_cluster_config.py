import pytest

from collm.cluster.config import ClusterConfig, ReplicaEntry
from collm.errors import ConfigError


@pytest.mark.parametrize("name", ["a", "r0", "site-1", "Big_One", "9"])
def test_plain_names_are_allowed(name):
    assert ReplicaEntry(name=name).name == name


@pytest.mark.parametrize("name", ["", "-a", "a.b", "a@b", "a/b", "a b", "x" * 33, "front"])
def test_names_that_ids_or_folders_cannot_hold_are_refused(name):
    with pytest.raises(ConfigError, match="name is"):
        ReplicaEntry(name=name)


@pytest.mark.parametrize("settings", [{"threads": 0}, {"data_dir": ""}])
def test_wrong_replica_setting_is_named(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ReplicaEntry(name="a", **settings)


def test_replicas_share_neither_name_nor_folder():
    with pytest.raises(ConfigError, match="name 'a' appears more than once"):
        ClusterConfig(replicas=(ReplicaEntry(name="a"), ReplicaEntry(name="a")))
    with pytest.raises(ConfigError, match="data_dir 'x' appears more than once"):
        ClusterConfig(
            replicas=(ReplicaEntry(name="a", data_dir="x"), ReplicaEntry(name="b", data_dir="x"))
        )
