from dataclasses import replace

import pytest

from collm.cluster.planning.windows import WindowBook
from collm.types import AdapterTotals, GradientSums, ReplicaSnapshot, ReplicaTotals
from factories.snapshots import make_snapshot


def at(time_s: float, credit_share: float = 0.0, **totals) -> ReplicaSnapshot:
    return make_snapshot(
        taken_at_s=time_s, credit_share=credit_share, totals=ReplicaTotals(**totals)
    )


def served(count: int) -> dict[str, AdapterTotals]:
    return {
        "clinc": AdapterTotals(
            num_arrived=count,
            num_ended=count,
            num_met=count // 2,
            num_prompt_tokens=50 * count,
            num_output_tokens=20 * count,
            gradient=GradientSums(num_steps=count, square=0.5 * count),
        )
    }


def test_a_window_is_what_was_done_between_two_looks():
    book = WindowBook()
    book.observe(at(10.0, serve_s=1.0, idle_s=9.0, adapters=served(4)))
    book.observe(at(12.0, serve_s=1.5, idle_s=10.0, adapters=served(8)))
    book.observe(at(14.0, serve_s=2.0, idle_s=11.0, adapters=served(10)))
    window = book.close()["r0"]
    assert (window.start_s, window.end_s) == (10.0, 14.0)
    assert (window.num_arrived, window.num_ended, window.num_met) == (6, 6, 3)
    assert window.busy_share == 0.25
    assert window.free_share == 0.75
    assert window.done.adapters["clinc"].gradient == GradientSums(num_steps=6, square=3.0)


def test_the_next_window_begins_where_one_ends():
    book = WindowBook()
    for time_s, count in ((0.0, 0), (1.0, 3), (2.0, 3), (3.0, 8)):
        book.observe(at(time_s, idle_s=time_s, adapters=served(count)))
        if time_s == 1.0:
            assert book.close()["r0"].num_arrived == 3
    window = book.close()["r0"]
    assert (window.start_s, window.num_arrived) == (1.0, 5)


def test_a_window_knows_who_was_there_when_it_began():
    book = WindowBook()
    done = {"clinc": AdapterTotals(num_arrived=9, num_ended=5)}
    book.observe(at(0.0, idle_s=1.0, adapters=done))
    book.observe(at(1.0, idle_s=2.0, adapters=served(12)))
    assert book.close()["r0"].num_open == 4
    book.observe(at(2.0, idle_s=3.0, adapters=served(13)))
    assert book.close()["r0"].num_open == 0


def test_a_restart_loses_nothing_that_was_seen():
    book = WindowBook()
    book.observe(at(0.0, idle_s=50.0, adapters=served(10)))
    book.observe(at(1.0, idle_s=51.0, adapters=served(14)))
    book.observe(at(5.0, idle_s=2.0, adapters=served(3)))
    assert book.close()["r0"].num_arrived == 7


def test_one_look_makes_no_window_and_neither_do_none():
    book = WindowBook()
    assert book.close() == {}
    book.observe(at(0.0))
    book.observe(at(0.0))
    assert book.close() == {}


def test_a_replica_that_is_gone_makes_no_window():
    book = WindowBook()
    book.observe(at(0.0))
    book.observe(at(1.0, idle_s=1.0))
    book.forget("r0")
    assert book.close() == {}


def test_credit_is_the_mean_over_the_window():
    book = WindowBook()
    for time_s, credit in ((0.0, 0.9), (1.0, 0.4), (4.0, 0.0)):
        book.observe(at(time_s, credit))
    assert book.close()["r0"].credit_share == pytest.approx(0.1)


def test_burstiness_is_one_for_few_arrivals_and_what_it_is_for_many():
    book = WindowBook()
    book.observe(at(0.0))
    book.observe(at(1.0, num_gaps=2, gap_sum_s=1.0, gap_square_sum_s2=100.0))
    few = book.close()["r0"]
    assert few.burstiness > 1.0
    regular = replace(
        few, done=ReplicaTotals(num_gaps=10_000, gap_sum_s=100.0, gap_square_sum_s2=5.0)
    )
    assert regular.burstiness == pytest.approx(4.0, rel=0.01)
    assert replace(few, done=ReplicaTotals()).burstiness == 1.0


def test_the_mix_leaves_out_what_the_prefix_cache_had():
    book = WindowBook()
    book.observe(at(0.0))
    book.observe(at(1.0, adapters=served(10), num_looked_up_tokens=1_000, num_cached_tokens=400))
    mix = book.close()["r0"].mix()
    assert mix is not None
    assert (mix.prefill_tokens, mix.output_tokens) == (30.0, 20.0)
    assert mix.context_tokens == 60.0


def test_nothing_ended_means_no_mix():
    book = WindowBook()
    book.observe(at(0.0))
    book.observe(at(1.0))
    assert book.close()["r0"].mix() is None
