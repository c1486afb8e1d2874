import asyncio

import pytest

from collm.cluster.endpoints import read_endpoints
from collm.cluster.hosts import ProcessSpec
from collm.cluster.supervisor import ClusterProcesses, Supervisor
from collm.errors import ConfigError
from factories.fake_processes import FakeHost, FakeTime, settle


class Cluster:
    """A front and two replicas under a supervisor that runs."""

    def __init__(self, folder):
        self.host = FakeHost()
        self.path = folder / "endpoints.json"
        self.time = FakeTime()
        self.gone = set()
        """Who refuses to answer; the others take their time."""
        self.events = []
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        self.supervisor = Supervisor(
            ClusterProcesses(
                front=ProcessSpec(name="front", command=("x",)),
                front_host=self.host,
                replicas=[ProcessSpec(name=name, command=("x",)) for name in ("a", "b")],
                replica_host=self.host,
                ask_front=self.ask,
                ask_replica=self.ask,
            ),
            self.path,
            drain_s=1000.0,
            time=self.time.keeper_time,
            on_ready=lambda: self.events.append("ready"),
        )

    async def ask(self, endpoint):
        if endpoint.replica_id in self.gone:
            raise ConnectionRefusedError
        await asyncio.Event().wait()

    async def start(self):
        self.task = asyncio.create_task(
            self.supervisor.run(self.stop, self.hurry, lambda: self.events.append("stop"))
        )
        await settle()

    async def get_ready(self):
        for number, name in enumerate(("front", "a", "b")):
            self.host.latest(name).say_ready(f"http://{number}")
            await settle()

    async def close(self):
        """End everything, if the scenario has not."""
        self.hurry.set()
        self.stop.set()
        for name in ("front", "a", "b"):
            if not self.task.done():
                self.host.latest(name).kill()
                await settle()
        await asyncio.gather(self.task, return_exceptions=True)

    def listed(self):
        return {item.replica_id: item.url for item in read_endpoints(self.path)}


def supervising(folder, scenario):
    async def main():
        cluster = Cluster(folder)
        await cluster.start()
        try:
            await scenario(cluster)
        finally:
            await cluster.close()

    asyncio.run(main())


def test_replicas_are_listed_while_they_listen(tmp_path):
    async def scenario(cluster):
        assert cluster.listed() == {}
        await cluster.get_ready()
        assert cluster.listed() == {"a": "http://1", "b": "http://2"}
        cluster.host.latest("a").end(-9)
        await settle()
        assert cluster.listed() == {"b": "http://2"}
        cluster.host.latest("a").say_ready("http://3")
        await settle()
        assert cluster.listed() == {"a": "http://3", "b": "http://2"}
        assert 1 in cluster.time.sleeps

    supervising(tmp_path, scenario)


def test_list_of_an_earlier_parent_is_emptied(tmp_path):
    path = tmp_path / "endpoints.json"
    path.write_text('{"replicas": [{"id": "z", "url": "http://z", "pid": 1, "started_at_s": 1}]}')

    async def scenario(cluster):
        assert cluster.listed() == {}

    supervising(tmp_path, scenario)


def test_dead_front_is_started_again_and_replicas_go_on(tmp_path):
    async def scenario(cluster):
        await cluster.get_ready()
        cluster.host.latest("front").end(-9)
        await settle()
        assert len(cluster.host.started["front"]) == 2
        assert cluster.listed() == {"a": "http://1", "b": "http://2"}
        assert len(cluster.host.started["a"]) == 1

    supervising(tmp_path, scenario)


@pytest.mark.parametrize("name", ["front", "b"])
def test_process_that_is_silent_on_its_start_is_killed_and_started_again(tmp_path, name):
    async def scenario(cluster):
        first = cluster.host.latest(name)
        first.is_silent = True
        while len(cluster.host.started[name]) == 1:
            await settle()
        assert first.was_killed
        assert cluster.time.clock.now_s() >= 300.0
        await cluster.get_ready()  # the others have taken as long, and said so
        assert cluster.events == ["ready"]
        assert len(cluster.host.started["a"]) == 1

    supervising(tmp_path, scenario)


