import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from collm.errors import ConfigError, DiskFullError
from collm.store.database import Database
from collm.store.schema import MIGRATIONS

ADD = "INSERT INTO adapters (name, next_number) VALUES (?, 1)"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "collm.db")
    yield opened
    opened.close()


def names(database: Database) -> list[str]:
    return [row["name"] for row in database.query("SELECT name FROM adapters ORDER BY name")]


def test_transactions_are_durable_and_checked(database: Database) -> None:
    with database.transaction() as connection:
        pragmas = ("journal_mode", "synchronous", "foreign_keys", "user_version")
        values = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
    assert values == ["wal", 2, 1, len(MIGRATIONS)]


def test_raising_undoes_the_whole_transaction(database: Database) -> None:
    def add_and_fail() -> None:
        with database.transaction() as connection:
            connection.execute(ADD, ("a",))
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        add_and_fail()
    with database.transaction() as connection:
        connection.execute(ADD, ("b",))
    assert names(database) == ["b"]


def test_reader_sees_what_was_committed_and_does_not_wait_for_the_writer(
    database: Database,
) -> None:
    with database.transaction() as connection:
        connection.execute(ADD, ("a",))
        assert names(database) == []
    assert names(database) == ["a"]


def test_reads_of_other_threads_see_whole_transactions(database: Database) -> None:
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not done.is_set():
            seen.append(len(names(database)))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(40):
            with database.transaction() as connection:
                connection.execute(ADD, (f"a{number}",))
                connection.execute(ADD, (f"b{number}",))
    finally:
        done.set()
        reader.join()
    assert all(count % 2 == 0 for count in seen)
    assert seen == sorted(seen)
    assert len(names(database)) == 80


def test_threads_take_turns_in_writing(database: Database) -> None:
    def write(prefix: str) -> None:
        for number in range(10):
            with database.transaction() as connection:
                connection.execute(ADD, (f"{prefix}{number}",))

    threads = [threading.Thread(target=write, args=(prefix,)) for prefix in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names(database)) == 40


def test_reopened_database_keeps_its_rows(tmp_path: Path) -> None:
    for name in "ab":
        database = Database(tmp_path / "collm.db")
        with database.transaction() as connection:
            connection.execute(ADD, (name,))
        database.close()
    database = Database(tmp_path / "collm.db")
    assert names(database) == ["a", "b"]
    database.close()


def test_database_of_an_older_collm_is_brought_up_to_date_with_its_rows(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "collm.db", isolation_level=None)
    connection.executescript(f"{MIGRATIONS[0]} PRAGMA user_version = 1;")
    connection.execute(ADD, ("a",))
    connection.close()
    database = Database(tmp_path / "collm.db")
    assert names(database) == ["a"]
    assert database.query("SELECT * FROM jobs") == []
    database.close()


def test_answers_by_the_base_model_that_an_older_collm_kept_are_dropped(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "collm.db", isolation_level=None)
    connection.executescript(f"{''.join(MIGRATIONS[:2])} PRAGMA user_version = 2;")
    add = "INSERT INTO responses VALUES (NULL, ?, ?, ?, 'base', '[]', '[]', 0.0)"
    connection.executemany(add, [("r1", "tutor", "tutor"), ("r2", "tiny", None)])
    connection.close()
    database = Database(tmp_path / "collm.db")
    left = database.query("SELECT response_id FROM responses")
    assert [row["response_id"] for row in left] == ["r1"]
    database.close()


def test_database_of_a_newer_collm_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "collm.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigError, match=r"collm\.db has schema 99, made by a newer collm"):
        Database(tmp_path / "collm.db")


def test_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "collm.db").write_text("a letter to my aunt, long enough to not be a database" * 9)
    with pytest.raises(ConfigError, match=r"collm\.db cannot be used"):
        Database(tmp_path / "collm.db")
    assert (tmp_path / "collm.db").read_text().startswith("a letter")


def test_full_disk_undoes_the_whole_change_and_leaves_the_database_usable(
    database: Database,
) -> None:
    def add_too_much() -> None:
        with database.transaction() as connection:
            connection.execute(ADD, ("b",))
            connection.execute(ADD, ("long" * 50_000,))

    with database.transaction() as connection:
        num_pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(ADD, ("a",))
    with database.transaction() as connection:
        connection.execute(f"PRAGMA max_page_count = {num_pages}")
    with pytest.raises(DiskFullError, match="cannot grow"):
        add_too_much()
    assert names(database) == ["a"]
    with database.transaction() as connection:
        connection.execute(ADD, ("c",))
    assert names(database) == ["a", "c"]
