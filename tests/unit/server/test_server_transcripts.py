import json

import httpx
import pytest

from collm.server.choices import Delta
from collm.server.transcripts import Transcript
from collm.types import BASE, FinishReason
from factories.fake_backends import fake_backends
from factories.fake_desks import FakeFeedbackDesk
from factories.fake_replica import (
    BASE_MODEL,
    VERSION,
    FakeReplica,
    Hold,
    events_for,
    failing,
    saying,
)
from factories.server_thread import running_server
from factories.waiting import WAIT_S

MESSAGES = [{"role": "developer", "content": "be kind"}, {"role": "user", "content": "hi"}]
TURNS = ({"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"})


@pytest.fixture
def desk():
    return FakeFeedbackDesk()


@pytest.fixture
def replica():
    return FakeReplica()


@pytest.fixture
def http(replica, desk):
    backends = fake_backends(replica, feedback=desk)
    with (
        running_server(backends) as server,
        httpx.Client(base_url=server.url, timeout=WAIT_S) as client,
    ):
        yield client


def chat(http, **members):
    body = {"model": "helper", "messages": MESSAGES, **members}
    return http.post("/v1/chat/completions", json=body)


def test_texts_are_told_once_when_the_last_choice_has_ended():
    told = []
    transcript = Transcript(2, told.append)
    transcript.add(Delta(0, "one"))
    transcript.add(Delta(1, "t", finish_reason=FinishReason.STOP))
    assert told == []
    transcript.add(Delta(0, " more", finish_reason=FinishReason.LENGTH))
    assert told == [("one more", "t")]


def test_plain_answer_is_kept_with_its_prompt_and_version(http, desk):
    answer = chat(http).json()
    (kept,) = desk.responses
    assert (kept.response_id, kept.model) == (answer["id"], "helper")
    assert (kept.adapter, kept.version) == ("helper", VERSION)
    assert kept.messages == TURNS
    assert kept.answers == ("Hello!",)


def test_streamed_answer_is_kept_like_a_plain_one(http, desk, replica):
    replica.script = saying(b"one", b"three")
    lines = chat(http, stream=True, n=2).text.split("\n\n")
    (kept,) = desk.responses
    assert kept.response_id == json.loads(lines[0].removeprefix("data: "))["id"]
    assert kept.answers == ("one", "three")
    assert kept.messages == TURNS


def test_answer_can_be_rated_as_soon_as_its_last_piece_is_read(http, desk):
    body = {"model": "helper", "messages": MESSAGES, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if '"finish_reason":"stop"' in line:
                break
        assert [kept.answers for kept in desk.responses] == [("Hello!",)]


def test_text_before_a_stop_string_is_the_answer(http, desk):
    assert chat(http, stop="l").json()["choices"][0]["message"]["content"] == "He"
    assert desk.responses[0].answers == ("He",)


def test_answer_of_the_bare_base_is_not_kept(http, desk):
    chat(http, model=BASE_MODEL).raise_for_status()
    assert desk.responses == []


def test_answer_by_the_base_for_an_adapter_without_a_version_names_the_adapter(desk):
    early = FakeReplica(lambda request: events_for(request, b"yes", version=BASE))
    backends = fake_backends(early, feedback=desk)
    with (
        running_server(backends) as server,
        httpx.Client(base_url=server.url, timeout=WAIT_S) as client,
    ):
        chat(client).raise_for_status()
    assert (desk.responses[0].adapter, desk.responses[0].version) == ("helper", BASE)


@pytest.mark.parametrize("stream", [False, True])
def test_answer_that_broke_off_is_not_kept(http, desk, replica, stream):
    def script(request):
        return [events_for(request, b"Hello")[0], *failing(ValueError("broken"))(request)]

    replica.script = script
    chat(http, stream=stream)
    assert desk.responses == []


def test_answer_that_nobody_waited_for_is_not_kept(http, desk, replica):
    replica.script = lambda request: [*events_for(request, b"He")[:1], Hold()]
    body = {"model": "helper", "messages": MESSAGES, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        next(response.iter_lines())
    assert replica.wait_closed_early()
    assert desk.responses == []


def test_completion_of_one_text_is_kept_as_one_turn(http, desk):
    body = {"model": "helper", "prompt": "hi"}
    answer = http.post("/v1/completions", json=body).json()
    (kept,) = desk.responses
    assert kept.response_id == answer["id"]
    assert kept.messages == ({"role": "user", "content": "hi"},)


@pytest.mark.parametrize("prompt", [["a", "b"], [104, 105]])
def test_prompts_that_are_no_conversation_are_not_kept(http, desk, prompt):
    http.post("/v1/completions", json={"model": "helper", "prompt": prompt}).raise_for_status()
    assert desk.responses == []


def test_answer_that_continues_the_last_turn_is_not_kept(http, desk):
    chat(http, add_generation_prompt=False).raise_for_status()
    assert desk.responses == []