@pytest.mark.parametrize("name", ["front", "b"])
def test_process_that_says_nothing_is_killed_and_started_again(tmp_path, name):
    async def scenario(cluster):
        cluster.gone.add(name)
        await cluster.get_ready()
        while not cluster.host.started[name][0].was_killed:
            await settle()
        found = {one: len(started) for one, started in cluster.host.started.items()}
        assert found == {"front": 1, "a": 1, "b": 1} | {name: 2}
        assert cluster.listed() == {"a": "http://1"} | ({} if name == "b" else {"b": "http://2"})

    supervising(tmp_path, scenario)


def test_cluster_is_ready_once_when_all_of_it_is(tmp_path):
    async def scenario(cluster):
        cluster.host.latest("front").say_ready()
        cluster.host.latest("b").say_ready()
        await settle()
        assert cluster.events == []
        cluster.host.latest("a").say_ready()
        await settle()
        assert cluster.events == ["ready"]
        cluster.host.latest("a").end(-9)
        await settle()
        cluster.host.latest("a").say_ready()
        await settle()
        assert cluster.events == ["ready"]

    supervising(tmp_path, scenario)


def test_front_drains_before_replicas_are_asked_to_end(tmp_path):
    async def scenario(cluster):
        await cluster.get_ready()
        front, a, b = (cluster.host.latest(name) for name in ("front", "a", "b"))
        cluster.stop.set()
        await settle()
        assert cluster.events == ["ready", "stop"]
        assert (front.num_asked, a.num_asked, b.num_asked) == (1, 0, 0)
        front.end(0)
        await settle()
        assert (front.num_asked, a.num_asked, b.num_asked) == (1, 1, 1)
        assert not cluster.task.done()
        a.end(0)
        b.end(0)
        await cluster.task
        assert cluster.listed() == {}
        assert all(len(started) == 1 for started in cluster.host.started.values())

    supervising(tmp_path, scenario)


def test_replica_that_dies_while_the_front_drains_does_not_stop_the_drain(tmp_path):
    async def scenario(cluster):
        await cluster.get_ready()
        cluster.stop.set()
        await settle()
        cluster.host.latest("a").end(-9)
        await settle()
        assert cluster.listed() == {"b": "http://2"}
        assert not cluster.task.done()
        for name in ("front", "a", "b"):
            cluster.host.latest(name).end(0)
            await settle()
        await cluster.task

    supervising(tmp_path, scenario)


def test_hurry_asks_everything_a_second_time(tmp_path):
    async def scenario(cluster):
        await cluster.get_ready()
        front, a, b = (cluster.host.latest(name) for name in ("front", "a", "b"))
        cluster.stop.set()
        await settle()
        cluster.hurry.set()
        await settle()
        assert (front.num_asked, a.num_asked) == (2, 0)
        front.end(0)
        await settle()
        assert (a.num_asked, b.num_asked) == (2, 2)
        a.end(0)
        b.end(0)
        await cluster.task

    supervising(tmp_path, scenario)


def test_what_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("collm.cluster.supervisor._LAST_WORDS_S", 0.01)

    async def scenario(cluster):
        await cluster.get_ready()
        cluster.hurry.set()
        cluster.stop.set()
        await cluster.task
        for name in ("front", "a", "b"):
            assert cluster.host.latest(name).num_asked == 2
            assert cluster.host.latest(name).was_killed

    supervising(tmp_path, scenario)


def test_replica_that_cannot_run_ends_everything(tmp_path):
    async def scenario(cluster):
        front, a, b = (cluster.host.latest(name) for name in ("front", "a", "b"))
        front.say_ready()
        a.end(2)
        await settle()
        assert front.num_asked == 1
        front.end(0)
        await settle()
        assert b.num_asked == 1
        b.end(-15)
        with pytest.raises(ConfigError, match="a cannot run with these settings"):
            await cluster.task
        assert cluster.events == ["stop"]

    supervising(tmp_path, scenario)
