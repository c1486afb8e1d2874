"""The ``/control`` routes, asked by the coordinator's own client."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from collm.cluster.client import AdapterFiles, ReplicaControl
from collm.cluster.snapshot_json import from_json
from collm.errors import (
    AdapterError,
    RoundError,
    StateError,
    UnknownAdapterError,
    UnknownObjectError,
)
from collm.federated.allotment import AdapterAllotment, Allotment
from collm.federated.rounds import (
    GatePlan,
    GateReport,
    Progress,
    RoundPlan,
    SliceSums,
    UpdateReport,
)
from collm.server.app import make_app
from collm.server.config import ServerConfig
from collm.server.front.ids import replica_of
from collm.server.service import Membership
from factories.fake_backends import fake_backends
from factories.fake_replica import BASE_MODEL
from factories.fake_rounds import FakeRoundDesk

SECRET = "secret"
PLAN = RoundPlan(
    adapter="a", round=3, members=("r0",), base_version=None, max_tokens=10, deadline_s=5.0
)
GATE = GatePlan(adapter="a", round=3, candidate="a@1", active=None, max_samples=8)
FILES = AdapterFiles(config=b"{}", weights=b"weights")
REPORT = UpdateReport(
    adapter="a",
    round=3,
    member="r0",
    base_version=None,
    num_examples=1,
    num_tokens=2,
    loss_before=None,
    loss_after=1.5,
    is_complete=True,
    digest="a" * 64,
)


@pytest.fixture
def desk():
    return FakeRoundDesk()


def app_of(desk, membership=None):
    return make_app(fake_backends(rounds=desk), ServerConfig(), membership)


def http_of(desk, membership=None):
    transport = httpx.ASGITransport(app_of(desk, membership))
    return httpx.AsyncClient(transport=transport, base_url="http://replica")


@pytest.fixture
def ask(desk):
    """Return what the coordinator's client gets from a call."""

    def ask(call, secret=SECRET):
        async def run():
            async with http_of(desk, Membership("r0", SECRET)) as http:
                return await call(ReplicaControl(http, "http://replica", secret))

        return asyncio.run(run())

    return ask


def request(desk, method, path, *, membership=None, **content):
    async def run():
        async with http_of(desk, membership) as http:
            return await http.request(method, path, **content)

    return asyncio.run(run())


CALLS = {
    "POST /control/rounds": {},
    "GET /control/rounds/a/1": {},
    "POST /control/rounds/a/1/finish": {},
    "GET /control/rounds/a/1/update": {},
    "PUT /control/versions/a@1": {},
    "POST /control/promote": {},
    "POST /control/return_to_base": {},
    "POST /control/gate": {},
    "GET /control/gate/a/1": {},
}


