import json
import math
from collections.abc import Iterable

import pytest

from collm.gate.config import GENERAL, GateConfig
from collm.gate.trial import PairedLoss, SliceLoss, Trial, Verdict

CONFIG = GateConfig(slice_share=0.0)
MORE = {"is_exhausted": False}
ALL = {"is_exhausted": True}


def pair(active: float, candidate: float, name: str = "a") -> PairedLoss:
    return PairedLoss(sample_id="", slice=name, active=active, candidate=candidate)


def trial_of(pairs: Iterable[PairedLoss], config: GateConfig = CONFIG) -> Trial:
    trial = Trial(config)
    for each in pairs:
        trial.add(each)
    return trial


def wave(mean: float, count: int, name: str = "a", swing: float = 0.2) -> list[PairedLoss]:
    """Pairs whose loss differences are ``mean`` plus and minus ``swing`` in turn."""
    return [pair(1.0, 1.0 + mean + (swing if i % 2 else -swing), name) for i in range(count)]


def test_a_clear_improvement_is_better_from_the_least_number_of_samples_on() -> None:
    pairs = wave(-0.3, 24)

    assert trial_of(pairs[:23]).verdict(**MORE) is None
    assert trial_of(pairs).verdict(**MORE) is Verdict.BETTER


def test_fewer_samples_than_the_least_number_never_show_anything() -> None:
    assert trial_of(wave(-1.0, 23)).verdict(**ALL) is Verdict.NOT_SHOWN


def test_with_fewer_held_out_samples_than_the_least_number_all_of_them_are_enough() -> None:
    trial = Trial(CONFIG, {"a": 6, "b": 2, GENERAL: 40})
    pairs = [*wave(-1.0, 6, "a"), *wave(-1.0, 2, "b")]
    for each in pairs[:-1]:
        trial.add(each)
    assert trial.verdict(**ALL) is Verdict.NOT_SHOWN
    trial.add(pairs[-1])
    assert trial.verdict(**ALL) is Verdict.BETTER


def test_so_few_held_out_samples_that_chance_could_do_it_never_show_anything() -> None:
    trial = Trial(CONFIG, {"a": 4})
    for each in wave(-5.0, 4):
        trial.add(each)
    assert trial.verdict(**ALL) is Verdict.NOT_SHOWN


def test_a_trial_is_on_course_if_its_most_samples_would_do_at_the_pace_so_far() -> None:
    assert trial_of(wave(-0.1, 40)).is_on_course
    assert not trial_of(wave(-0.005, 40)).is_on_course
    assert not trial_of(wave(0.1, 40)).is_on_course
    few = GateConfig(slice_share=0.0, max_samples=45)
    assert not trial_of(wave(-0.05, 40), few).is_on_course
    assert trial_of(wave(-0.3, 40), few).is_on_course, "it is proven"


def test_equal_losses_ask_for_more_until_the_samples_run_out() -> None:
    trial = trial_of([pair(1.0, 1.0)] * 100)

    assert trial.verdict(**MORE) is None
    assert trial.verdict(**ALL) is Verdict.NOT_SHOWN


def test_the_largest_number_of_samples_exhausts_a_trial() -> None:
    assert trial_of([pair(1.0, 1.0)] * 255).verdict(**MORE) is None
    assert trial_of([pair(1.0, 1.0)] * 256).verdict(**MORE) is Verdict.NOT_SHOWN


def test_a_candidate_that_is_worse_everywhere_is_worse() -> None:
    assert trial_of(wave(0.5, 8)).verdict(**MORE) is Verdict.WORSE


def test_a_slightly_worse_candidate_is_proven_worse_by_evidence() -> None:
    trial = trial_of(wave(0.09, 200, swing=0.1))  # below the slices' bound

    assert trial.verdict(**MORE) is Verdict.WORSE
    assert trial.report().evidence_worse > 20.0 > trial.report().evidence


