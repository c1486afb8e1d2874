import pytest

from collm.metrics.records import Outcome, RequestRecord
from collm.workload.samples import load_samples
from collm.workload.score import (
    RunningAccuracy,
    exact_match,
    exact_match_score,
    json_match,
    slot_f1,
)


def make_record(
    text: str | None, expected: str | None, outcome: Outcome = "completed"
) -> RequestRecord:
    return RequestRecord(
        request_id="r", model="m", arrived_at_s=0.0, outcome=outcome, text=text, expected=expected
    )


def test_exact_match_folds_case_and_spaces():
    assert exact_match("  Oil  change\nWHEN ", "oil change when")
    assert not exact_match("oil change", "oil change when")


def test_json_match_ignores_the_order_of_keys():
    assert json_match('{"b": "X y", "a": 1}', '{"a": 1, "b": "x  Y"}')
    assert not json_match('{"a": 1}', '{"a": 1, "b": 2}')
    assert not json_match("no json", '{"a": 1}')


def test_slot_f1_counts_pairs():
    expected = '{"intent": "GetWeather", "city": "Idledale"}'
    assert slot_f1(expected, expected) == 1.0
    assert slot_f1('{"intent": "GetWeather"}', expected) == pytest.approx(2 / 3)
    assert slot_f1('{"intent": "GetWeather", "city": "Rome", "x": "y"}', expected) == 0.4
    assert slot_f1("Idledale", expected) == 0.0
    assert slot_f1("{}", "{}") == 1.0
    with pytest.raises(ValueError, match="expected"):
        slot_f1("{}", "[]")


def test_every_snips_answer_matches_itself():
    answers = [sample.answer for sample in load_samples("snips", "test")]
    assert all(json_match(answer, answer) and slot_f1(answer, answer) == 1.0 for answer in answers)


def test_unfinished_scored_request_is_wrong_and_length_request_has_no_score():
    assert exact_match_score(make_record("Yes", "yes")) == 1.0
    assert exact_match_score(make_record("no", "yes")) == 0.0
    assert exact_match_score(make_record("yes", "yes", "failed")) == 0.0
    assert exact_match_score(make_record(None, None)) is None


def test_running_accuracy_forgets_what_left_its_window():
    accuracy = RunningAccuracy(window=3)
    assert accuracy.share is None
    for score in (1.0, 0.0, 0.0, 0.0, 1.0):
        accuracy.add(score)
    assert accuracy.num_scores == 3
    assert accuracy.share == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="window"):
        RunningAccuracy(window=0)
