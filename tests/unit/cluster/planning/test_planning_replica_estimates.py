import pytest

from collm.cluster.planning.replica_estimates import ReplicaEstimates
from collm.cluster.planning.windows import Window
from collm.types import AdapterTotals, ReplicaTotals
from factories.snapshots import ADAPTER, make_snapshot


def window(count=60, met=60, num_open=0, num_arrived=None, **adapter):
    done = AdapterTotals(
        num_arrived=count if num_arrived is None else num_arrived,
        num_ended=count,
        num_met=met,
        num_prompt_tokens=50 * count,
        num_output_tokens=20 * count,
        **adapter,
    )
    return Window(
        replica_id="r0",
        start_s=0.0,
        end_s=60.0,
        credit_share=0.0,
        done=ReplicaTotals(serve_s=20.0, adapters={ADAPTER: done}),
        num_open=num_open,
    )


def test_nothing_is_said_of_a_replica_before_its_first_window():
    replica = ReplicaEstimates(0.95, 60.0)
    assert replica.attainment(make_snapshot()) is None
    replica.learn(window(count=0, met=0), make_snapshot())
    assert replica.attainment(make_snapshot()) is not None


def test_chances_are_those_of_the_requests_that_come():
    replica = ReplicaEstimates(0.95, 60.0)
    replica.learn(window(), make_snapshot())
    first = replica.attainment(make_snapshot()).mix
    for _ in range(10):
        replica.learn(window(), make_snapshot())
    settled = replica.attainment(make_snapshot()).mix
    assert settled.output_tokens == pytest.approx(20.0, rel=0.02)
    assert settled.prefill_tokens == pytest.approx(50.0, rel=0.05)
    assert abs(first.output_tokens - 20.0) < 3.0


def test_who_was_left_from_before_met_the_load_of_before():
    replica = ReplicaEstimates(0.95, 60.0)
    replica.learn(window(count=100, met=50, num_arrived=120), make_snapshot())
    late = replica.served(window(count=20, met=0, num_open=20, num_arrived=0))
    assert (late.arrivals_per_s, late.num_met) == (2.0, 0)
    assert late.served_per_s == pytest.approx(1 / 3)
    mixed = replica.served(window(count=40, met=20, num_open=20, num_arrived=30))
    assert mixed.arrivals_per_s == pytest.approx((2.0 + 0.5) / 2)
    plain = replica.served(window(count=30, met=30))
    assert plain.arrivals_per_s == plain.served_per_s == 0.5


def test_misses_make_debt_until_they_are_made_up_for():
    replica = ReplicaEstimates(0.9, 60.0)
    replica.learn(window(met=60), make_snapshot())
    assert replica.debt == 0.0
    replica.learn(window(met=30), make_snapshot())
    owed = replica.debt
    assert owed > 0.0
    replica.learn(window(count=0, met=0), make_snapshot())
    assert replica.debt == owed
    replica.learn(window(met=60), make_snapshot())
    assert 0.0 < replica.debt < owed
    for _ in range(4):
        replica.learn(window(met=60), make_snapshot())
    assert replica.debt == 0.0


def test_training_speed_is_learned_for_each_adapter():
    replica = ReplicaEstimates(0.95, 60.0)
    guess = replica.throughput(ADAPTER).tokens_per_s(768)
    for _ in range(6):
        done = window(num_trained_tokens=7_680, num_steps=10, training_s=20.0, evaluation_s=4.0)
        replica.learn(done, make_snapshot())
    found = replica.throughput(ADAPTER)
    assert found.tokens_per_s(768) == pytest.approx(384.0, rel=0.05)
    assert found.evaluation_share == pytest.approx(0.2, abs=0.03)
    assert replica.throughput("other").tokens_per_s(768) == guess
