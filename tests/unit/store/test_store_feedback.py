import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from collm.errors import StateError, UnknownObjectError
from collm.store.data_folder import DataFolder
from collm.store.feedback import Feedback, FeedbackStore, Rated
from collm.types import VersionId

SECRET = "the launch code is 7355608"


class Wall:
    """A wall clock that ticks once a reading."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def data(tmp_path: Path, wall: Wall) -> Iterator[DataFolder]:
    with DataFolder(tmp_path, max_versions=2, now_s=wall) as opened:
        yield opened


@pytest.fixture
def store(data: DataFolder) -> FeedbackStore:
    return data.feedback


def messages(text: str) -> tuple[Mapping[str, Any], ...]:
    return ({"role": "user", "content": "q"}, {"role": "assistant", "content": text})


def add(
    store: FeedbackStore,
    text: str | None,
    *,
    adapter: str = "a",
    response_id: str = "chatcmpl-1",
    choice: int = 0,
    weight: float = 1.0,
) -> Feedback:
    return store.add(
        response_id=response_id,
        choice=choice,
        adapter=adapter,
        version=VersionId(f"{adapter}@1"),
        rating=0.75,
        messages=None if text is None else messages(text),
        weight=weight,
    )


def test_feedback_is_found_as_it_was_given(store: FeedbackStore) -> None:
    added = add(store, "better \ud800", weight=0.5)
    assert added == Feedback(
        feedback_id=added.feedback_id,
        response_id="chatcmpl-1",
        choice=0,
        adapter="a",
        version=VersionId("a@1"),
        rating=0.75,
        messages=messages("better \ud800"),
        weight=0.5,
        created_at_s=1.0,
        is_deleted=False,
    )
    assert len(added.feedback_id) == len("fb-") + 24
    assert store.get(added.feedback_id) == added


def test_unknown_feedback_is_named(store: FeedbackStore) -> None:
    for use in (store.get, store.delete):
        with pytest.raises(UnknownObjectError, match="feedback 'fb-9' does not exist"):
            use("fb-9")


def test_same_text_is_refused_with_the_id_of_the_earlier(store: FeedbackStore) -> None:
    earlier = add(store, "better")
    with pytest.raises(StateError, match=f"exists already: {earlier.feedback_id}") as caught:
        add(store, "better", response_id="chatcmpl-2", weight=0.1)
    assert caught.value.code == "duplicate"
    assert store.list().items == (earlier,)


def test_order_of_keys_makes_no_other_text(store: FeedbackStore) -> None:
    add(store, "better")
    turned = tuple(dict(reversed(message.items())) for message in messages("better"))
    with pytest.raises(StateError, match="exists already"):
        store.add(
            response_id="chatcmpl-2",
            choice=0,
            adapter="a",
            version=VersionId("a@1"),
            rating=None,
            messages=turned,
            weight=1.0,
        )


def test_other_adapter_may_learn_the_same_text(store: FeedbackStore) -> None:
    add(store, "better")
    add(store, "better", adapter="b")
    assert [len(store.samples(adapter)) for adapter in "abc"] == [1, 1, 0]


def test_choice_is_rated_without_text_once(store: FeedbackStore) -> None:
    add(store, None, weight=0.0)
    add(store, None, weight=0.0, choice=1)
    add(store, None, weight=0.0, response_id="chatcmpl-2")
    with pytest.raises(StateError, match="exists already"):
        add(store, None, weight=0.0)


def rate(
    store: FeedbackStore, rating: float, text: str = "served", response_id: str = "chatcmpl-1"
) -> Rated:
    return store.rate(
        response_id=response_id,
        choice=0,
        adapter="a",
        version=VersionId("a@1"),
        rating=rating,
        served=messages(text),
        weight=max(0.0, 2 * rating - 1),
    )


def test_later_rating_of_a_choice_replaces_the_earlier(store: FeedbackStore) -> None:
    other = rate(store, 1.0, "other", "chatcmpl-2").feedback
    corrected = add(store, "better")
    replaced_id = None
    for rating in (0.9, 0.2, 0.3, 0.8, 1.0):
        rated = rate(store, rating)
        assert rated.replaced_id == replaced_id
        kept = rated.feedback
        assert (kept.rating, kept.messages is None) == (rating, rating <= 0.5)
        assert store.list().items == (kept, corrected, other)
        assert store.samples("a") == (other, corrected, kept)[: 3 if rating > 0.5 else 2]
        if replaced_id is not None:
            with pytest.raises(UnknownObjectError):
                store.get(replaced_id)
        replaced_id = kept.feedback_id


@pytest.mark.parametrize("rating", [0.9, 0.2])
def test_same_rating_again_is_a_duplicate(store: FeedbackStore, rating: float) -> None:
    kept = rate(store, rating).feedback
    with pytest.raises(StateError, match=f"exists already: {kept.feedback_id}") as caught:
        rate(store, rating)
    assert caught.value.code == "duplicate"
    assert store.list().items == (kept,)


def test_rating_that_is_refused_leaves_the_earlier_in_place(store: FeedbackStore) -> None:
    """Its text is another response's sample already."""
    low, taken = rate(store, 0.2).feedback, rate(store, 0.9, response_id="chatcmpl-2").feedback
    with pytest.raises(StateError, match=f"exists already: {taken.feedback_id}"):
        rate(store, 0.9)
    assert store.list().items == (taken, low)


