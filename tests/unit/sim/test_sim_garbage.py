"""Without the collector of cycles a run must not leave any."""

import gc

import pytest

from collm.cluster.planning_config import PlanningConfig
from collm.sim.config import RoundSettings, SimConfig
from collm.sim.faults import Fault
from collm.sim.garbage import no_collector
from factories.simulations import poisson, simulate


@pytest.mark.parametrize("policy", ["collm", "serve-only"])
def test_run_lets_go_of_nothing_that_refers_to_itself(policy) -> None:
    config = SimConfig(
        num_replicas=2,
        rounds=RoundSettings(tokens_per_round=2_000, deadline_s=5.0),
        planning=PlanningConfig(policy="adaptive", period_s=5.0),
        faults=(Fault(replica=0, at_s=20.0, kind="dies"),),
    )
    simulate(poisson(10, 2.0), policy, config)  # what is made once and kept
    gc.collect()
    running = simulate(poisson(80, 2.0), policy, config)
    num_found = gc.collect()
    assert len(running[2]) == 80
    assert num_found < 80, "requests leave cycles behind"


def test_collector_is_left_as_it_was() -> None:
    assert gc.isenabled()
    with no_collector():
        assert not gc.isenabled()
        with no_collector():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
