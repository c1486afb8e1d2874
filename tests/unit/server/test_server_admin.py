import httpx
import pytest

from collm.metrics.exporter import CONTENT_TYPE
from factories.fake_replica import BASE_MODEL, VERSION, FakeReplica
from factories.server_thread import running_server
from factories.waiting import WAIT_S


@pytest.fixture(scope="module")
def replica():
    return FakeReplica()


@pytest.fixture(scope="module")
def http(replica):
    with (
        running_server(replica) as server,
        httpx.Client(base_url=server.url, timeout=WAIT_S) as client,
    ):
        yield client


def test_models_name_their_version_and_parent(http):
    models = {model["id"]: model for model in http.get("/v1/models").json()["data"]}
    assert models[BASE_MODEL]["parent"] is None
    assert models["helper"]["version"] == VERSION
    assert models["helper"]["parent"] == BASE_MODEL
    assert models["helper"]["max_model_len"] == 200


def test_metrics_and_snapshot_are_passed_on(http):
    metrics = http.get("/metrics")
    assert "collm_requests_total 1.0" in metrics.text
    assert metrics.headers["content-type"] == CONTENT_TYPE
    assert http.get("/control/snapshot").json() == {"num_running": 0}


def test_health_is_ok_while_the_step_loop_runs():
    replica = FakeReplica()
    with running_server(replica) as server:
        assert httpx.get(server.url + "/health", timeout=WAIT_S).json() == {"status": "ok"}
