from dataclasses import replace

import pytest

from collm.metrics.records import RequestRecord
from collm.pacing.config import Objectives
from slo_report import (
    LATENCY,
    OBJECTIVE,
    OFF,
    Block,
    Coverage,
    Summary,
    Work,
    calibration_rows,
    judge,
    pairable,
    summarize,
)

OBJECTIVES = Objectives(ttft_s=0.8, tpot_s=0.1)
QUANTUM_S = 0.04


def record(ttft_s: float = 0.3, tpot_s: float = 0.05) -> RequestRecord:
    return RequestRecord(
        request_id="",
        model="learner",
        arrived_at_s=0.0,
        first_token_at_s=ttft_s,
        last_token_at_s=ttft_s + 10 * tpot_s,
        num_output_tokens=11,
        outcome="completed",
    )


def work(**fields: float) -> Work:
    return Work(steps=Coverage(100, 95), quanta={}, **fields)  # type: ignore[arg-type]


def block(arm: str, number: int, records: list[RequestRecord], **fields: float) -> Block:
    return Block(
        arm=arm,
        load=0.5,
        number=number,
        records=tuple(records),
        gaps_s=(0.05, 0.15),
        work=work(**fields),
    )


OFF_BLOCKS = [
    block(OFF, 0, [record()] * 100, wall_s=10.0, serve_s=4.0),
    block(OFF, 1, [record()] * 100, wall_s=10.0, serve_s=6.0),
]
ON_BLOCKS = [
    block(LATENCY, 1, [record()] * 100, wall_s=11.0, serve_s=6.0, train_s=4.0, evaluate_s=0.5),
    block(LATENCY, 0, [record()] * 100, wall_s=10.0, serve_s=4.0, train_s=4.5),
]


def summary_of(arm: str = LATENCY) -> Summary:
    return replace(summarize(ON_BLOCKS, OFF_BLOCKS, OBJECTIVES, seed=0), arm=arm)


def off() -> Summary:
    return summarize(OFF_BLOCKS, OFF_BLOCKS, OBJECTIVES, seed=0)


def failed(summary: Summary, beside: Summary | None = None) -> list[str]:
    bars = judge(summary, beside or off(), OBJECTIVES, QUANTUM_S, quantile=0.95)
    return [bar.claim for bar in bars if not bar.is_met]


def test_training_is_measured_by_what_serving_alone_would_leave_in_the_same_blocks() -> None:
    # 4.5 s + 4.5 s of quanta, in 21 s of which training off serves for 10 s
    assert summary_of().left_share == pytest.approx(9.0 / 11.0)
    assert summary_of().evaluation_share == pytest.approx(0.5 / 9.0)


def test_tokens_are_taken_per_second_of_wall_time() -> None:
    blocks = [
        block(LATENCY, 0, [record()], wall_s=10.0, num_training_tokens=3_000),
        block(LATENCY, 1, [record()], wall_s=20.0, num_training_tokens=1_500),
    ]
    off_blocks = [block(OFF, 0, [record()]), block(OFF, 1, [record()])]
    summary = summarize(blocks, off_blocks, OBJECTIVES, seed=0)
    assert summary.training_tokens_per_s == pytest.approx(150.0)


def test_requests_are_paired_by_the_number_of_their_block() -> None:
    late = [record(ttft_s=0.9)] * 20
    on = [replace(ON_BLOCKS[0], records=(*late, *[record()] * 80)), ON_BLOCKS[1]]
    pairs = summarize(on, OFF_BLOCKS, OBJECTIVES, seed=0).pairs
    assert (pairs.num_both, pairs.num_only_old) == (180, 20)


def test_blocks_that_only_one_arm_has_finished_are_left_out() -> None:
    third = block(LATENCY, 2, [record()])
    on, beside = pairable([*ON_BLOCKS, third], OFF_BLOCKS[1:])
    assert ([one.number for one in on], [one.number for one in beside]) == ([1], [1])


def test_the_lower_bound_is_the_lower_one_of_both_intervals() -> None:
    perfect = summary_of()
    assert perfect.bootstrap == (1.0, 1.0)
    assert perfect.ratio_bound == perfect.pairs.interval[0]
    uneven = replace(perfect, bootstrap=(0.7, 1.0))
    assert uneven.ratio_bound == 0.7


def test_a_run_like_the_one_without_training_passes_every_bar() -> None:
    assert failed(summary_of()) == []
    assert failed(summary_of(OBJECTIVE)) == []


def test_few_perfect_requests_do_not_prove_the_bound() -> None:
    few = [replace(one, records=one.records[:10]) for one in ON_BLOCKS]
    few_off = [replace(one, records=one.records[:10]) for one in OFF_BLOCKS]
    summary = summarize(few, few_off, OBJECTIVES, seed=0)
    assert failed(summary) == ["its lower 95 % bound"]


def test_latency_may_lengthen_the_p99_of_tpot_by_one_quantum() -> None:
    summary = summary_of()
    within = replace(summary, tpot=replace(summary.tpot, p99_s=0.089))
    beyond = replace(summary, tpot=replace(summary.tpot, p99_s=0.091))
    assert failed(within) == []
    assert failed(beyond) == ["p99 TPOT in s, off's + one quantum"]


def test_objective_must_keep_its_objective_and_the_longest_gap() -> None:
    summary = summary_of(OBJECTIVE)
    slow = replace(
        summary,
        tpot=replace(summary.tpot, p99_s=0.101),
        gap=replace(summary.gap, max_s=0.21),
    )
    assert failed(slow) == ["p99 TPOT in s", "longest gap in s"]


def test_what_training_off_misses_itself_is_allowed() -> None:
    summary = summary_of(OBJECTIVE)
    slow = replace(summary, gap=replace(summary.gap, max_s=0.3))
    slow_off = replace(off(), gap=replace(off().gap, max_s=0.31))
    assert failed(slow, beside=slow_off) == []


def test_steps_over_their_bound_fail_its_bar() -> None:
    assert failed(replace(summary_of(), steps=Coverage(1_000, 930))) == ["steps under their bound"]


def test_too_little_training_fails_its_bar() -> None:
    assert failed(replace(summary_of(), left_share=0.79)) == ["share of what serving left"]


def test_work_of_a_block_is_the_difference_of_two_looks() -> None:
    before = Work(serve_s=1.0, steps=Coverage(10, 9), quanta={"forward": Coverage(4, 4)})
    after = Work(
        serve_s=3.0,
        train_s=2.0,
        steps=Coverage(30, 28),
        quanta={"forward": Coverage(9, 8), "loss": Coverage(2, 1)},
    )
    done = after.minus(before)
    assert done.busy_s == pytest.approx(4.0)
    assert done.steps == Coverage(20, 19)
    assert done.quanta == {"forward": Coverage(5, 4), "loss": Coverage(2, 1)}


def test_calibration_is_summed_by_arm_and_kind() -> None:
    on = replace(ON_BLOCKS[0].work, quanta={"loss": Coverage(10, 9)})
    rows = calibration_rows([replace(ON_BLOCKS[0], work=on), ON_BLOCKS[1], OFF_BLOCKS[0]])
    assert rows == [
        {"what": "step", LATENCY: "95.0% of 200", OFF: "95.0% of 100"},
        {"what": "loss", LATENCY: "90.0% of 10", OFF: "–"},
    ]