def test_deleted_rating_is_not_replaced(store: FeedbackStore) -> None:
    deleted = rate(store, 0.9).feedback
    store.delete(deleted.feedback_id)
    with pytest.raises(StateError, match=f"was deleted: {deleted.feedback_id}"):
        rate(store, 0.8)
    assert rate(store, 0.2).replaced_id is None


def test_samples_are_what_has_text_and_weight_oldest_first(store: FeedbackStore) -> None:
    one, two = add(store, "one"), add(store, "two", weight=0.25)
    add(store, "ignored", weight=0.0)
    add(store, None)
    add(store, "other", adapter="b")
    assert store.samples("a") == (one, two)


def test_feedback_is_listed_newest_first_page_by_page(store: FeedbackStore) -> None:
    one, two, three = (add(store, text) for text in ("one", "two", "three"))
    other = add(store, "four", adapter="b")
    assert store.list().items == (other, three, two, one)
    page = store.list("a", limit=2)
    assert (page.items, page.has_more) == ((three, two), True)
    page = store.list("a", after=two.feedback_id, limit=2)
    assert (page.items, page.has_more) == ((one,), False)


def test_deleted_text_is_gone_and_refused_for_ever(store: FeedbackStore, tmp_path: Path) -> None:
    kept, deleted = add(store, "kept"), add(store, SECRET)
    left = store.delete(deleted.feedback_id)
    assert (left.feedback_id, left.messages, left.is_deleted) == (deleted.feedback_id, None, True)
    assert store.get(deleted.feedback_id) == left
    assert store.samples("a") == store.list().items == (kept,)
    assert store.list(after=deleted.feedback_id).items == (kept,)
    with pytest.raises(StateError, match=f"was deleted: {deleted.feedback_id}") as caught:
        add(store, SECRET)
    assert caught.value.code == "duplicate"


@pytest.mark.parametrize("length", [1, 500])
def test_deleted_text_is_nowhere_on_disk(data: DataFolder, tmp_path: Path, length: int) -> None:
    for number in range(20):
        add(data.feedback, f"neighbour {number}")
    deleted = add(data.feedback, SECRET * length)
    add(data.feedback, "after")
    assert any(SECRET.encode() in path.read_bytes() for path in tmp_path.glob("collm.db*"))
    data.feedback.delete(deleted.feedback_id)
    assert not any(SECRET.encode() in path.read_bytes() for path in tmp_path.glob("collm.db*"))


def test_text_that_a_backup_kept_in_the_log_goes_when_the_folder_is_tended(
    data: DataFolder, tmp_path: Path
) -> None:
    deleted = add(data.feedback, SECRET)
    add(data.feedback, "after")

    def is_on_disk() -> bool:
        return any(SECRET.encode() in path.read_bytes() for path in tmp_path.glob("collm.db*"))

    with closing(sqlite3.connect(tmp_path / "collm.db")) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM feedback").fetchone()
        data.feedback.delete(deleted.feedback_id)
        data.tend()
        assert is_on_disk(), "the other process reads what was there when it began"
    data.tend()
    assert not is_on_disk()


