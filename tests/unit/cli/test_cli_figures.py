import math

from collm.cli.figures import number_lines, pairs
from collm.federated.rounds import GateReport, SliceSums
from collm.federated.verdict import judge
from collm.gate.config import GateConfig
from collm.gate.exact_match import ExactMatch
from collm.gate.trial import SliceLoss, TrialReport, Verdict


def test_numbers_of_a_trial_are_a_few_lines():
    report = TrialReport(
        verdict=Verdict.SLICE_WORSE,
        num_samples=48,
        active_loss=2.0,
        active_error=0.3,
        candidate_loss=1.5,
        candidate_error=0.2,
        evidence=40.0,
        evidence_worse=0.125,
        slices={
            "": SliceLoss(bound=0.1, n=40, sum_d=-30.0, sum_d2=30.0),
            "general": SliceLoss(bound=0.3, n=8, sum_d=4.0, sum_d2=4.0),
            "rare": SliceLoss(bound=0.1),
        },
        active_exact=ExactMatch(10, 40),
        candidate_exact=ExactMatch(25, 40),
    )
    assert number_lines(report.numbers()) == [
        "n 48",
        "loss 2 ± 0.3 → 1.5 ± 0.2",
        "exact match 25% → 62% of 40",
        "evidence for 40",
        "evidence against 0.125",
        "verdict slice_worse",
        "all: -0.750 ≤ 0.1, n 40",
        "general: +0.500 > 0.3, n 8",
        "rare: n 0",
    ]


def test_numbers_of_a_round_say_what_each_slice_and_member_found():
    reports = [
        GateReport(member=name, slices={"own": SliceSums(8, total, abs(total), 16.0)})
        for name, total in (("r0", -4.0), ("r1", -2.0))
    ]
    decision = judge(reports, GateConfig(min_samples=4, max_samples=64))
    assert number_lines(decision.numbers())[-3:] == [
        "own: -0.375 ≤ 0.6, n 16",
        "r0: -0.500 ≤ 0.6, n 8",
        "r1: -0.250 ≤ 0.6, n 8",
    ]


def test_numbers_of_a_version_taken_back_say_what_each_member_found():
    found = {"num_samples": 12, "active_loss": 2.5, "previous_loss": 1.5, "capital": 150.0}
    lines = number_lines({"num_samples": 12, "evidence": 112.0, "members": {"r0": found}})
    assert lines == ["n 12", "evidence 112", "r0: loss 1.5 → 2.5, n 12"]


def test_missing_and_overflown_figures_are_shown_as_such():
    slices = {
        "a": {"n": 2, "sum_d": "inf", "bound": 0.1},
        "b": {"n": 1, "sum_d": "nan", "bound": 1},
    }
    numbers = {"active_loss": None, "candidate_loss": "nan", "slices": slices}
    assert number_lines(numbers) == [
        "loss – → nan",
        "a: +inf > 0.1, n 2",
        "b: +nan > 1, n 1",
    ]


def test_other_numbers_keep_their_names():
    numbers = {"held_out_loss": 1.23456, "is_finite": True, "evidence": 2.0, "slices": "text"}
    assert number_lines(numbers) == [
        "held out loss 1.235",
        "is finite True",
        "evidence 2",
        "slices text",
    ]
    assert pairs({"n_epochs": 3, "rate": math.pi, "x": None}) == "n_epochs 3\nrate 3.142\nx –"
