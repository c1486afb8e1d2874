from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from collm.errors import UnknownObjectError
from collm.store.data_folder import DataFolder
from collm.store.responses import ResponseStore, StoredResponse
from collm.types import VersionId


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ResponseStore]:
    with DataFolder(tmp_path, max_versions=2, now_s=lambda: 100.0) as data:
        yield data.responses


def response(number: int) -> StoredResponse:
    return StoredResponse(
        response_id=f"chatcmpl-{number}",
        model="tutor",
        adapter="tutor",
        version=VersionId("tutor@3"),
        messages=({"role": "user", "content": f"question {number} \ud800 \0 é"},),
        answers=("one", "two"),
        created_at_s=float(number),
    )


def kept(store: ResponseStore, *numbers: int) -> list[int]:
    found = []
    for number in numbers:
        try:
            found.append(int(store.get(f"chatcmpl-{number}").created_at_s))
        except UnknownObjectError:
            continue
    return found


def test_answers_are_found_as_they_were_given(store: ResponseStore) -> None:
    early = replace(response(2), version=VersionId("base"))
    store.add_many([response(1), early])
    assert store.get("chatcmpl-1") == response(1)
    assert store.get("chatcmpl-2") == early


def test_unknown_answer_is_named(store: ResponseStore) -> None:
    with pytest.raises(UnknownObjectError, match="response 'chatcmpl-9' does not exist"):
        store.get("chatcmpl-9")


def test_answer_whose_feedback_is_deleted_has_no_text_left_and_is_known_all_the_same(
    tmp_path: Path,
) -> None:
    with DataFolder(tmp_path, max_versions=2, now_s=lambda: 100.0) as data:
        store = data.responses
        store.add_many([response(1), response(2)])
        feedback = data.feedback.add(
            response_id="chatcmpl-1",
            choice=0,
            adapter="tutor",
            version=VersionId("tutor@3"),
            rating=None,
            messages=[{"role": "user", "content": "better"}],
            weight=1.0,
        )
        assert not store.get("chatcmpl-1").is_wiped
        data.feedback.delete(feedback.feedback_id)
        wiped = store.get("chatcmpl-1")
        assert wiped.is_wiped
        assert wiped == replace(response(1), messages=(), answers=())
        assert store.get("chatcmpl-2") == response(2)
        store.add_many([response(1)])
        assert store.get("chatcmpl-1").is_wiped


def test_same_answer_again_changes_nothing(store: ResponseStore) -> None:
    store.add_many([response(1)])
    store.add_many([replace(response(1), answers=("other",)), response(2)])
    assert store.get("chatcmpl-1") == response(1)
    assert kept(store, 1, 2) == [1, 2]


def test_only_the_latest_answers_are_kept(store: ResponseStore) -> None:
    store.add_many(response(number) for number in range(90, 96))
    store.prune(max_responses=6, older_than_s=1000.0)
    assert kept(store, *range(90, 96)) == [90, 91, 92, 93, 94, 95]
    store.prune(max_responses=2, older_than_s=1000.0)
    assert kept(store, *range(90, 96)) == [94, 95]


def test_old_answers_are_forgotten(store: ResponseStore) -> None:
    store.add_many(response(number) for number in (60, 89, 90, 99))
    store.prune(max_responses=100, older_than_s=10.0)
    assert kept(store, 60, 89, 90, 99) == [90, 99]


def test_no_answers_at_all_may_be_kept(store: ResponseStore) -> None:
    store.add_many([response(99)])
    store.prune(max_responses=0, older_than_s=1000.0)
    assert kept(store, 99) == []
