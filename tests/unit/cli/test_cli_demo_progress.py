import pytest

from collm.cli.demo_answers import moving_shares, share_right
from collm.cli.demo_progress import Progress, active_version
from collm.types import VersionId
from factories.demo import GROUPS, START_S, learning_run, look, record


def test_answers_are_scored_and_out_of_scope_kept_apart():
    progress = Progress(GROUPS, START_S)
    progress.add(record(0.0, "transfer", text=" Transfer\n"))
    progress.add(record(1.0, "timer", text="clock"))
    progress.add(record(2.0, "out of scope", text="out of scope"))
    progress.add(record(3.0))
    assert [(answer.is_right, answer.group) for answer in progress.answers] == [
        (True, "banking"),
        (False, "utility"),
    ]
    assert [answer.is_right for answer in progress.out_of_scope] == [True]
    assert len(progress.records) == progress.outcomes["completed"] == 4


def test_failed_answer_is_wrong_and_an_aborted_one_is_none():
    progress = Progress(GROUPS, START_S)
    progress.add(record(0.0, "timer", text="timer", outcome="failed"))
    progress.add(record(0.0, "timer", text="timer", outcome="rejected"))
    progress.add(record(0.0, "timer", text="timer", outcome="aborted"))
    assert [answer.is_right for answer in progress.answers] == [False, False]
    assert progress.num_failed == 2


def test_request_of_two_versions_is_counted():
    progress = Progress(GROUPS, START_S)
    progress.add(record(0.0, versions=(VersionId("base"), VersionId("clinc@1"))))
    progress.add(record(0.0))
    assert progress.num_mixed == 1


def test_swaps_are_the_changes_of_the_active_version():
    progress = Progress(GROUPS, START_S)
    for at_s, active in enumerate((None, None, "clinc@1", "clinc@1", "clinc@2")):
        progress.look(look(float(at_s), active=active))
    assert [(swap.at_s, swap.version) for swap in progress.swaps] == [
        (2.0, "clinc@1"),
        (4.0, "clinc@2"),
    ]


def test_training_speed_recently_and_overall():
    progress = Progress(GROUPS, START_S)
    assert progress.tokens_per_s() is None
    for at_s, tokens in ((0.0, 0), (50.0, 5_000), (80.0, 14_000)):
        progress.look(look(at_s, tokens=tokens))
    assert progress.tokens_per_s() == pytest.approx(175.0)
    assert progress.recent_tokens_per_s() == pytest.approx(300.0)


def test_moving_share_looks_back_over_a_window():
    progress = Progress(GROUPS, START_S)
    for at_s, text in enumerate(("no", "timer", "timer", "no")):
        progress.add(record(float(at_s), "timer", text=text))
    times_s = [0.4, 0.6, 1.6, 2.6, 9.0]
    assert moving_shares(progress.answers, times_s, window=2) == [None, 0, 0.5, 1.0, 0.5]


def test_look_shows_shares_of_the_loops_time_and_the_version_in_words():
    assert look(0.0).loop_shares == {"serve": 0.5, "train": 0.3, "evaluate": 0.1, "idle": 0.1}
    assert active_version(None) == active_version(look(0.0)) == "base model"
    assert active_version(look(0.0, active="clinc@3")) == "clinc@3"


def test_learning_shows_in_the_moving_share():
    assert share_right([]) is None
    assert moving_shares(learning_run().answers, [25.0, 100.0], window=10) == [0.0, 1.0]
