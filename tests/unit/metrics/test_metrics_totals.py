from collm.metrics.loop_times import LoopTimes
from collm.metrics.records import Outcome, RequestRecord
from collm.metrics.totals import Totals
from collm.pacing.config import Objectives
from collm.types import AdapterTotals, GradientSums


def make_totals() -> Totals:
    return Totals(Objectives(ttft_s=0.8, tpot_s=0.1), LoopTimes())


def record(model: str, outcome: Outcome = "completed", ttft_s: float = 0.5) -> RequestRecord:
    return RequestRecord(
        request_id="r",
        model=model,
        arrived_at_s=10.0,
        first_token_at_s=10.0 + ttft_s,
        last_token_at_s=11.0,
        num_prompt_tokens=7,
        num_output_tokens=21,
        outcome=outcome,
    )


def test_requests_count_by_adapter_whatever_version_they_name():
    totals = make_totals()
    for model in ("clinc", "clinc@3", "base"):
        totals.arrived(model, 10.0)
    totals.ended(record("clinc"))
    totals.ended(record("clinc@3", ttft_s=0.9))
    assert totals.totals().adapters == {
        "clinc": AdapterTotals(
            num_arrived=2, num_ended=2, num_met=1, num_prompt_tokens=14, num_output_tokens=42
        ),
        "base": AdapterTotals(num_arrived=1),
    }


def test_what_the_client_is_to_blame_for_leaves_nothing_behind():
    totals = make_totals()
    totals.arrived("made-up", 10.0)
    totals.ended(record("made-up", "refused"))
    assert totals.totals().adapters == {}


def test_rejected_requests_have_arrived_and_are_missed():
    totals = make_totals()
    totals.arrived("clinc", 10.0)
    totals.ended(record("clinc", "rejected"))
    found = totals.totals().adapters["clinc"]
    assert (found.num_arrived, found.num_ended, found.num_met) == (1, 1, 0)


def test_gaps_between_arrivals_add_up_with_their_squares():
    totals = make_totals()
    for now_s in (1.0, 2.0, 4.0):
        totals.arrived("clinc", now_s)
    found = totals.totals()
    assert (found.num_gaps, found.gap_sum_s, found.gap_square_sum_s2) == (2, 3.0, 5.0)


def test_learning_adds_up_and_steps_that_were_thrown_away_do_not_count():
    totals = make_totals()
    gradient = GradientSums(num_steps=1, num_differences=3, spread=2.0, square=1.0)
    totals.trained("clinc", 0.25)
    totals.trained("clinc", 0.5)
    totals.stepped("clinc", 100, 2.0, gradient)
    totals.stepped("clinc", 50, 1.0, gradient)
    totals.stepped("clinc", 50, float("nan"), GradientSums())
    assert totals.totals().adapters["clinc"] == AdapterTotals(
        training_s=0.75,
        num_trained_tokens=150,
        num_steps=2,
        loss_sum=250.0,
        gradient=GradientSums(num_steps=2, num_differences=6, spread=4.0, square=2.0),
    )
