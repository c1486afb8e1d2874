import math
from typing import Any

import pytest

from collm.cluster.lanes import FLOOR_S, NOTHING_SENT, SentLoad
from collm.cluster.prediction import NOT_SERVED, Forecast, predict, stand
from collm.cluster.snapshot_json import from_json, to_json
from collm.pacing.cost import StepCostModel
from collm.types import StepCoefficients, StepLoad
from factories.snapshots import ADAPTER, COEFFICIENTS, make_snapshot

TRUST_S = 0.5


def forecast(
    sent: SentLoad = NOTHING_SENT,
    *,
    num_prompt: int = 100,
    num_prefill: int = 100,
    num_output: int = 20,
    uses_adapter: bool = False,
    overtime_s: float = -0.1,
    **changes: Any,
) -> Forecast:
    standing = stand(make_snapshot(**changes))
    served = standing.adapters[ADAPTER] if uses_adapter else NOT_SERVED
    return predict(standing, sent, served, num_prompt, num_prefill, num_output, overtime_s, TRUST_S)


def sent_load(**changes: Any) -> SentLoad:
    return NOTHING_SENT._replace(**changes)


def test_an_idle_replica_takes_one_step_of_its_own_cost_model() -> None:
    cost = StepCostModel(
        (
            COEFFICIENTS.constant_s,
            COEFFICIENTS.decode_s,
            COEFFICIENTS.prefill_s,
            COEFFICIENTS.context_s,
            COEFFICIENTS.adapter_s,
        )
    )
    step = StepLoad(num_prefill_tokens=100, num_context_tokens=100, num_adapters=1)
    assert forecast(uses_adapter=True).ttft_s == pytest.approx(cost.predict_s(step))


def test_decoding_takes_the_step_of_all_sequences_at_half_its_length() -> None:
    cost = COEFFICIENTS
    expected_s = cost.constant_s + 5 * cost.decode_s + (400 + 100 + 10) * cost.context_s
    assert forecast(num_running=4, num_context_tokens=400).tpot_s == pytest.approx(expected_s)


def test_prefill_waits_for_what_is_queued() -> None:
    ahead = forecast(num_running=2, queued_prefill_tokens=300)
    assert ahead.ttft_s >= forecast(num_running=2).ttft_s + 300 * COEFFICIENTS.prefill_s


def test_prefill_beside_many_decodes_takes_more_steps() -> None:
    alone = forecast(num_prompt=512, num_prefill=512)
    beside = forecast(num_prompt=512, num_prefill=512, num_running=30)
    assert beside.ttft_s > 2 * alone.ttft_s


def test_what_was_sent_since_counts_as_if_the_snapshot_had_it() -> None:
    told = forecast(num_running=3, queued_prefill_tokens=300)
    sent = forecast(sent_load(num_sequences=3, num_prefill_tokens=300))
    assert sent.ttft_s == pytest.approx(told.ttft_s)
    assert sent.tpot_s == pytest.approx(told.tpot_s)


def test_a_snapshot_cannot_deny_what_the_front_has_open_there() -> None:
    told = forecast(num_running=9, queued_prefill_tokens=700)
    denied = forecast(sent_load(num_open=9, num_queued_tokens=700))
    assert denied.ttft_s == pytest.approx(told.ttft_s)
    assert denied.tpot_s == pytest.approx(told.tpot_s)


def test_others_times_correct_the_prediction_but_not_the_claim() -> None:
    plain, corrected = forecast(), forecast(sent_load(ratio=3.0))
    assert corrected.claimed_ttft_s == plain.claimed_ttft_s
    assert corrected.ttft_s + FLOOR_S == pytest.approx(3.0 * (plain.ttft_s + FLOOR_S))


def test_a_stale_snapshot_adds_its_age_and_takes_trust() -> None:
    fresh, stale = forecast(), forecast(overtime_s=0.5)
    assert stale.ttft_s == pytest.approx(fresh.ttft_s + 0.5)
    assert stale.chance < 0.5 * fresh.chance


