"""Adapters through the front: one list, and changes that every replica makes."""

import asyncio
from contextlib import ExitStack, asynccontextmanager

import pytest

from collm.cluster.endpoints import Endpoint
from collm.cluster.spreading import Spread
from collm.errors import RequestError, UnknownAdapterError
from collm.store.decisions import Decision, DecisionKind
from factories.fake_backends import fake_backends
from factories.fake_desks import OLD_VERSION, FakeAdapterDesk
from factories.fake_replica import VERSION
from factories.front_server import running_front
from factories.server_thread import running_server

REFUSAL = Decision(
    decided_at_s=0.5,
    kind=DecisionKind.REFUSAL,
    adapter="helper",
    version="helper@3",
    previous=None,
    reason="slice worse in round 3",
    numbers={"increase": 0.25},
)


class FakeRounds:
    """One adapter that is learned together."""

    def __init__(self, before="shared@1") -> None:
        self.active, self.before = "shared@2", before

    def status(self):
        return {"shared": {"active": self.active, "rounds": [{"round": 2}]}}

    def refusals(self, adapter, limit):
        return (REFUSAL,)

    async def promote(self, version):
        if not version.startswith("shared@"):
            raise UnknownAdapterError("it was not learned together")
        return Spread(version, ("r0",), {"r1": "too slow"})

    async def roll_back(self, adapter):
        return Spread(self.before, ("r0",), {"r1": "too slow"})


@pytest.fixture(scope="module")
def served():
    with ExitStack() as stack:
        desks = [FakeAdapterDesk(), FakeAdapterDesk()]
        servers = [
            stack.enter_context(running_server(fake_backends(adapters=desk))) for desk in desks
        ]
        yield (
            desks,
            [
                Endpoint(replica_id=f"r{number}", url=server.url, pid=1, started_at_s=0.0)
                for number, server in enumerate(servers)
            ],
        )


@pytest.fixture
def two_desks(served):
    """Return what opens a front with two replicas that have one adapter."""

    @asynccontextmanager
    async def open_front(**options):
        desks, endpoints = served
        for desk in desks:
            desk.__init__()
        async with running_front(others=endpoints, **options) as front:
            yield front, *desks

    return open_front


def test_versions_of_all_replicas_are_one_list(two_desks):
    async def main():
        async with two_desks() as (front, one, two):
            rows = (await front.http.get("/adapters")).json()["data"]
            assert [(row["version"], row["replica"]) for row in rows] == [
                (OLD_VERSION, "r0"),
                (OLD_VERSION, "r1"),
                (VERSION, "r0"),
                (VERSION, "r1"),
            ]
            only = await front.http.get("/adapters", params={"replica": "r1"})
            assert len(only.json()["data"]) == 2

    asyncio.run(main())


def test_history_is_merged_and_an_unknown_adapter_is_404(two_desks):
    async def main():
        async with two_desks() as (front, one, two):
            rows = (await front.http.get("/adapters/helper/history")).json()["data"]
            assert [row["replica"] for row in rows] == ["r0", "r1"]
            latest = await front.http.get("/adapters/helper/history", params={"limit": 1})
            assert latest.json()["data"] == rows[1:]
            wrong = await front.http.get("/adapters/helper/history", params={"limit": 0})
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "limit")
            assert (await front.http.get("/adapters/nobody/history")).status_code == 404

    asyncio.run(main())


def test_history_has_what_the_front_decided_against_for_all_replicas(two_desks):
    async def main():
        async with two_desks(rounds=FakeRounds()) as (front, one, two):
            rows = (await front.http.get("/adapters/helper/history")).json()["data"]
            assert sorted(row["replica"] or "" for row in rows) == ["", "r0", "r1"]
            (own,) = (row for row in rows if row["replica"] is None)
            assert (own["kind"], own["version"]) == ("refusal", "helper@3")
            assert own["numbers"] == {"increase": 0.25}
            assert own.keys() == rows[-1].keys()
            only = await front.http.get("/adapters/helper/history", params={"replica": "r1"})
            assert len(only.json()["data"]) == 1
            unknown = await front.http.get("/adapters/nobody/history")
            assert [row["replica"] for row in unknown.json()["data"]] == [None]

    asyncio.run(main())


