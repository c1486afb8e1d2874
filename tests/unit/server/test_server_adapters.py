import httpx
import pytest

from factories.fake_backends import fake_backends
from factories.fake_desks import OLD_VERSION, FakeAdapterDesk
from factories.fake_replica import VERSION
from factories.server_thread import running_server
from factories.waiting import WAIT_S


@pytest.fixture
def desk():
    return FakeAdapterDesk()


@pytest.fixture
def http(desk):
    with (
        running_server(fake_backends(adapters=desk)) as server,
        httpx.Client(base_url=server.url, timeout=WAIT_S) as client,
    ):
        yield client


def test_versions_on_disk_and_on_the_device_are_one_list(http):
    old, active = http.get("/adapters").json()["data"]
    assert (old["version"], active["version"]) == (OLD_VERSION, VERSION)
    assert (old["slot"], old["is_active"], old["published_at_s"]) == (None, False, 3.5)
    assert (active["slot"], active["is_active"], active["num_pins"]) == (0, True, 1)
    assert old.keys() == active.keys()


def test_pin_shows_until_it_is_undone(http):
    pinned = http.post("/adapters/pin", json={"version": OLD_VERSION})
    assert pinned.json() == {"version": OLD_VERSION, "is_pinned": True}
    assert [row["is_pinned"] for row in http.get("/adapters").json()["data"]] == [True, False]
    unpinned = http.post("/adapters/unpin", json={"version": OLD_VERSION})
    assert unpinned.json() == {"version": OLD_VERSION, "is_pinned": False}
    assert not any(row["is_pinned"] for row in http.get("/adapters").json()["data"])


def test_history_tells_each_decision_with_its_numbers(http):
    (decision,) = http.get("/adapters/helper/history").json()["data"]
    assert (decision["kind"], decision["version"], decision["previous"]) == (
        "promotion",
        VERSION,
        OLD_VERSION,
    )
    assert decision["numbers"] == {"evidence": 40.0, "candidate_loss": "nan"}


@pytest.mark.parametrize("limit", [0, -1, 10**30])
def test_history_of_no_or_absurdly_many_decisions_is_refused(http, limit):
    response = http.get("/adapters/helper/history", params={"limit": limit})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "limit"


def test_history_of_an_unknown_adapter_is_404_that_lists_what_exists(http):
    response = http.get("/adapters/nobody/history")
    assert response.status_code == 404
    assert "helper" in response.json()["error"]["message"]


def test_promote_returns_the_version(http):
    response = http.post("/adapters/promote", json={"version": VERSION})
    assert response.json()["version"] == VERSION


@pytest.mark.parametrize("action", ["promote", "pin", "unpin"])
def test_an_unknown_version_is_404_that_lists_what_exists(http, action):
    response = http.post(f"/adapters/{action}", json={"version": "helper@9"})
    assert response.status_code == 404
    assert VERSION in response.json()["error"]["message"]


def test_impossible_rollback_is_409(http):
    response = http.post("/adapters/rollback", json={"adapter": "helper"})
    assert response.status_code == 409
    assert "no earlier version" in response.json()["error"]["message"]
