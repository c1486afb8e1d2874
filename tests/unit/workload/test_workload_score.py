from collm.metrics.records import Outcome, RequestRecord
from collm.workload.score import exact_match, exact_match_score


def make_record(
    text: str | None, expected: str | None, outcome: Outcome = "completed"
) -> RequestRecord:
    return RequestRecord(
        request_id="r", model="m", arrived_at_s=0.0, outcome=outcome, text=text, expected=expected
    )


def test_exact_match_folds_case_and_spaces():
    assert exact_match("  Oil  change\nWHEN ", "oil change when")
    assert not exact_match("oil change", "oil change when")


def test_unfinished_scored_request_is_wrong_and_length_request_has_no_score():
    assert exact_match_score(make_record("Yes", "yes")) == 1.0
    assert exact_match_score(make_record("no", "yes")) == 0.0
    assert exact_match_score(make_record("yes", "yes", "failed")) == 0.0
    assert exact_match_score(make_record(None, None)) is None
