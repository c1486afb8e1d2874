"""The loop that plans: whom it tells, what it keeps, and what a failure leaves in force."""

import asyncio
import json
import sqlite3
from contextlib import closing
from random import Random

import pytest

from collm.cluster.planner import NoPlanner, Planner
from collm.cluster.planning_config import PlanningConfig
from collm.cluster.router import Router
from collm.cluster.routing_config import RouterConfig
from collm.errors import ConfigError, DataError, UnknownObjectError
from collm.store.front_folder import FrontFolder
from factories.allocation_problems import adapter, problem, replica
from factories.fake_members import FakeCluster, FakeMember, FakeTime

CONFIG = PlanningConfig(policy="adaptive", period_s=10.0, valid_s=60.0)


class Truth:
    """Estimates that know everything about whoever is live."""

    def __init__(self):
        self.num_looks = 0
        self.error = None

    def look(self, live, now_s):
        self.num_looks += 1

    def problem(self, live, now_s):
        if self.error is not None:
            raise self.error
        return problem({name: replica() for name in live}, {"a": adapter()}, round_s=10.0)


class World:
    def __init__(self, folder):
        self.cluster = FakeCluster(FakeMember("r0"), FakeMember("r1"))
        self.time, self.truth = FakeTime(), Truth()
        self.router = Router(RouterConfig(), Random(0))
        self.folder = folder
        self.planner = Planner(
            CONFIG,
            self.truth,
            self.cluster.view(),
            self.router,
            folder.allocations,
            self.time.timing(),
        )

    def member(self, name):
        return self.cluster.members[name]

    async def run_for(self, seconds):
        """Let the loop run on a clock that moves while it sleeps."""
        end_s = self.time.clock.now_s() + seconds
        task = asyncio.create_task(self.planner.run())
        while self.time.clock.now_s() < end_s and not task.done():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def world(tmp_path):
    with FrontFolder(tmp_path / "front", max_versions=3, now_s=lambda: 7.0) as folder:
        yield World(folder)


def numbers(member):
    return [one.number for one in member.allotments]


def test_every_replica_is_told_each_allocation_once(world):
    asyncio.run(world.run_for(25.0))
    latest = world.planner.status()["number"]
    assert latest >= 2
    for name in ("r0", "r1"):
        assert numbers(world.member(name)) == list(range(1, latest + 1))
    told = world.member("r0").allotments[0]
    assert told.valid_s == 60.0
    assert set(told.adapters) == {"a"}
    assert told.adapters["a"].tokens_per_step >= 512


def test_router_follows_prices_and_shares(world):
    asyncio.run(world.run_for(12.0))
    assert set(world.router.prices) == {"r0", "r1"}
    shares = world.planner.status()["adapters"]["a"]["traffic"]
    assert sum(shares.values()) == pytest.approx(1.0)


def test_replica_that_comes_back_is_told_again(world):
    async def main():
        await world.run_for(12.0)
        world.member("r1").allotments.clear()  # it restarted
        await world.run_for(3.0)

    asyncio.run(main())
    assert numbers(world.member("r1")) == [1]


def test_replica_that_does_not_answer_keeps_nobody_else_waiting(world):
    world.member("r0").is_live = False
    asyncio.run(world.run_for(12.0))
    assert numbers(world.member("r0")) == []
    assert numbers(world.member("r1")) == [1]
    assert list(world.planner.status()["replicas"]) == ["r1"]


def test_failure_to_estimate_leaves_the_allocation_before_in_force(world):
    async def main():
        await world.run_for(12.0)
        world.truth.error = DataError("made to fail")
        await world.run_for(40.0)

    asyncio.run(main())
    assert world.planner.status()["number"] == 1
    # It is renewed before it would expire.
    assert len(world.member("r0").allotments) > 1


def test_allocation_is_journalled_with_its_inputs(world, tmp_path):
    asyncio.run(world.run_for(12.0))
    with closing(sqlite3.connect(tmp_path / "front" / "front.db")) as database:
        ((number, content),) = database.execute("SELECT number, content FROM allocations")
    kept = json.loads(content)
    assert kept["replicas"]["r0"]["is_known"]
    assert world.planner.status() == {"number": number, "made_at_s": 7.0, **kept}


def test_one_replicas_part_is_explained(world):
    asyncio.run(world.run_for(12.0))
    found = world.planner.status("r1")
    assert found["replica"] == "r1"
    assert found["text"]
    with pytest.raises(UnknownObjectError, match="r0, r1"):
        world.planner.status("r9")


def test_members_of_the_next_round_are_who_trains_enough(world):
    assert world.planner.members_of("a") == ()
    asyncio.run(world.run_for(12.0))
    assert world.planner.members_of("a") == ("r0", "r1")
    assert world.planner.members_of("unknown") == ()


def test_before_the_first_allocation_there_is_nothing_to_show(world):
    with pytest.raises(UnknownObjectError, match="no allocation yet"):
        world.planner.status()
    with pytest.raises(UnknownObjectError, match="'none'"):
        NoPlanner().status()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"period_s": 0.0}, "period_s"),
        ({"valid_s": 100.0}, "two periods"),
        ({"max_credit_share": 0.95}, "max_credit_share"),
        ({"min_arrivals_per_s": -1.0}, "min_arrivals_per_s"),
        ({"attainment_target": 0.0}, "attainment_target"),
        ({"horizon_rounds": float("inf")}, "horizon_rounds"),
    ],
)
def test_settings_out_of_range_are_named(changes, named):
    with pytest.raises(ConfigError, match=named):
        PlanningConfig(**changes)
