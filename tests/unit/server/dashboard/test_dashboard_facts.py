import asyncio
import json

from collm.server.dashboard.facts import NUM_VERSIONS, Facts
from collm.server.dashboard.own_api import OwnApi
from collm.server.dashboard.watchers import Watchers
from factories.dashboard import (
    ALLOCATION,
    DECISION,
    EXPLANATION,
    JOB,
    ShownReplica,
    listing,
    version_row,
)
from factories.front_server import running_front


class Answers:
    """An API whose routes answer as they are told to; others are not there."""

    def __init__(self, **routes):
        self.routes = {"/" + path.replace("__", "/"): body for path, body in routes.items()}
        self.asked = []

    async def get(self, target):
        self.asked.append(target)
        return self.routes.get(target, self.routes.get(target.partition("?")[0]))


def read(api, **settings):
    facts = Facts(api, Watchers(), **{"needs_key": False, **settings})
    asyncio.run(facts.look())
    return json.loads(facts.latest.partition(b"data: ")[2])


def test_nothing_there_yet_is_said_as_such():
    facts = read(Answers())
    assert facts["adapters"] == []
    assert facts["allocation"] is None
    assert facts["replicas"] is None
    assert facts["jobs"] is None


def test_what_cannot_be_read_is_told_from_what_is_not_there():
    readable = Answers(adapters=listing(version_row(3)), adapters__clinc__history=listing())
    assert read(readable)["knows_adapters"]
    assert read(Answers(adapters=listing()))["knows_adapters"]
    assert not read(Answers())["knows_adapters"]
    assert not read(Answers(adapters=listing(version_row(3))))["knows_adapters"]
    cluster = {"replicas": [], "rounds": {"together": {"active": None, "rounds": []}}}
    assert read(Answers(adapters=listing(), cluster=cluster))["knows_adapters"]


def test_a_version_on_several_replicas_is_one_row_that_names_them():
    rows = [version_row(3, replica="r0"), version_row(3, replica="r1"), version_row(2)]
    (adapter,) = read(Answers(adapters=listing(*rows)))["adapters"]
    newest, older = adapter["versions"]
    assert (newest["version"], newest["active_on"]) == ("clinc@3", ["r0", "r1"])
    assert (older["version"], older["active_on"]) == ("clinc@2", [])


def test_old_versions_are_left_out_but_for_the_active_one():
    rows = [version_row(number) for number in range(3, 100)]
    (adapter,) = read(Answers(adapters=listing(*rows)))["adapters"]
    names = [one["version"] for one in adapter["versions"]]
    assert len(names) == NUM_VERSIONS + 1
    assert names[0] == "clinc@99"
    assert names[-1] == "clinc@3"


def test_adapter_known_by_its_rounds_alone_is_shown():
    cluster = {"replicas": [], "rounds": {"together": {"active": None, "rounds": []}}}
    (adapter,) = read(Answers(cluster=cluster))["adapters"]
    assert adapter == {"name": "together", "versions": [], "decisions": []}


def test_allocation_is_shown_and_explained_once():
    api = Answers(cluster__allocation=ALLOCATION)
    api.routes["/cluster/allocation?replica=r0"] = EXPLANATION
    facts = Facts(api, Watchers(), needs_key=False)

    async def look_twice():
        await facts.look()
        await facts.look()

    asyncio.run(look_twice())
    seen = json.loads(facts.latest.partition(b"data: ")[2])
    assert seen["allocation"] == ALLOCATION
    assert seen["explanations"] == {"r0": EXPLANATION["text"]}
    assert api.asked.count("/cluster/allocation?replica=r0") == 1
    assert api.asked.count("/cluster/allocation") == 2


def test_ratings_are_averaged_by_version_but_for_those_deleted_or_not_given():
    def row(version, rating, **changes):
        return {"version": version, "rating": rating, "is_deleted": False, **changes}

    rows = [
        row("clinc@3", 1.0),
        row("clinc@3", 0.5),
        row("clinc@3", 0.0, is_deleted=True),
        row("clinc@2", None),
    ]
    ratings = read(Answers(v1__feedback=listing(*rows)))["ratings"]
    assert ratings == {"clinc@3": {"mean": 0.75, "num": 2}}


def test_numbers_that_are_none_do_not_break_the_page():
    row = {**DECISION, "numbers": {"loss": float("nan"), "bounds": [float("inf")]}}
    api = Answers(adapters=listing(version_row(3)), adapters__clinc__history=listing(row))
    (adapter,) = read(api)["adapters"]
    assert adapter["decisions"][0]["numbers"] == {"loss": None, "bounds": [None]}


def test_names_from_users_are_quoted_in_paths():
    api = Answers(adapters=listing(version_row(1, adapter="a/b ?")))
    read(api)
    assert any(target.startswith("/adapters/a%2Fb%20%3F/history?") for target in api.asked)


def test_unchanged_facts_are_not_sent_again():
    async def scene():
        api, watchers = Answers(), Watchers()
        facts = Facts(api, watchers, needs_key=True)
        with watchers.joined() as watcher:
            await facts.look()
            await facts.look()
            api.routes["/cluster/allocation"] = ALLOCATION
            api.routes["/cluster/allocation?replica=r0"] = EXPLANATION
            await facts.look()
            return [await watcher.next(0.01) for _ in range(3)]

    first, second, third = asyncio.run(scene())
    assert b'"allocation":null' in first
    assert b'"number":7' in second
    assert third is None


def test_front_shows_what_its_own_routes_answer():
    replica = ShownReplica()

    async def scene():
        async with running_front({"r0": replica.script}, has_dashboard=True) as server:
            facts = server.app.state.dashboard.facts
            await facts.look()
            targets = [seen.target for seen in server.upstreams["r0"].seen]
            return json.loads(facts.latest.partition(b"data: ")[2]), targets

    facts, targets = asyncio.run(scene())
    assert "/adapters/clinc/history?limit=40" in targets
    assert facts["model"] == "tiny"
    assert [one["id"] for one in facts["replicas"]] == ["r0"]
    (adapter,) = facts["adapters"]
    assert adapter["decisions"] == [{**DECISION, "replica": "r0"}]
    assert facts["jobs"] == [{**JOB, "replica": "r0"}]


def test_route_that_fails_or_is_not_there_is_none():
    async def failing(scope, receive, send):
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def no_json(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    assert asyncio.run(OwnApi(failing).get("/x")) is None
    assert asyncio.run(OwnApi(no_json).get("/x")) is None
