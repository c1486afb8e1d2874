import json
import math
import random

import pytest

from collm.errors import RoundError
from collm.federated.rounds import GateReport, SliceSums
from collm.federated.verdict import judge
from collm.gate.config import GENERAL, GateConfig
from collm.gate.trial import Verdict

CONFIG = GateConfig()


def sums(differences: list[float]) -> SliceSums:
    return SliceSums(len(differences), sum(differences), sum(d * d for d in differences))


def drawn(mean: float, deviation: float, num: int, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(mean, deviation) for _ in range(num)]


def report(member: str, num_not_finite: int = 0, **slices: list[float]) -> GateReport:
    return GateReport(
        member=member,
        slices={name: sums(differences) for name, differences in slices.items()},
        num_not_finite=num_not_finite,
    )


def test_pooled_numbers_are_those_of_all_samples_together():
    first, second, third = drawn(-0.2, 0.3, 20, 1), drawn(-0.1, 0.3, 30, 2), drawn(0.0, 0.3, 9, 3)
    decision = judge(
        [report("b", cards=second, general=[5e-2]), report("a", cards=first, travel=third)], CONFIG
    )
    every = first + second + third
    mean = sum(every) / len(every)
    variance = sum((d - mean) ** 2 for d in every) / (len(every) - 1)
    assert decision.increase == pytest.approx(mean)
    assert decision.standard_error == pytest.approx(math.sqrt(variance / len(every)))
    assert decision.num_samples == 60
    assert decision.slices["cards"].n == 50
    assert decision.slices["cards"].increase == pytest.approx(sum(first + second) / 50)
    assert decision.members["a"].increase == pytest.approx(sum(first + third) / 29)
    assert decision.members["b"].n == 30


def test_better_on_pooled_samples_though_no_member_could_show_it_alone():
    parts = {f"m{i}": drawn(-0.06, 0.3, 60, i) for i in range(4)}
    alone = [judge([report(m, cards=d)], CONFIG).verdict for m, d in parts.items()]
    together = judge([report(m, cards=d) for m, d in parts.items()], CONFIG)
    assert Verdict.NOT_SHOWN in alone
    assert together.verdict is Verdict.BETTER
    assert together.is_better


def test_one_candidate_in_twenty_that_is_no_better_passes():
    lenient, num_passed = GateConfig(slice_bound=9.0), 0
    for i in range(1000):
        first, second = (drawn(0.0, 0.3, 64, seed) for seed in (2 * i, 2 * i + 1))
        num_passed += judge(
            [report("a", cards=first), report("b", cards=second)], lenient
        ).is_better
    assert 25 <= num_passed <= 75


def test_what_is_proven_worse_is_worse():
    decision = judge([report("a", cards=drawn(0.05, 0.02, 50, 1))], CONFIG)
    assert decision.verdict is Verdict.WORSE


def test_too_few_samples_show_nothing():
    few = report("a", cards=[-1.0, -1.1] * 11)
    assert judge([few], CONFIG).verdict is Verdict.NOT_SHOWN
    assert judge([few], GateConfig(min_samples=22)).verdict is Verdict.BETTER


def test_a_slice_that_got_worse_refuses_whatever_others_gained():
    good = drawn(-1.0, 0.1, 100, 1)
    decision = judge(
        [report("a", cards=good, travel=[0.2] * 8), report("b", cards=good, travel=[0.15] * 8)],
        CONFIG,
    )
    assert decision.verdict is Verdict.SLICE_WORSE
    assert not decision.is_better


def test_a_slice_counts_over_all_members():
    good = drawn(-1.0, 0.1, 100, 1)
    decision = judge(
        [report("a", cards=good, travel=[0.2] * 8), report("b", cards=good, travel=[-0.1] * 8)],
        CONFIG,
    )
    assert decision.verdict is Verdict.BETTER


@pytest.mark.parametrize(
    ("active_loss", "verdict"), [(0.2, Verdict.SLICE_WORSE), (1.6, Verdict.BETTER)]
)
def test_a_slice_of_high_loss_may_waver_by_a_share_of_it(active_loss, verdict):
    good, config = drawn(-1.0, 0.1, 100, 1), GateConfig(slice_bound=0.1, slice_share=0.25)
    found = [0.3, 0.35] * 5
    travel = SliceSums(10, sum(found), sum(d * d for d in found), 10 * active_loss)
    decision = judge(
        [GateReport(member="a", slices={"cards": sums(good), "travel": travel})], config
    )
    assert decision.verdict is verdict
    assert decision.slices["travel"].limit == pytest.approx(0.1 + active_loss / 4)


def test_a_slice_of_few_samples_refuses_only_when_it_is_surely_worse():
    good = drawn(-1.0, 0.1, 100, 1)
    unsure = judge([report("a", cards=good, travel=[0.9, -0.5, 0.4])], CONFIG)
    assert unsure.slices["travel"].is_above
    assert unsure.verdict is Verdict.BETTER
    sure = judge([report("a", cards=good, travel=[0.4, 0.5, 0.6])], CONFIG)
    assert sure.verdict is Verdict.SLICE_WORSE


def test_a_member_that_got_worse_refuses_though_every_slice_gained():
    decision = judge(
        [report("big", cards=drawn(-1.0, 0.1, 200, 1)), report("small", cards=[0.2] * 20)], CONFIG
    )
    assert decision.slices["cards"].increase < 0.0
    assert decision.verdict is Verdict.SLICE_WORSE


def test_general_text_has_its_own_bound_and_no_other_say():
    good, config = drawn(-0.1, 0.1, 100, 1), GateConfig(general_bound=0.3)
    mild = judge([report("a", cards=good, **{GENERAL: [0.29] * 100})], config)
    assert mild.verdict is Verdict.BETTER
    assert mild.increase == pytest.approx(sum(good) / 100)
    strong = judge([report("a", cards=good, **{GENERAL: [0.31] * 100})], config)
    assert strong.verdict is Verdict.SLICE_WORSE


def test_a_loss_that_is_not_finite_discards_the_candidate():
    good = drawn(-1.0, 0.1, 100, 1)
    decision = judge([report("a", cards=good), report("b", num_not_finite=1, cards=good)], CONFIG)
    assert decision.verdict is Verdict.NOT_FINITE
    assert decision.num_not_finite == 1


def test_nobody_reporting_shows_nothing():
    decision = judge([], CONFIG)
    assert decision.verdict is Verdict.NOT_SHOWN
    assert (decision.increase, decision.standard_error, decision.num_samples) == (0.0, None, 0)


def test_order_of_reports_does_not_matter():
    reports = [report(m, cards=drawn(-0.1, 0.3, 20, i)) for i, m in enumerate("abc")]
    assert judge(reports, CONFIG) == judge(reports[::-1], CONFIG)


def test_a_member_reports_once():
    with pytest.raises(RoundError, match="a reported twice"):
        judge([report("a"), report("a")], CONFIG)


def test_numbers_are_plain_json():
    decision = judge([report("a", cards=[-0.5] * 30), report("b", general=[0.1])], CONFIG)
    numbers = json.loads(json.dumps(decision.numbers(), allow_nan=False))
    assert numbers["verdict"] == "better"
    assert numbers["slices"]["cards"] == {"n": 30, "increase": -0.5, "bound": 0.1}
    assert numbers["members"]["b"]["n"] == 0
