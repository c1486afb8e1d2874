"""The line to a replica, against the shapes that its ``/control`` routes have."""

import asyncio
import json
from collections.abc import Callable
from typing import TypeVar

import httpx
import pytest

from collm.cluster import client as module
from collm.cluster.client import AdapterFiles, ReplicaControl
from collm.errors import CollmError, RoundError, StateError, UnknownObjectError, UnreachableError
from collm.federated.rounds import (
    GatePlan,
    GateReport,
    Progress,
    RoundPlan,
    SliceSums,
    UpdateReport,
)
from collm.types import VersionId

T = TypeVar("T")
PLAN = RoundPlan(
    adapter="ours", round=2, members=("a",), base_version=None, max_tokens=9, deadline_s=5.0
)
GATE = GatePlan(adapter="ours", round=2, candidate=VersionId("ours@2"), active=None, max_samples=8)
REPORT = UpdateReport(
    adapter="ours",
    round=2,
    member="a",
    base_version=None,
    num_examples=3,
    num_tokens=9,
    loss_before=None,
    loss_after=1.0,
    is_complete=True,
    digest="0" * 64,
)


def call(
    answer: Callable[[httpx.Request], httpx.Response],
    use: Callable[[ReplicaControl], "object"],
) -> object:
    async def main() -> object:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            return await use(ReplicaControl(client, "http://a:1/", "s3cret"))  # type: ignore[misc]

    return asyncio.run(main())


def seen(use: Callable[[ReplicaControl], object], answer: object = None) -> httpx.Request:
    """Return the request that a call makes, once it was answered well."""
    requests = []

    def respond(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, json=answer)

    call(respond, use)
    (request,) = requests
    assert request.headers["authorization"] == "Bearer s3cret"
    return request


def test_round_is_started_and_finished_on_its_routes() -> None:
    request = seen(lambda control: control.start_round(PLAN))
    assert (request.method, request.url.path) == ("POST", "/control/rounds")
    assert RoundPlan.from_json(json.loads(request.content)) == PLAN
    request = seen(lambda control: control.finish_round("ours", 2))
    assert (request.method, request.url.path) == ("POST", "/control/rounds/ours/2/finish")


def test_gate_and_promotion_are_asked_for_on_their_routes() -> None:
    request = seen(lambda control: control.start_gate(GATE))
    assert request.url.path == "/control/gate"
    assert GatePlan.from_json(json.loads(request.content)) == GATE
    request = seen(lambda control: control.promote(VersionId("ours@2"), "better", {"n": 1}))
    assert request.url.path == "/control/promote"
    assert json.loads(request.content) == {
        "version": "ours@2",
        "reason": "better",
        "numbers": {"n": 1},
        "cause": None,
    }


def test_version_travels_as_multipart_with_its_metadata() -> None:
    files = AdapterFiles(config=b"{}", weights=b"\x00weights")
    request = seen(lambda control: control.publish(VersionId("ours@2"), files, {"round": "2"}))
    assert (request.method, request.url.path) == ("PUT", "/control/versions/ours@2")
    for part in (b'name="adapter_config.json"', b'name="adapter_model.safetensors"', b"\x00weight"):
        assert part in request.content
    assert b'name="metadata"\r\n\r\n{"round": "2"}' in request.content


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"status": "training", "report": None, "error": None}, Progress()),
        ({"status": "finished", "report": REPORT.to_json()}, Progress(report=REPORT)),
        ({"status": "failed", "error": "no memory"}, Progress(error="no memory")),
    ],
)
def test_progress_of_a_round_is_read(answer: object, expected: Progress[UpdateReport]) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/control/rounds/ours/2"
        return httpx.Response(200, json=answer)

    assert call(respond, lambda control: control.round_report("ours", 2)) == expected


def test_progress_of_a_gate_is_read() -> None:
    report = GateReport(member="a", slices={"own": SliceSums(2, -1.0, 0.6)})
    answer = {"status": "finished", "report": report.to_json()}
    found = call(
        lambda _: httpx.Response(200, json=answer), lambda control: control.gate_report("ours", 2)
    )
    assert found == Progress(report=report)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"status": "happy"}', b'{"status": "finished"}', b'{"status": "finished", '],
)
def test_progress_that_makes_no_sense_is_an_error_of_the_round(content: bytes) -> None:
    with pytest.raises(RoundError):
        call(
            lambda _: httpx.Response(200, content=content),
            lambda control: control.round_report("ours", 2),
        )


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, UnknownObjectError),
        (409, StateError),
        (503, UnreachableError),
        (429, UnreachableError),
        (401, RoundError),
        (500, RoundError),
    ],
)
def test_refusal_says_what_it_means_and_what_the_replica_said(
    status: int, kind: type[CollmError]
) -> None:
    body = {"error": {"message": "because"}}
    with pytest.raises(kind, match=rf"/control/rounds was answered {status}: because"):
        call(lambda _: httpx.Response(status, json=body), lambda control: control.start_round(PLAN))


def test_replica_without_a_connection_is_unreachable() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(UnreachableError, match="refused"):
        call(fail, lambda control: control.update("ours", 2))


def test_update_is_returned_byte_for_byte() -> None:
    content = bytes(range(256))
    found = call(
        lambda _: httpx.Response(200, content=content), lambda control: control.update("ours", 2)
    )
    assert found == content


def test_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UPDATE_BYTES", 10)
    with pytest.raises(RoundError, match="longer than 10 bytes"):
        call(
            lambda _: httpx.Response(200, content=bytes(11)),
            lambda control: control.update("ours", 2),
        )