def test_a_candidate_better_on_average_and_worse_on_one_slice_is_refused_at_once() -> None:
    pairs = [*wave(-0.5, 50, "a"), *wave(-0.5, 50, "b"), *wave(0.4, 8, "c")]

    trial = trial_of(pairs)

    assert trial.verdict(**MORE) is Verdict.SLICE_WORSE
    assert trial.report().evidence > 20.0
    assert trial.report().slices["c"].increase == pytest.approx(0.4)
    assert trial_of(pairs[:100]).verdict(**MORE) is Verdict.BETTER  # without that slice


def test_a_slice_above_its_bound_without_proof_asks_for_more_and_then_refuses() -> None:
    trial = trial_of([*wave(-0.5, 60), *wave(0.2, 8, "b", swing=1.0)])

    assert trial.verdict(**MORE) is None
    assert trial.verdict(**ALL) is Verdict.SLICE_WORSE

    for each in wave(-0.2, 20, "b"):
        trial.add(each)
    assert trial.verdict(**MORE) is Verdict.BETTER


def test_a_slice_worse_by_less_than_its_bound_is_accepted() -> None:
    assert trial_of([*wave(-0.5, 60), *wave(0.05, 20, "b")]).verdict(**MORE) is Verdict.BETTER


def test_general_text_guards_by_its_own_bound_and_has_no_other_say() -> None:
    improved = wave(-0.5, 40)

    trial = trial_of([*improved, *wave(0.25, 200, GENERAL)])
    assert trial.verdict(**MORE) is Verdict.BETTER
    assert trial.report().candidate_loss == pytest.approx(0.5)

    assert trial_of([*improved, *wave(0.35, 100, GENERAL, swing=0.1)]).verdict(**MORE) is (
        Verdict.SLICE_WORSE
    )
    assert trial_of([*wave(0.0, 200), *wave(-0.5, 50, GENERAL)]).verdict(**ALL) is Verdict.NOT_SHOWN


def test_every_slice_seen_is_waited_for_and_one_near_its_bound_for_longer() -> None:
    pairs = [*wave(-0.5, 60), *wave(-0.5, 3, "b")]

    assert trial_of(pairs).verdict(**MORE) is None
    assert trial_of(pairs).verdict(**ALL) is Verdict.BETTER
    assert trial_of([*pairs, *wave(-0.5, 1, "b")]).verdict(**MORE) is Verdict.BETTER

    worse = PairedLoss(sample_id="", slice="b", active=1.0, candidate=1.06)
    pairs = [*wave(-0.5, 60), *[worse] * 7]

    assert trial_of(pairs).verdict(**MORE) is None
    assert trial_of([*pairs, worse]).verdict(**MORE) is Verdict.BETTER


def test_a_slice_with_few_samples_in_all_is_judged_by_what_it_has() -> None:
    trial = Trial(CONFIG, slice_sizes={"a": 500, "b": 3})
    for each in [*wave(-0.5, 60), *wave(-0.5, 2, "b")]:
        trial.add(each)
    assert trial.verdict(**MORE) is None

    trial.add(pair(1.0, 0.9, "b"))
    assert trial.verdict(**MORE) is Verdict.BETTER


def test_once_better_is_proven_only_slices_in_doubt_are_read_on() -> None:
    trial = Trial(CONFIG, slice_sizes={"a": 500, "b": 500, "c": 500})
    assert trial.wants("a")
    for each in [*wave(-0.5, 60), *wave(0.2, 8, "b", swing=1.0), *wave(-0.5, 3, "c")]:
        trial.add(each)
    assert [name for name in ("a", "b", "c", "unseen") if trial.wants(name)] == ["b", "c", "unseen"]

    for each in [*wave(-0.2, 20, "b"), *wave(-0.5, 1, "c")]:
        trial.add(each)
    assert not any(map(trial.wants, ("a", "b", "c")))


