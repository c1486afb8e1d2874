from collm.cluster.planning.allocator import Allocator
from collm.cluster.planning.present import PresentEstimates, StepAttainment
from collm.cluster.planning_config import PlanningConfig
from factories.snapshots import ADAPTER, BASE_MODEL, COEFFICIENTS, make_snapshot


class Rates:
    def arrivals_per_s(self, adapter, now_s):
        return {ADAPTER: 2.0, BASE_MODEL: 0.5}.get(adapter, 0.0)


def problem_of(*snapshots):
    estimates = PresentEstimates(PlanningConfig(), Rates())
    return estimates.problem({one.replica_id: one for one in snapshots}, 0.0)


def test_chance_falls_in_load_and_credit_and_free_time_in_load():
    attainment = StepAttainment(COEFFICIENTS, 0.1)
    loads = [0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 10.0]
    chances = [attainment.probability(load, 0.0) for load in loads]
    free = [attainment.free_share(load) for load in loads]
    assert chances == sorted(chances, reverse=True)
    assert free == sorted(free, reverse=True)
    assert chances[0] > 0.99
    assert chances[-1] < 0.01
    assert free[0] == 1.0
    assert attainment.probability(2.0, 0.3) < attainment.probability(2.0, 0.0)


def test_what_is_served_where_is_taken_from_snapshots():
    case = problem_of(
        make_snapshot("r0"),
        make_snapshot("r1", names=(BASE_MODEL,), active={}, quality={}),
        make_snapshot("r2", is_draining=True),
    )
    assert set(case.replicas) == {"r0", "r1"}
    assert {name: terms.arrivals_per_s for name, terms in case.adapters.items()} == {
        BASE_MODEL: 0.5,
        ADAPTER: 2.0,
    }
    assert ("r1", ADAPTER) not in case.pairs
    assert case.pairs["r0", ADAPTER].quality == 1.0


def test_faster_replica_gets_more_of_the_traffic():
    slow = make_snapshot("slow")
    fast = make_snapshot(
        "fast",
        step_coefficients=type(COEFFICIENTS)(
            constant_s=0.01, decode_s=0.001, prefill_s=0.0005, context_s=0.0, adapter_s=0.0
        ),
    )
    shares = Allocator().solve(problem_of(slow, fast)).traffic[ADAPTER]
    assert shares["fast"] > shares["slow"]
