import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from collm.errors import AdapterError, ConfigError, StateError, UnknownObjectError
from collm.store.database import Database
from collm.store.front_folder import FrontFolder
from collm.store.front_schema import FRONT_MIGRATIONS
from collm.store.rounds import MemberOutcome, RoundJournal, RoundRecord
from collm.store.update_files import UpdateFiles
from collm.types import VersionId


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[RoundJournal]:
    database = Database(tmp_path / "front.db", FRONT_MIGRATIONS)
    yield RoundJournal(database, now_s=lambda: 7.0)
    database.close()


def start(journal: RoundJournal, adapter: str = "ours", number: int = 1) -> RoundRecord:
    return journal.start(
        adapter, number, "planned", plan={"x": number}, base_digest="base", members=("a", "b")
    )


def test_round_begins_with_all_parts_open(journal: RoundJournal) -> None:
    record = start(journal)
    assert record == journal.get("ours", 1) == journal.resume()["ours"]
    assert (record.status, record.plan, record.started_at_s) == ("planned", {"x": 1}, 7.0)
    parts = journal.members("ours", 1)
    assert [(part.member, part.outcome) for part in parts] == [("a", "open"), ("b", "open")]
    assert journal.next_round("ours") == 2
    assert journal.next_round("other") == 1


def test_adapter_has_one_round_at_a_time_and_each_number_once(journal: RoundJournal) -> None:
    record = start(journal)
    start(journal, "other")
    with pytest.raises(StateError, match="has a round under way") as caught:
        start(journal, number=2)
    assert caught.value.code == "round_exists"
    journal.end(record, "done", "all well")
    with pytest.raises(StateError):
        start(journal, number=1)
    assert start(journal, number=2).round == 2
    with pytest.raises(AdapterError, match="adapter name"):
        start(journal, "../x")


def test_steps_add_their_results(journal: RoundJournal) -> None:
    record = journal.advance(start(journal), "training", deadline_at_s=9.0, results={"one": 1})
    record = journal.advance(
        record, "gating", candidate=VersionId("ours@1"), results={"two": math.inf}
    )
    record = journal.end(record, "refused", "worse", results={"three": 3})
    assert record.results == {"one": 1, "two": "inf", "three": 3}
    assert (record.deadline_at_s, record.candidate, record.reason, record.ended_at_s) == (
        9.0,
        "ours@1",
        "worse",
        7.0,
    )
    assert journal.resume() == {}


def test_step_of_a_round_that_moved_on_changes_nothing(journal: RoundJournal) -> None:
    record = start(journal)
    journal.advance(record, "training")
    with pytest.raises(StateError, match="round 1 of 'ours' is not planned any more"):
        journal.advance(record, "gating", used=[(1, "a")], refused={(1, "b"): "no"})
    with pytest.raises(StateError):
        journal.end(record, "abandoned", "no")
    assert journal.get("ours", 1).status == "training"
    assert {part.outcome for part in journal.members("ours", 1)} == {MemberOutcome.OPEN}


def test_parts_are_settled_used_and_refused(journal: RoundJournal) -> None:
    record = start(journal)
    journal.settle("ours", 1, "a", MemberOutcome.REPORTED, report={"num_tokens": 5})
    journal.settle("ours", 1, "b", MemberOutcome.REPORTED, report={})
    assert [part.member for part in journal.reported("ours", range(1, 2))] == ["a", "b"]
    journal.advance(record, "gating", used=[(1, "a")], refused={(1, "b"): "not finite"})
    a, b = journal.members("ours", 1)
    assert (a.report, a.used_in) == ({"num_tokens": 5}, 1)
    assert (b.outcome, b.reason, b.used_in) == ("refused", "not finite", None)
    assert journal.reported("ours", range(1, 2)) == (a,)


def test_late_and_dead_members_owe_their_updates(journal: RoundJournal) -> None:
    record = start(journal)
    journal.settle("ours", 1, "a", MemberOutcome.LATE, reason="slow")
    journal.settle("ours", 1, "b", MemberOutcome.DEAD)
    journal.end(record, "abandoned", "none came")
    start(journal, number=2)
    assert [part.member for part in journal.owed("ours", range(1, 2))] == ["a", "b"]
    assert journal.owed("ours", range(2, 3)) == journal.owed("other", range(1, 2)) == ()
    journal.settle("ours", 1, "a", MemberOutcome.REPORTED, report={})
    assert [part.member for part in journal.owed("ours", range(1, 2))] == ["b"]


def test_rounds_are_listed_newest_first_and_counted_by_how_they_ended(
    journal: RoundJournal,
) -> None:
    for number, status in enumerate(("done", "refused", "abandoned", "done"), start=1):
        journal.end(start(journal, number=number), status, "")
    start(journal, number=5)
    assert [record.round for record in journal.latest("ours", 3)] == [5, 4, 3]
    assert journal.num_ended("ours", ["done", "refused"]) == 3
    assert journal.num_ended("ours", ["planned"]) == 0
    with pytest.raises(UnknownObjectError, match="no round 9"):
        journal.get("ours", 9)


def test_front_folder_keeps_versions_beside_rounds_and_is_locked(tmp_path: Path) -> None:
    with FrontFolder(tmp_path / "front", max_versions=2, now_s=lambda: 0.0) as folder:
        version = folder.versions.publish(
            "ours",
            "1",
            digest="d",
            base_digest="b",
            rank=4,
            metadata={},
            write=lambda path: (path / "w").write_bytes(b"w") and None,
        )
        folder.decisions.promote(version.version, "better", {})
        assert version.folder == tmp_path / "front" / "versions" / "ours" / "1"
        with pytest.raises(ConfigError, match="in use by another front"):
            FrontFolder(tmp_path / "front", max_versions=2, now_s=lambda: 0.0)
    with FrontFolder(tmp_path / "front", max_versions=2, now_s=lambda: 0.0) as folder:
        assert folder.decisions.active() == {"ours": "ours@1"}


def test_updates_are_replaced_and_old_rounds_discarded(tmp_path: Path) -> None:
    files = UpdateFiles(tmp_path)
    for number, content in ((1, b"x"), (2, b"old"), (2, b"new")):
        files.save("ours", number, "a", content)
    assert files.path("ours", 2, "a").read_bytes() == b"new"
    files.discard_before("ours", 2)
    assert not files.path("ours", 1, "a").exists()
    assert files.path("ours", 2, "a").exists()
    with pytest.raises(AdapterError, match="member name"):
        files.save("ours", 2, "../a", b"")


def test_what_an_attempt_left_is_removed_when_the_folder_is_opened(tmp_path: Path) -> None:
    files = UpdateFiles(tmp_path)
    first, second = files.new_work_folder("ours", 1), files.new_work_folder("ours", 1)
    assert first != second
    files.save("ours", 1, "a", b"kept")
    UpdateFiles(tmp_path)
    assert not first.exists()
    assert not second.exists()
    assert files.path("ours", 1, "a").read_bytes() == b"kept"
