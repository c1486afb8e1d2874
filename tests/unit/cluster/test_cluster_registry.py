import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from collm.clock import ManualClock
from collm.cluster.endpoints import Endpoint, write_endpoints
from collm.cluster.endpoints_watch import EndpointsWatch
from collm.cluster.registry import Registry, RegistryEvent
from collm.cluster.router import Router
from collm.cluster.routes import Choice, RouteRequest
from collm.cluster.routing_config import RegistryConfig, RouterConfig
from collm.cluster.sent import Sent
from collm.cluster.snapshot_json import to_json
from collm.errors import UnreachableError
from factories.snapshots import ADAPTER, make_snapshot

CONFIG = RegistryConfig(timeout_s=0.01)


def endpoint(replica_id: str, started_at_s: float = 1.0) -> Endpoint:
    return Endpoint(
        replica_id=replica_id, url=f"http://{replica_id}", pid=1, started_at_s=started_at_s
    )


class FakeSource:
    """Replicas that answer, fail or hang, as told."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.hung: set[str] = set()
        self.answers: dict[str, object] = {}
        self.on_fetch: Callable[[str], None] = lambda replica_id: None

    async def fetch(self, endpoint: Endpoint) -> object:
        replica_id = endpoint.replica_id
        self.on_fetch(replica_id)
        if replica_id in self.hung:
            await asyncio.Event().wait()
        if replica_id in self.dead:
            raise UnreachableError("refused")
        return self.answers.get(replica_id, to_json(make_snapshot(replica_id)))


class Scene:
    def __init__(self, *replica_ids: str) -> None:
        self.source, self.sent, self.clock = FakeSource(), Sent(), ManualClock(100.0)
        self.registry = Registry(self.source, self.sent, self.clock, CONFIG)
        self.events: list[tuple[str, str]] = []
        self.registry.subscribe(self.note)
        self.registry.adopt(map(endpoint, replica_ids))

    def note(self, event: RegistryEvent) -> None:
        self.events.append((event.replica_id, event.kind))

    def poll(self, num: int = 1) -> None:
        """Ask everybody as often as the registry would, a poll's time apart."""
        for _ in range(num):
            self.clock.advance(CONFIG.poll_every_s)
            asyncio.run(self.registry.refresh())

    def chosen(self) -> set[str]:
        """Return whoever is sent one of many requests."""
        request = RouteRequest(model=ADAPTER, num_prompt_bytes=100)
        chosen = set()
        for seed in range(20):
            router = Router(RouterConfig(), Random(seed))
            choice = router.choose(request, self.registry.table, self.sent, self.clock.now_s())
            if isinstance(choice, Choice):
                chosen.add(choice.replica_id)
        return chosen


def test_a_replica_is_live_once_it_has_answered() -> None:
    scene = Scene("a")
    assert not scene.registry.members()[0].is_live
    scene.poll()
    member = scene.registry.member("a")
    assert member is not None
    assert member.is_live
    assert member.silent_s == 0.0
    assert scene.events == [("a", "back")]


def test_a_snapshot_carries_its_url_and_when_it_was_asked_for() -> None:
    scene = Scene("a")
    scene.poll()
    asked_at_s = scene.clock.now_s()
    scene.source.on_fetch = lambda replica_id: scene.clock.advance(0.05)
    scene.poll()
    assert scene.registry.table["a"].url == "http://a"
    assert scene.registry.table["a"].taken_at_s == pytest.approx(asked_at_s + CONFIG.poll_every_s)


@pytest.mark.parametrize("how", ["dead", "hung"])
def test_a_replica_that_dies_stops_receiving_within_a_second(how: str) -> None:
    scene = Scene("a", "b")
    scene.poll()
    died_at_s = scene.clock.now_s()
    getattr(scene.source, how).add("a")
    while "a" in scene.registry.table:
        scene.poll()
        assert scene.clock.now_s() - died_at_s <= 1.0
    assert scene.chosen() == {"b"}
    assert scene.events[-1] == ("a", "gone")


def test_one_missed_answer_is_no_death() -> None:
    scene = Scene("a")
    scene.poll()
    scene.source.hung.add("a")
    scene.poll(2)
    scene.source.hung.clear()
    scene.poll()
    assert scene.events == [("a", "back")]


def test_a_replica_whose_step_loop_stands_still_is_out_until_it_moves() -> None:
    scene = Scene("a", "b")
    scene.poll()
    scene.source.answers["a"] = to_json(make_snapshot("a", age_s=9.0))
    scene.poll(6)
    assert scene.chosen() == {"a", "b"}
    scene.source.answers["a"] = to_json(make_snapshot("a", age_s=11.0))
    scene.poll(5)
    assert scene.chosen() == {"b"}
    assert [(one.endpoint.replica_id, one.is_live) for one in scene.registry.members()] == [
        ("a", False), ("b", True),
    ]  # fmt: skip
    del scene.source.answers["a"]
    scene.poll()
    assert scene.chosen() == {"a", "b"}


def test_time_in_which_the_front_stood_still_is_nobodys_silence() -> None:
    scene = Scene("a")
    scene.poll()
    scene.clock.advance(60.0)
    scene.registry.expire()
    assert scene.chosen() == {"a"}
    scene.source.dead.add("a")
    scene.poll(4)
    assert scene.chosen() == set()
    (member,) = scene.registry.members()
    assert member.silent_s == pytest.approx(5 * CONFIG.poll_every_s)