def test_text_that_a_killed_process_left_in_the_log_goes_when_the_folder_is_tended(
    data: DataFolder, tmp_path: Path
) -> None:
    """A copy of the folder, made before the log was emptied, is what a kill then leaves."""
    deleted = add(data.feedback, SECRET)
    with closing(sqlite3.connect(tmp_path / "collm.db")) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM feedback").fetchone()
        data.feedback.delete(deleted.feedback_id)
        left = tmp_path / "left"
        left.mkdir()
        for name in ("collm.db", "collm.db-wal"):
            shutil.copy(tmp_path / name, left / name)
    assert any(SECRET.encode() in path.read_bytes() for path in left.glob("collm.db*"))
    with DataFolder(left, max_versions=2, now_s=lambda: 0.0) as reopened:
        reopened.tend()
        assert not any(SECRET.encode() in path.read_bytes() for path in left.glob("collm.db*"))


def test_deleting_again_changes_nothing(store: FeedbackStore) -> None:
    deleted = add(store, "better")
    assert store.delete(deleted.feedback_id) == store.delete(deleted.feedback_id)


def test_retention_drops_the_oldest_which_may_come_again(store: FeedbackStore) -> None:
    added = [add(store, str(number)) for number in range(4)]
    other = add(store, "other", adapter="b")
    dropped = store.prune("a", max_samples=2, older_than_s=1000.0)
    assert dropped == tuple(item.feedback_id for item in added[:2])
    assert store.samples("a") == tuple(added[2:])
    assert store.samples("b") == (other,)
    again = add(store, "0")
    assert store.samples("a") == (*added[2:], again)


def test_retention_drops_what_is_too_old(store: FeedbackStore, wall: Wall) -> None:
    old = [add(store, "old"), add(store, None, weight=0.0)]
    wall.now_s += 50.0
    new = add(store, "new")
    dropped = store.prune("a", max_samples=10, older_than_s=40.0)
    assert dropped == tuple(item.feedback_id for item in old)
    assert store.list().items == (new,)


def test_ratings_without_text_push_no_samples_out(store: FeedbackStore) -> None:
    sample = add(store, "sample")
    ratings = [add(store, None, choice=choice, weight=0.0) for choice in range(4)]
    dropped = store.prune("a", max_samples=1, older_than_s=1000.0)
    assert dropped == tuple(item.feedback_id for item in ratings[:3])
    assert store.samples("a") == (sample,)


def test_retention_keeps_deleted_texts_refused(store: FeedbackStore) -> None:
    deleted = add(store, "deleted").feedback_id
    store.delete(deleted)
    assert store.prune("a", max_samples=1, older_than_s=0.0) == ()
    with pytest.raises(StateError, match="was deleted"):
        add(store, "deleted")


def test_refusals_of_deleted_texts_are_as_many_as_samples_at_most(store: FeedbackStore) -> None:
    texts = [f"deleted {number}" for number in range(4)]
    for text in texts:
        store.delete(add(store, text).feedback_id)
    kept = add(store, "kept")
    assert store.prune("a", max_samples=2, older_than_s=1000.0) == ()
    assert store.samples("a") == (kept,)
    for text in texts[2:]:
        with pytest.raises(StateError, match="was deleted"):
            add(store, text)
    for text in texts[:2]:
        add(store, text)


def test_feedback_survives_a_restart(data: DataFolder, tmp_path: Path) -> None:
    kept, deleted = add(data.feedback, "kept"), add(data.feedback, "deleted")
    data.feedback.delete(deleted.feedback_id)
    data.close()
    with DataFolder(tmp_path, max_versions=2, now_s=lambda: 0.0) as reopened:
        assert reopened.feedback.samples("a") == (kept,)
        with pytest.raises(StateError, match="was deleted"):
            add(reopened.feedback, "deleted")