def test_credit_stretches_every_time() -> None:
    plain, shared = forecast(), forecast(credit_share=0.5)
    assert shared.ttft_s == pytest.approx(2.0 * plain.ttft_s)
    assert shared.tpot_s == pytest.approx(2.0 * plain.tpot_s)
    assert math.isfinite(forecast(credit_share=1.0).ttft_s)


def test_missing_blocks_are_waited_for() -> None:
    full = {"num_running": 4, "num_context_tokens": 1_000}
    assert forecast(num_free_blocks=0, **full).ttft_s > forecast(**full).ttft_s
    assert forecast(num_free_blocks=7, **full).ttft_s == forecast(**full).ttft_s


def test_queued_prefill_takes_free_blocks_first() -> None:
    queue = {"num_running": 4, "queued_prefill_tokens": 100, "num_context_tokens": 1_000}
    assert forecast(num_free_blocks=7, **queue).ttft_s > forecast(**queue).ttft_s


@pytest.mark.parametrize("share", [0.5, 0.7, 1.0, 1.4, 2.0])
def test_the_chance_is_about_log_normal_around_the_prediction(share: float) -> None:
    ttft_s = forecast().ttft_s
    chance = forecast(ttft_s=ttft_s / share, tpot_s=1e3).chance
    expected = 0.5 * math.erfc(math.log(share) / (0.3 * math.sqrt(2.0)))
    assert chance == pytest.approx(expected, abs=0.02)


def test_both_objectives_must_be_met() -> None:
    first, rest = forecast(ttft_s=0.12, tpot_s=1e3), forecast(ttft_s=1e3, tpot_s=0.02)
    assert forecast(ttft_s=0.12, tpot_s=0.02).chance == pytest.approx(first.chance * rest.chance)


def test_times_within_the_objectives_are_not_overdue() -> None:
    assert forecast().overdue_s(20) == 0.0
    late = forecast(ttft_s=0.05, tpot_s=0.01)
    assert late.overdue_s(20) == pytest.approx(late.ttft_s - 0.05 + 20 * (late.tpot_s - 0.01))
    assert late.overdue_s(1) == pytest.approx(late.ttft_s - 0.05)


def test_one_token_has_no_time_per_token_to_miss() -> None:
    assert forecast(num_output=1, tpot_s=0.001).chance == forecast(num_output=1, tpot_s=9.0).chance


def test_work_beside_others_is_less_than_alone() -> None:
    assert forecast(num_running=4).work_s < 0.5 * forecast().work_s
    assert forecast(num_prefill=1).work_s == pytest.approx(forecast().work_s - 0.099)


def test_a_prompt_as_long_as_the_limit_has_no_chance() -> None:
    assert forecast(max_model_len=100).chance == 0.0


def test_a_free_prefill_is_no_division_by_zero() -> None:
    free = StepCoefficients(
        constant_s=0.0, decode_s=0.0, prefill_s=0.0, context_s=0.0, adapter_s=0.0
    )
    assert forecast(step_coefficients=free, num_running=3).ttft_s == 0.0


def test_the_worst_snapshot_that_is_accepted_overflows_nothing() -> None:
    most, many = 1e4, 2**40
    worst = StepCoefficients(
        constant_s=most, decode_s=most, prefill_s=most, context_s=most, adapter_s=most
    )
    snapshot = make_snapshot(
        num_running=many,
        num_waiting=many,
        queued_prefill_tokens=many,
        num_free_blocks=0,
        credit_share=1.0,
        step_coefficients=worst,
        ttft_s=1e-6,
        tpot_s=1e-6,
    )
    accepted = from_json(to_json(snapshot), url="", taken_at_s=0.0)
    sent = sent_load(num_open=10_000, num_queued_tokens=10**9, ratio=64.0)
    predicted = predict(stand(accepted), sent, NOT_SERVED, 10**9, 10**9, 2**20, 1e6, TRUST_S)
    assert predicted.chance == 0.0
    assert math.isfinite(predicted.overdue_s(2**20))