def test_a_failed_connection_takes_a_replica_out_at_once_until_it_answers() -> None:
    scene = Scene("a", "b")
    scene.poll()
    scene.registry.suspect("a")
    scene.registry.suspect("unknown")
    assert scene.chosen() == {"b"}
    scene.poll()
    assert scene.chosen() == {"a", "b"}
    assert scene.events[-2:] == [("a", "gone"), ("a", "back")]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collm.cluster.registry._PATIENCE_S", 0.01)


def test_a_replica_that_fell_silent_is_live_again_once_it_answers_a_patient_question() -> None:
    scene = Scene("a", "b")
    scene.poll()
    scene.source.dead |= {"a", "b"}
    scene.poll(6)
    assert len(scene.registry.table) == 0
    scene.source.dead.clear()
    scene.source.hung.add("b")
    assert asyncio.run(scene.registry.ask_silent())
    assert scene.chosen() == {"a"}


@pytest.mark.usefixtures("impatient")
def test_silent_replicas_that_hang_are_waited_for_no_longer_than_patience_lasts() -> None:
    scene = Scene("a")
    scene.poll()
    scene.source.hung.add("a")
    scene.poll(6)
    assert not asyncio.run(scene.registry.ask_silent())
    assert len(scene.registry.table) == 0


def test_who_calls_a_new_front_waits_for_replicas_that_it_has_not_heard_yet() -> None:
    scene = Scene("a", "b")
    scene.source.hung.add("b")
    assert asyncio.run(scene.registry.ask_silent())
    assert scene.chosen() == {"a"}


def test_who_was_never_heard_or_cannot_be_connected_to_is_not_asked_again() -> None:
    scene = Scene("a", "never")
    scene.source.dead.add("never")
    scene.poll()
    scene.registry.suspect("a")
    asked: list[str] = []
    scene.source.on_fetch = asked.append
    assert not asyncio.run(scene.registry.ask_silent())
    assert asked == []


def test_requests_that_find_nobody_share_one_question() -> None:
    scene = Scene("a")
    scene.poll()
    scene.source.dead.add("a")
    scene.poll(6)
    scene.source.dead.clear()
    asked: list[str] = []
    scene.source.on_fetch = asked.append

    async def ask_thrice() -> list[bool]:
        return await asyncio.gather(*(scene.registry.ask_silent() for _ in range(3)))

    assert asyncio.run(ask_thrice()) == [True] * 3
    assert asked == ["a"]


def test_an_answer_to_a_question_from_before_the_suspicion_does_not_clear_it() -> None:
    scene = Scene("a")
    scene.poll()
    scene.source.on_fetch = scene.registry.suspect
    scene.poll()
    assert "a" not in scene.registry.table


def test_a_replica_that_comes_back_is_told_of_and_starts_with_a_clean_book() -> None:
    scene = Scene("a")
    scene.poll()
    request = RouteRequest(model=ADAPTER, num_prompt_bytes=100)
    choice = Router(RouterConfig(), Random(0)).choose(
        request, scene.registry.table, scene.sent, 0.0
    )
    assert isinstance(choice, Choice)
    scene.sent.add(request, choice, scene.clock.now_s())
    scene.source.dead.add("a")
    scene.poll(6)
    scene.source.dead.clear()
    scene.poll()
    assert scene.events == [("a", "back"), ("a", "gone"), ("a", "back")]
    assert scene.sent.num_open("a") == 0


def test_a_restarted_replica_has_to_answer_anew_and_one_off_the_list_is_gone() -> None:
    scene = Scene("a", "b", "c")
    scene.poll()
    scene.registry.adopt([endpoint("a"), endpoint("b", started_at_s=2.0)])
    assert set(scene.registry.table) == {"a"}
    assert [one.endpoint.replica_id for one in scene.registry.members()] == ["a", "b"]
    scene.poll()
    assert set(scene.registry.table) == {"a", "b"}


@pytest.mark.parametrize("answer", [None, {"replica_id": "a"}, to_json(make_snapshot("b"))])
def test_a_malformed_snapshot_or_anothers_is_no_answer(answer: object) -> None:
    scene = Scene("a")
    scene.source.answers["a"] = answer
    scene.poll()
    assert len(scene.registry.table) == 0


def test_running_follows_the_file_and_keeps_asking(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    write_endpoints(path, [endpoint("a")])
    source, num_asked = FakeSource(), 0
    config = RegistryConfig(poll_every_s=0.001, timeout_s=5.0)
    registry = Registry(source, Sent(), ManualClock(), config)

    async def scene() -> None:
        asked_often = asyncio.Event()

        def count(replica_id: str) -> None:
            nonlocal num_asked
            num_asked += replica_id == "b"
            if num_asked == 3:
                asked_often.set()
            elif num_asked == 0:
                write_endpoints(path, [endpoint("a"), endpoint("b")])

        source.on_fetch = count
        task = asyncio.create_task(registry.run(EndpointsWatch(path)))
        async with asyncio.timeout(60.0):
            await asked_often.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())
    assert set(registry.table) == {"a", "b"}
