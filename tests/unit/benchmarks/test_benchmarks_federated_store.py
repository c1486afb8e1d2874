from pathlib import Path

import pytest

from federated_scores import Score
from federated_store import Outcome, OutcomeFolder

SETTINGS = {"model": "tiny", "rounds": 6, "job": {"learning_rate": 1e-3}}
OUTCOME = Outcome(
    score=Score({"banking": 3, "travel": 0}, {"banking": 4, "travel": 4}),
    spent_s=12.5,
    num_threads=1,
    rounds=({"round": 1, "member": "r0", "loss_before": 2.5}, {"round": 1, "member": "r1"}),
)


def test_a_kept_outcome_is_read_back_as_it_was(tmp_path: Path) -> None:
    OutcomeFolder(tmp_path, SETTINGS).put(0, "federated", OUTCOME)
    assert OutcomeFolder(tmp_path, SETTINGS).get(0, "federated") == OUTCOME


def test_only_finished_seeds_and_ways_are_known(tmp_path: Path) -> None:
    OutcomeFolder(tmp_path, SETTINGS).put(1, "local-only-r0", OUTCOME)
    again = OutcomeFolder(tmp_path, SETTINGS)
    assert again.has(1, "local-only-r0")
    assert not again.has(0, "local-only-r0")
    assert not again.has(1, "local-only-r1")


def test_processes_with_seeds_of_their_own_share_a_folder(tmp_path: Path) -> None:
    first, second = OutcomeFolder(tmp_path, SETTINGS), OutcomeFolder(tmp_path, SETTINGS)
    first.put(0, "central", OUTCOME)
    second.put(1, "central", OUTCOME)
    both = OutcomeFolder(tmp_path, SETTINGS)
    assert both.has(0, "central")
    assert both.has(1, "central")


def test_an_outcome_that_was_never_finished_leaves_nothing(tmp_path: Path) -> None:
    folder = OutcomeFolder(tmp_path, SETTINGS)
    with pytest.raises(TypeError):
        folder.put(0, "central", Outcome(score=OUTCOME.score, spent_s={1}, num_threads=1))
    assert not folder.has(0, "central")


def test_a_folder_of_other_settings_is_refused_by_the_names_of_those_that_differ(
    tmp_path: Path,
) -> None:
    OutcomeFolder(tmp_path, SETTINGS)
    with pytest.raises(SystemExit, match="other settings: rounds 6, not 8$"):
        OutcomeFolder(tmp_path, {**SETTINGS, "rounds": 8})