def test_a_change_is_made_on_every_replica(two_desks):
    async def main():
        async with two_desks() as (front, one, two):
            reply = await front.http.post("/adapters/pin", json={"version": VERSION})
            assert reply.json() == {
                "version": VERSION,
                "is_pinned": True,
                "replicas": ["r0", "r1"],
            }
            assert one.pins == two.pins == {VERSION}
            await front.http.post(
                "/adapters/unpin", json={"version": VERSION}, params={"replica": "r0"}
            )
            assert (one.pins, two.pins) == (set(), {VERSION})

    asyncio.run(main())


def test_what_no_replica_can_do_is_refused_in_their_words(two_desks):
    async def main():
        async with two_desks() as (front, one, two):
            unknown = await front.http.post("/adapters/promote", json={"version": "helper@9"})
            assert unknown.status_code == 404
            refused = await front.http.post("/adapters/rollback", json={"adapter": "helper"})
            assert refused.status_code == 409

    asyncio.run(main())


def test_a_change_that_some_could_not_make_says_who_did_and_who_did_not(two_desks):
    async def main():
        async with two_desks() as (front, one, two):
            two.refusal = RequestError("no such folder")
            body = {"lora_name": "mine", "lora_path": "/somewhere"}
            reply = await front.http.post("/v1/load_lora_adapter", json=body)
            assert reply.status_code == 400
            message = reply.json()["error"]["message"]
            assert "r1: no such folder" in message
            assert "Done on: r0" in message

    asyncio.run(main())


def test_loading_by_name_answers_as_vllm_does(two_desks):
    async def main():
        async with two_desks() as (front, one, two):
            body = {"lora_name": "mine", "lora_path": "/somewhere"}
            reply = await front.http.post("/v1/load_lora_adapter", json=body)
            assert reply.text == "Success: LoRA adapter 'mine' added successfully."
            assert one.loaded.keys() == two.loaded.keys() == {"mine"}

    asyncio.run(main())


def test_an_import_reaches_every_replica_and_an_export_comes_from_one_that_has_it(two_desks):
    async def main():
        async with two_desks() as (front, one, two):
            files = {
                "adapter_config.json": ("adapter_config.json", b"{}"),
                "adapter_model.safetensors": ("w", b"w" * 3_000_000),
            }
            data = {"name": "helper", "promote": "true"}
            reply = await front.http.post("/adapters/import", data=data, files=files)
            assert reply.json()["replicas"] == ["r0", "r1"]
            assert one.imported == two.imported == [("helper", b"{}", b"w" * 3_000_000, True)]
            archive = await front.http.get("/adapters/export", params={"version": VERSION})
            assert archive.content.startswith(b"PK")
            assert "helper@2.zip" in archive.headers["content-disposition"]

    asyncio.run(main())


@pytest.mark.parametrize("before", ["shared@1", "base"])
def test_rolling_back_what_is_learned_together_is_the_coordinators_task(two_desks, before):
    async def main():
        async with two_desks(rounds=FakeRounds(before)) as (front, one, two):
            reply = await front.http.post("/adapters/rollback", json={"adapter": "shared"})
            assert reply.json() == {
                "adapter": "shared",
                "version": before,
                "is_active": True,
                "replicas": ["r0"],
                "missed": {"r1": "too slow"},
            }

    asyncio.run(main())


def test_promoting_what_was_learned_together_is_the_coordinators_task(two_desks):
    async def main():
        async with two_desks(rounds=FakeRounds()) as (front, one, two):
            reply = await front.http.post("/adapters/promote", json={"version": "shared@1"})
            assert reply.json() == {
                "adapter": "shared",
                "version": "shared@1",
                "is_active": True,
                "replicas": ["r0"],
                "missed": {"r1": "too slow"},
            }
            reply = await front.http.post("/adapters/promote", json={"version": OLD_VERSION})
            assert reply.json()["replicas"] == ["r0", "r1"]

    asyncio.run(main())
