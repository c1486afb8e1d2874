from collm.cluster.table import ANY, ReplicaTable
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


def test_the_best_follow_changes_of_quality_and_ties_go_by_id() -> None:
    table = ReplicaTable(
        [
            make_snapshot(one, quality={ADAPTER: q})
            for one, q in (("c", 1.0), ("a", 1.0), ("b", 2.0))
        ]
    )
    pool = table.pool(ADAPTER)
    assert pool is not None
    assert pool.best(9) == ["b", "a", "c"]
    table.put(make_snapshot("b", quality={ADAPTER: 0.5}))
    assert pool.best(2) == ["a", "c"]


def test_a_name_that_appears_twice_counts_once() -> None:
    table = ReplicaTable([make_snapshot("a", names=("x", "x"))])
    table.drop("a")
    assert table.pool("x") is None