def test_a_slice_too_small_for_its_mean_is_refused_only_when_it_is_surely_worse() -> None:
    def trial_with(small: list[PairedLoss], size: int) -> Trial:
        trial = Trial(CONFIG, slice_sizes={"a": 500, "b": size})
        for each in [*wave(-0.5, 60), *small]:
            trial.add(each)
        return trial

    wavering, steady = wave(0.2, 4, "b", swing=1.0), wave(0.5, 4, "b", swing=0.1)
    assert trial_with(wavering, 4).verdict(**MORE) is Verdict.BETTER
    assert trial_with(wavering, 8).verdict(**ALL) is Verdict.SLICE_WORSE
    assert trial_with(steady, 4).verdict(**ALL) is Verdict.SLICE_WORSE


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["a", GENERAL])
def test_one_candidate_loss_that_is_not_finite_refuses_at_once(loss: float, name: str) -> None:
    trial = trial_of([*wave(-0.5, 60), pair(1.0, loss, name)])

    assert trial.verdict(**MORE) is Verdict.NOT_FINITE
    assert trial.report().candidate_loss == pytest.approx(0.5)  # of the finite ones


def test_an_active_version_that_is_not_finite_is_worse_than_any_finite_candidate() -> None:
    trial = trial_of([pair(math.nan, 5.0)] * 24)

    assert trial.verdict(**MORE) is Verdict.BETTER
    assert trial.report().slices["a"].n == 0
    assert math.isnan(trial.report().active_loss)
    assert trial.report().numbers()["active_loss"] is None


def test_many_small_gains_do_not_outweigh_a_higher_mean_loss() -> None:
    trial = trial_of([*[pair(1.0, 0.8)] * 57, *[pair(1.0, 9.0)] * 3])

    assert trial.report().evidence > 20.0
    assert trial.report().candidate_loss > trial.report().active_loss
    assert trial.verdict(**ALL) is Verdict.NOT_SHOWN


def test_the_bound_of_a_slice_grows_with_its_loss_and_that_of_general_text_does_not() -> None:
    wavers = [pair(4.0, 5.0), pair(4.0, 5.2)]
    general = [pair(4.0, 5.0, GENERAL), pair(4.0, 5.2, GENERAL)]
    slices = trial_of([*wavers, *general], GateConfig(slice_share=0.25)).report().slices

    assert slices["a"].limit == pytest.approx(0.1 + 0.25 * 4.0)
    assert slices[GENERAL].limit == 0.3
    assert not slices["a"].is_surely_above
    assert slices[GENERAL].is_above


def test_the_report_adds_up() -> None:
    report = trial_of([pair(2.0, 1.5), pair(1.0, 1.25), pair(3.0, 2.0, GENERAL)]).report()

    assert report.verdict is Verdict.NOT_SHOWN
    assert (report.num_samples, report.active_loss, report.candidate_loss) == (3, 1.5, 1.375)
    assert report.slices["a"] == SliceLoss(
        bound=0.1, n=2, sum_d=-0.25, sum_d2=0.3125, sum_active=3.0
    )
    assert report.slices[GENERAL] == SliceLoss(
        bound=0.3, n=1, sum_d=-1.0, sum_d2=1.0, sum_active=3.0
    )
    numbers = json.loads(json.dumps(report.numbers(), allow_nan=False))
    assert numbers["verdict"] == "not_shown"
    assert numbers["slices"]["a"] == {"bound": 0.1, "n": 2, "sum_d": -0.25, "sum_d2": 0.3125}


def test_an_empty_trial_reports_that_nothing_was_shown() -> None:
    report = trial_of([]).report()

    assert (report.verdict, report.num_samples) == (Verdict.NOT_SHOWN, 0)
    json.dumps(report.numbers(), allow_nan=False)


def test_confidence_that_a_slice_is_above_its_bound_follows_the_normal_quantile() -> None:
    # Four differences of mean 0.5 and variance 4 · 0.04 / 3: mean − 1.645 · 0.1155 = 0.310.
    sums = {"n": 4, "sum_d": 2.0, "sum_d2": 1.16}  # of 0.3, 0.7, 0.3, 0.7

    assert SliceLoss(bound=0.309, **sums).is_surely_above
    assert not SliceLoss(bound=0.311, **sums).is_surely_above
    assert SliceLoss(bound=0.311, **sums).is_above
    assert not SliceLoss(bound=0.1, n=1, sum_d=5.0, sum_d2=25.0).is_surely_above
