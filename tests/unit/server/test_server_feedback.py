import httpx
import pytest

from factories.fake_backends import fake_backends
from factories.fake_desks import FakeFeedbackDesk
from factories.server_thread import running_server
from factories.waiting import WAIT_S

CHAT = {"model": "helper", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def desk():
    return FakeFeedbackDesk()


@pytest.fixture
def http(desk):
    with (
        running_server(fake_backends(feedback=desk)) as server,
        httpx.Client(base_url=server.url, timeout=WAIT_S) as client,
    ):
        yield client


@pytest.fixture
def response_id(http):
    return http.post("/v1/chat/completions", json=CHAT).json()["id"]


def give(http, response_id, **members):
    return http.post("/v1/feedback", json={"response_id": response_id, **members})


def error_of(response, status):
    assert response.status_code == status, response.text
    return response.json()["error"]


def test_better_answer_to_a_served_one_becomes_feedback_on_its_adapter(http, desk, response_id):
    response = give(http, response_id, answer="Good day!")
    assert response.status_code == 200
    assert response.json() == {
        "id": "fb-0",
        "object": "feedback",
        "response_id": response_id,
        "choice": 0,
        "adapter": "helper",
        "version": "helper@2",
        "rating": None,
        "weight": 1.0,
        "created_at": 5,
        "is_deleted": False,
    }
    assert desk.kept["fb-0"].messages == (
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Good day!"},
    )


@pytest.mark.parametrize("rating", [0, 0.5, 1, 1.0])
def test_rating_alone_is_enough(http, response_id, rating):
    assert give(http, response_id, rating=rating).json()["rating"] == rating


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({}, "answer"),
        ({"answer": None, "rating": None}, "answer"),
        ({"answer": ""}, "answer"),
        ({"answer": " \n\t\u2003", "rating": 1}, "answer"),
        ({"answer": 5}, "answer"),
        ({"rating": 1.5}, "rating"),
        ({"rating": -0.1}, "rating"),
        ({"rating": "good"}, "rating"),
        ({"rating": 1, "choice": -1}, "choice"),
        ({"rating": 1, "adapter": "other"}, "adapter"),
    ],
)
def test_bad_feedback_is_refused_by_name(http, desk, response_id, members, param):
    assert error_of(give(http, response_id, **members), 400)["param"] == param
    assert desk.kept == {}


def test_feedback_on_an_unknown_response_is_404(http):
    assert error_of(give(http, "chatcmpl-none", rating=1), 404)["code"] == "not_found"


def test_the_same_text_again_is_409_that_names_the_first(http, response_id):
    give(http, response_id, answer="Good day!").raise_for_status()
    error = error_of(give(http, response_id, answer="Good day!"), 409)
    assert error["code"] == "duplicate"
    assert "fb-0" in error["message"]


def test_feedback_is_listed_newest_first_and_in_pages(http, response_id):
    for rating in (0, 0.5, 1):
        give(http, response_id, rating=rating).raise_for_status()
    first = http.get("/v1/feedback", params={"limit": 2, "adapter": "helper"}).json()
    assert [item["id"] for item in first["data"]] == ["fb-2", "fb-1"]
    assert (first["has_more"], first["last_id"]) == (True, "fb-1")
    rest = http.get("/v1/feedback", params={"after": "fb-1"}).json()
    assert [item["id"] for item in rest["data"]] == ["fb-0"]
    assert rest["has_more"] is False
    empty = http.get("/v1/feedback", params={"adapter": "other"}).json()
    assert (empty["data"], empty["first_id"]) == ([], None)


@pytest.mark.parametrize(
    ("query", "param"), [({"limit": "0"}, "limit"), ({"limit": "x"}, "limit"), ({"a": "b"}, "a")]
)
def test_bad_list_parameter_is_refused_by_name(http, query, param):
    assert error_of(http.get("/v1/feedback", params=query), 400)["param"] == param


def test_deleted_feedback_stays_as_an_empty_row(http, desk, response_id):
    give(http, response_id, answer="Good day!").raise_for_status()
    deleted = http.delete("/v1/feedback/fb-0")
    assert deleted.json() == {"id": "fb-0", "object": "feedback", "deleted": True}
    assert http.get("/v1/feedback/fb-0").json()["is_deleted"] is True
    assert desk.kept["fb-0"].messages is None


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_unknown_feedback_is_404(http, method):
    error_of(http.request(method, "/v1/feedback/fb-9"), 404)
