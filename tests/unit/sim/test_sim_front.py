from dataclasses import replace

import pytest

from collm.cluster.routes import OUTPUT_TOKENS_GUESS, Turned, TurnedReason
from collm.sim.config import SimConfig
from collm.sim.front import GlanceTable, RouterDispatcher
from collm.sim.requests import SimRequest
from collm.sim.versions import ADAPTER, Version
from collm.types import VersionId
from factories.simulations import poisson, simulate


class Listening:
    """A router that turns everything away, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked = []

    def choose(self, request, table, sent, now_s):
        self.asked.append(request)
        return Turned(1.0, TurnedReason.NO_REPLICA)


@pytest.mark.parametrize(("says_lengths", "guess"), [(True, 300), (False, OUTPUT_TOKENS_GUESS)])
def test_front_knows_how_long_an_answer_gets_only_if_it_is_told(says_lengths, guess) -> None:
    dispatcher = RouterDispatcher(
        SimConfig(says_lengths=says_lengths), bytes_per_token=4.0, replicas={}
    )
    dispatcher.router = Listening()
    request = SimRequest(0, 0.0, 50, 300, domain=0, is_scored=False)
    assert dispatcher.choose(request, 0.0) is None
    (asked,) = dispatcher.router.asked
    assert (asked.num_output_tokens_guess, asked.num_prompt_bytes) == (guess, 200)


def test_a_snapshot_that_is_read_late_is_still_of_the_moment_of_the_glance() -> None:
    simulation, _, _ = simulate(poisson(5, 1.0), "serve-only")
    replica, table = simulation.replicas["replica-0"], GlanceTable(simulation.replicas)
    table.look_at(replica, 1_000.0)
    replica.loop.submit(SimRequest(99, 1_001.0, 50, 900, domain=0, is_scored=False), None, 1_001.0)
    replica.loop.advance(1_002.0)
    table.look_at(replica, 1_002.0)
    seen = replica.snapshot(1_002.0)
    replica.loop.advance(1_003.0)
    assert table["replica-0"] == seen
    assert replica.snapshot(1_003.0) != replace(seen, taken_at_s=1_003.0)


def test_a_new_version_is_in_the_pools_as_soon_as_it_is_seen() -> None:
    config = SimConfig(num_replicas=2)
    replicas = simulate(poisson(5, 1.0), "serve-only", config)[0].replicas
    table = GlanceTable(replicas)
    for replica in replicas.values():
        table.look_at(replica, 1_000.0)
    assert table.pool(ADAPTER).best(1, lambda: 0.0) == []  # all serve the same
    replicas["replica-1"].learner.serve(Version(VersionId(f"{ADAPTER}@1"), (1.0,)))
    table.look_at(replicas["replica-1"], 1_001.0)
    assert table.pool(ADAPTER).best(1, lambda: 0.0) != []
    table.drop("replica-1")
    assert list(table) == ["replica-0"]
    assert table.pool(ADAPTER).best(1, lambda: 0.0) == []


def test_a_replica_has_answered_what_is_due_before_its_page_is_read() -> None:
    simulation, _, _ = simulate(poisson(5, 1.0), "serve-only")
    replica = simulation.replicas["replica-0"]
    dispatcher = RouterDispatcher(SimConfig(), 4.0, simulation.replicas)
    dispatcher.observe(replica, 1_000.0)
    request = SimRequest(99, 1_000.0, 50, 3, domain=0, is_scored=False)
    replica_id, ticket = dispatcher.choose(request, 1_000.0)
    replica.loop.submit(request, ticket, 1_000.0)
    assert dispatcher.sent.load(replica_id, 1_000.0, 1_000.0).num_open == 1
    assert dispatcher.sent.load(replica_id, 1_000.0, 1_010.0).num_open == 0


def test_nothing_is_new_of_a_replica_before_it_is_said_to_be_possible() -> None:
    config = SimConfig(num_replicas=1, costs="given")
    replica = simulate(poisson(5, 1.0), "collm", config)[0].replicas["replica-0"]
    start_s = replica.loop.came_to_s
    until_s, known, num_looks, num_news = start_s, None, 0, 0
    for poll in range(3_000):
        now_s = start_s + 0.2 * poll
        replica.loop.advance(now_s)
        snapshot = replica.snapshot(now_s)
        said = snapshot.active, snapshot.quality, snapshot.learning
        if now_s >= until_s:
            until_s = replica.same_until_s(now_s)
            num_looks += 1
            num_news += said != known
        else:
            assert said == known
        known = said
    assert num_news > 5
    assert num_looks < 600