@pytest.mark.parametrize("call", CALLS)
def test_without_a_front_all_but_the_state_is_forbidden(desk, call):
    answer = request(desk, *call.split())
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "forbidden"


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("given", [None, "Bearer", "Bearer sécret", "Basic secret"])
def test_without_the_secret_nothing_is_done(desk, call, given):
    headers = {} if given is None else {"Authorization": given.encode()}
    membership = Membership("r0", SECRET)
    answer = request(desk, *call.split(), membership=membership, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("membership", [None, Membership("r0", SECRET)])
def test_anybody_may_read_the_state(desk, membership):
    answer = request(desk, "GET", "/control/state", membership=membership)
    assert answer.status_code == 200
    found = from_json(answer.json(), url=desk.snapshot.url, taken_at_s=0.0)
    assert found == replace(desk.snapshot, num_template_tokens=len("<user>\n<assistant>"))


def test_state_has_the_bytes_per_token_of_the_prompts_seen(desk):
    async def run():
        async with http_of(desk) as http:
            message = {"role": "user", "content": "x" * 4000}
            body = {"model": BASE_MODEL, "messages": [message], "max_tokens": 1}
            await http.post("/v1/chat/completions", json=body)
            return (await http.get("/control/state")).json()["bytes_per_token"]

    assert asyncio.run(run()) == pytest.approx(4800 / (200 + 4000), rel=0.05)


def test_a_round_is_started_watched_finished_and_fetched(desk, ask):
    ask(lambda control: control.start_round(PLAN))
    assert desk.plans == [PLAN]
    assert ask(lambda control: control.round_report("a", 3)) == Progress()
    ask(lambda control: control.finish_round("a", 3))
    assert desk.finished == [("a", 3)]
    with pytest.raises(StateError):
        ask(lambda control: control.update("a", 3))
    desk.rounds["a", 3] = Progress(report=REPORT)
    desk.updates["a", 3] = b"\x00bytes"
    assert ask(lambda control: control.round_report("a", 3)) == Progress(report=REPORT)
    assert ask(lambda control: control.update("a", 3)) == b"\x00bytes"


def test_a_failed_round_says_why(desk, ask):
    desk.rounds["a", 3] = Progress(error="no samples")
    assert ask(lambda control: control.round_report("a", 3)) == Progress(error="no samples")


def test_what_is_not_known_is_told_so(ask):
    for call in (
        lambda control: control.round_report("a", 1),
        lambda control: control.finish_round("a", 1),
        lambda control: control.update("a", 1),
        lambda control: control.gate_report("a", 1),
        lambda control: control.promote("a@1", "better", {}),
    ):
        with pytest.raises(UnknownObjectError):
            ask(call)


@pytest.mark.parametrize(
    ("refusal", "means"),
    [
        (RoundError("takes no part"), RoundError),
        (UnknownAdapterError("no such base"), UnknownObjectError),
        (StateError("busy"), StateError),
    ],
)
def test_refusals_mean_to_the_coordinator_what_they_say(desk, ask, refusal, means):
    desk.refusal = refusal
    with pytest.raises(means):
        ask(lambda control: control.start_round(PLAN))


def test_a_plan_with_a_wrong_field_is_refused_and_names_it(desk):
    answer = request(
        desk,
        "POST",
        "/control/rounds",
        membership=Membership("r0", SECRET),
        headers={"Authorization": f"Bearer {SECRET}"},
        json=PLAN.to_json() | {"max_tokens": 0},
    )
    assert answer.status_code == 422
    assert "max_tokens" in answer.json()["error"]["message"]


def test_a_version_is_published_once_and_promoted(desk, ask):
    metadata = {"round": "3", "members": "r0, r1"}
    for _ in range(2):
        ask(lambda control: control.publish("a@1", FILES, metadata))
    assert desk.versions == {"a@1": (b"{}", b"weights", metadata)}
    ask(lambda control: control.promote("a@1", "better", {"increase": -0.5}))
    ask(lambda control: control.promote("a@1", "not so good", {}, "regression"))
    assert desk.promotions == [
        ("a@1", "better", {"increase": -0.5}, None),
        ("a@1", "not so good", {}, "regression"),
    ]


def test_an_adapter_is_returned_to_the_base(desk, ask):
    ask(lambda control: control.return_to_base("a", "worse", {"evidence": 120.0}, "regression"))
    ask(lambda control: control.return_to_base("a", "unwanted", {}))
    assert desk.returns == [
        ("a", "worse", {"evidence": 120.0}, "regression"),
        ("a", "unwanted", {}, "asked"),
    ]
    desk.refusal = StateError("busy")
    with pytest.raises(StateError):
        ask(lambda control: control.return_to_base("a", "worse", {}))


def test_another_content_under_a_known_name_is_no_matter_of_time(desk, ask):
    ask(lambda control: control.publish("a@1", FILES, {}))
    other = AdapterFiles(config=b"{}", weights=b"others")
    with pytest.raises(RoundError, match="other content"):
        ask(lambda control: control.publish("a@1", other, {}))


def test_a_promotion_under_way_is_a_matter_of_time(desk, ask):
    ask(lambda control: control.publish("a@1", FILES, {}))
    desk.refusal = AdapterError("another version is being promoted")
    with pytest.raises(StateError):
        ask(lambda control: control.promote("a@1", "better", {}))


def test_a_comparison_is_started_and_read(desk, ask):
    ask(lambda control: control.start_gate(GATE))
    assert desk.gates == [GATE]
    assert ask(lambda control: control.gate_report("a", 3)) == Progress()
    report = GateReport(member="r0", slices={"own": SliceSums(2, -1.0, 0.6)}, num_not_finite=1)
    desk.comparisons["a", 3] = Progress(report=report)
    assert ask(lambda control: control.gate_report("a", 3)) == Progress(report=report)


def test_metadata_must_be_texts(desk):
    answer = request(
        desk,
        "PUT",
        "/control/versions/a@1",
        membership=Membership("r0", SECRET),
        headers={"Authorization": f"Bearer {SECRET}"},
        files={
            "adapter_config.json": ("c", b"{}"),
            "adapter_model.safetensors": ("w", b"weights"),
        },
        data={"metadata": json.dumps({"round": 3})},
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "metadata"


def test_answers_of_a_cluster_name_their_replica(desk):
    body = {"model": BASE_MODEL, "messages": [{"role": "user", "content": "hi"}]}
    membership = Membership("left-one", SECRET)
    answer = request(desk, "POST", "/v1/chat/completions", membership=membership, json=body)
    assert replica_of(answer.json()["id"]) == "left-one"


def test_allocation_is_followed_and_named(ask, desk):
    part = AdapterAllotment(credit_share=0.1, time_share=1.0, tokens_per_step=512)
    allotment = Allotment(number=4, valid_s=60.0, adapters={"a": part})
    ask(lambda control: control.follow(allotment))
    assert desk.allotments == [allotment]


def test_allocation_needs_the_secret_and_sense(ask, desk):
    allotment = Allotment(number=4, valid_s=60.0, adapters={})
    with pytest.raises(RoundError, match="secret"):
        ask(lambda control: control.follow(allotment), secret="another")
    assert desk.allotments == []

    async def malformed():
        async with http_of(desk, Membership("r0", SECRET)) as http:
            return await http.post(
                "/control/allocation",
                json={"number": 0, "valid_s": 1.0, "adapters": {}},
                headers={"authorization": f"Bearer {SECRET}"},
            )

    response = asyncio.run(malformed())
    assert response.status_code == 422
    assert "number" in response.json()["error"]["message"]
