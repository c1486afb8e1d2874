import httpx
import pytest

from factories.fake_replica import BASE_MODEL, VERSION, FakeReplica
from factories.server_thread import running_server


@pytest.fixture(scope="module")
def replica():
    return FakeReplica()


@pytest.fixture(scope="module")
def http(replica):
    with running_server(replica) as server, httpx.Client(base_url=server.url) as client:
        yield client


def test_models_name_their_version_and_parent(http):
    models = {model["id"]: model for model in http.get("/v1/models").json()["data"]}
    assert models[BASE_MODEL]["parent"] is None
    assert models["helper"]["version"] == VERSION
    assert models["helper"]["parent"] == BASE_MODEL
    assert models["helper"]["max_model_len"] == 200


def test_versions_are_listed(http):
    (version,) = http.get("/adapters").json()["data"]
    assert version["version"] == VERSION
    assert version["is_active"] is True


def test_promote_returns_the_version(http):
    response = http.post("/adapters/promote", json={"version": VERSION})
    assert response.json()["version"] == VERSION


def test_promoting_an_unknown_version_is_404(http):
    response = http.post("/adapters/promote", json={"version": "helper@9"})
    assert response.status_code == 404
    assert VERSION in response.json()["error"]["message"]


def test_impossible_rollback_is_409(http):
    response = http.post("/adapters/rollback", json={"adapter": "helper"})
    assert response.status_code == 409
    assert "no earlier version" in response.json()["error"]["message"]


def test_metrics_and_snapshot_are_passed_on(http):
    assert "collm_requests_total 1.0" in http.get("/metrics").text
    assert http.get("/control/snapshot").json() == {"num_running": 0}


def test_health_is_ok_while_the_step_loop_runs():
    replica = FakeReplica()
    with running_server(replica) as server:
        assert httpx.get(server.url + "/health").json() == {"status": "ok"}
