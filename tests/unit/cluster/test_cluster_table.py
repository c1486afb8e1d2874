from collections import Counter

from collm.cluster.table import ANY, ReplicaTable
from collm.types import ReplicaSnapshot, VersionId
from factories.snapshots import ADAPTER, BASE_MODEL, make_snapshot


def ids_of(table: ReplicaTable, name: str) -> set[str]:
    pool = table.pool(name)
    return set() if pool is None else set(pool.ids)


def test_a_table_is_a_mapping_of_snapshots() -> None:
    first, second = make_snapshot("a"), make_snapshot("b", num_running=3)
    table = ReplicaTable([first, second])
    assert dict(table) == {"a": first, "b": second}
    assert table.standing("b").num_sequences == 3


def test_pools_hold_the_replicas_that_serve_a_name() -> None:
    table = ReplicaTable([make_snapshot("a"), make_snapshot("b", names=(BASE_MODEL,))])
    assert ids_of(table, ADAPTER) == {"a"}
    assert ids_of(table, BASE_MODEL) == ids_of(table, ANY) == {"a", "b"}
    assert table.pool("missing") is None


def test_a_new_snapshot_moves_its_replica_between_pools() -> None:
    table = ReplicaTable([make_snapshot("a")])
    table.put(make_snapshot("a", names=("new",)))
    assert table.pool(ADAPTER) is None
    assert ids_of(table, "new") == {"a"}


def test_a_new_snapshot_of_the_same_versions_brings_its_load_and_its_noise() -> None:
    served = {"quality": {ADAPTER: 1.0}, "active": {ADAPTER: VersionId(f"{ADAPTER}@1")}}
    table = ReplicaTable([make_snapshot("a", **served, quality_noise={ADAPTER: 0.1})])
    table.put(make_snapshot("a", **served, quality_noise={ADAPTER: 0.1}, num_running=3))
    assert table.standing("a").num_sequences == 3
    assert table.standing("a").adapters[ADAPTER].noise == 0.1
    table.put(make_snapshot("a", **served, quality_noise={ADAPTER: 0.2}, num_running=5))
    assert table.standing("a").num_sequences == 5
    assert table.standing("a").adapters[ADAPTER].noise == 0.2
    assert ids_of(table, ADAPTER) == {"a"}


def test_a_draining_replica_is_known_and_in_no_pool() -> None:
    table = ReplicaTable([make_snapshot("a")])
    table.put(make_snapshot("a", is_draining=True))
    assert "a" in table
    assert table.pool(ANY) is None


def test_a_dropped_replica_is_gone_from_everywhere() -> None:
    table = ReplicaTable([make_snapshot("a"), make_snapshot("b")])
    table.drop("a")
    table.drop("unknown")
    assert set(table) == ids_of(table, ANY) == ids_of(table, ADAPTER) == {"b"}


def serving(replica_id: str, number: int, quality: float) -> ReplicaSnapshot:
    active = {ADAPTER: VersionId(f"{ADAPTER}@{number}")}
    return make_snapshot(replica_id, active=active, quality={ADAPTER: quality})


def best_of(table: ReplicaTable, count: int, drawn: float = 0.0) -> list[str]:
    pool = table.pool(ADAPTER)
    assert pool is not None
    return pool.best(count, lambda: drawn)


def test_the_best_follow_changes_of_quality_and_of_versions() -> None:
    table = ReplicaTable([serving("a", 1, 1.0), serving("b", 2, 2.0), serving("c", 3, 1.5)])
    assert best_of(table, 9) == ["b", "c", "a"]
    table.put(serving("b", 2, 0.5))
    assert best_of(table, 2) == ["c", "a"]
    table.put(serving("a", 4, 3.0))
    assert best_of(table, 2) == ["a", "c"]


def test_a_version_ranks_by_the_best_that_anybody_measured_of_it() -> None:
    table = ReplicaTable([serving("easy", 2, 2.0), serving("hard", 2, 0.5), serving("old", 1, 1.0)])
    assert best_of(table, 3)[2] == "old"
    table.drop("easy")
    assert best_of(table, 3) == ["old", "hard"]


def test_replicas_of_the_best_version_are_all_among_the_best_in_turn() -> None:
    table = ReplicaTable([serving("old", 1, 0.0), *(serving(f"r{i}", 2, i) for i in range(10))])
    counts = Counter(one for drawn in range(10) for one in best_of(table, 2, drawn / 10))
    assert counts == {f"r{i}": 2 for i in range(10)}


def test_nobody_is_best_when_all_serve_the_same_version() -> None:
    table = ReplicaTable([serving("a", 1, 2.0), serving("b", 1, 1.0)])
    assert best_of(table, 2) == []


def test_a_name_that_appears_twice_counts_once() -> None:
    table = ReplicaTable([make_snapshot("a", names=("x", "x"))])
    table.drop("a")
    assert table.pool("x") is None
