from collm.gate.config import GENERAL, GateConfig
from collm.gate.exact_match import ExactMatch, exact_of
from collm.gate.trial import PairedLoss, Trial


def pair(active_is_exact, candidate_is_exact, slice="a"):
    return PairedLoss(
        sample_id="",
        slice=slice,
        active=1.0,
        candidate=1.0,
        active_is_exact=active_is_exact,
        candidate_is_exact=candidate_is_exact,
    )


def numbers_of(pairs):
    trial = Trial(GateConfig())
    for one in pairs:
        trial.add(one)
    return trial.report().numbers()


def test_long_answers_do_not_count():
    assert exact_of([True, None, False, True, None]) == ExactMatch(2, 3)
    assert exact_of([None]).share is None


def test_trial_says_how_many_short_answers_each_side_gives_exactly():
    numbers = numbers_of([pair(False, True), pair(True, True), pair(False, False)] * 2)
    assert numbers["active_exact_match"] == 2 / 6
    assert numbers["candidate_exact_match"] == 4 / 6
    assert numbers["num_short_answers"] == 6


def test_general_text_is_no_part_of_the_task():
    numbers = numbers_of([pair(True, True), pair(False, False, slice=GENERAL)])
    assert numbers["candidate_exact_match"] == 1.0


def test_without_short_answers_nothing_is_said_of_them():
    assert not [name for name in numbers_of([pair(None, None)]) if "exact" in name]
