"""Whatever a client sends, it gets a 4xx that names the field, and the server goes on."""

import json

import httpx
import pytest

from factories.fake_replica import BASE_MODEL, FakeReplica
from factories.server_thread import running_server
from factories.waiting import WAIT_S

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def replica():
    return FakeReplica()


@pytest.fixture(scope="module")
def http(replica):
    with (
        running_server(replica, max_body_bytes=100_000) as server,
        httpx.Client(base_url=server.url, timeout=WAIT_S) as client,
    ):
        yield client


def chat(**fields):
    return {"model": BASE_MODEL, "messages": [USER], **fields}


def text(**fields):
    return {"model": BASE_MODEL, "prompt": "hi", **fields}


def part(value):
    return chat(messages=[USER, {"role": "user", "content": ["x", value]}])


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
TEXT_PART = {"type": "text", "text": "a"}

BAD_FIELDS = [
    # (route, body, field named, words of the message)
    (CHAT, {"messages": [USER]}, "model", "required"),
    (CHAT, chat(model=""), "model", "at least 1 character"),
    (CHAT, chat(model=7), "model", "string"),
    (CHAT, {"model": BASE_MODEL}, "messages", "required"),
    (CHAT, chat(messages=[]), "messages", "at least 1 item"),
    (CHAT, chat(messages="hi"), "messages", "array"),
    (CHAT, chat(messages=["hi"]), "messages[0]", "object"),
    (CHAT, chat(messages=[{"role": "robot", "content": "x"}]), "messages[0].role", "'developer'"),
    (CHAT, chat(messages=[{"role": "user"}]), "messages[0].content", "required"),
    (CHAT, chat(messages=[{**USER, "contents": 1}]), "messages[0].contents", "mean 'content'"),
    (CHAT, chat(messages=[{**USER, "tool_calls": [{}]}]), "messages[0].tool_calls", "leave it out"),
    (CHAT, chat(messages=[USER, {"role": "user", "content": [TEXT_PART, IMAGE]}]),
     "messages[1].content[1]", "'image_url' are not supported yet; allowed: text"),
    (CHAT, part(TEXT_PART), "messages[1].content[0]", '"type": "text"'),
    (CHAT, chat(messages=[{"role": "user", "content": []}]), "messages[0].content", "text part"),
    (CHAT, chat(temperature=2.1), "temperature", "less than or equal to 2"),
    (CHAT, chat(temperature="1"), "temperature", "number"),
    (CHAT, chat(temprature=1), "temprature", "mean 'temperature'"),
    (CHAT, chat(zzz=1), "zzz", "allowed: "),
    (CHAT, chat(top_p=0), "top_p", "greater than 0"),
    (CHAT, chat(n=0), "n", "greater than or equal to 1"),
    (CHAT, chat(n=17), "n", "less than or equal to 16"),
    (CHAT, chat(n=10**30), "n", "less than or equal to 16"),
    (CHAT, chat(n=True), "n", "integer"),
    (CHAT, chat(n=1.5), "n", "integer"),
    (CHAT, chat(seed=2**63), "seed", "less than"),
    (CHAT, chat(presence_penalty=-2.5), "presence_penalty", "-2"),
    (CHAT, chat(stream="yes"), "stream", "boolean"),
    (CHAT, chat(stream_options={"include_usage": True}), "stream_options", '"stream": true'),
    (CHAT, chat(stream=True, stream_options={"usage": 1}), "stream_options.usage", "include_usage"),
    (CHAT, chat(stop=[""]), "stop", "1 to 1024 characters"),
    (CHAT, chat(stop=["a"] * 17), "stop", "at most 16"),
    (CHAT, chat(stop=5), "stop", "string"),
    (CHAT, chat(stop_token_ids=[300]), "stop_token_ids", "0 to 256"),
    (CHAT, chat(stop_token_ids=[-1]), "stop_token_ids[0]", "greater than or equal to 0"),
    (CHAT, chat(top_logprobs=2), "top_logprobs", '"logprobs": true'),
    (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs", "20"),
    (CHAT, chat(logprobs=3), "logprobs", "boolean"),
    (CHAT, chat(max_tokens=0), "max_tokens", "greater than or equal to 1"),
    (CHAT, chat(max_tokens=2, max_completion_tokens=3), "max_tokens", "send one"),
    (CHAT, chat(max_tokens=190), "max_tokens", "context length is 200"),
    (CHAT, chat(max_completion_tokens=190), "max_completion_tokens", "context length is 200"),
    (CHAT, chat(messages=[{**USER, "content": "a" * 200}]), "messages", "context length is 200"),
    (TEXT, text(max_tokens=200), "max_tokens", "context length is 200"),
    (TEXT, text(prompt="a" * 200), "prompt", "context length is 200"),
    (CHAT, chat(max_tokens=5, min_tokens=6), "min_tokens", "at most 5"),
    (CHAT, chat(tools=[{"type": "function"}]), "tools", "not supported yet; leave it out"),
    (CHAT, chat(tool_choice="required"), "tool_choice", "not supported yet"),
    (CHAT, chat(functions=[{}]), "functions", "not supported yet"),
    (CHAT, chat(response_format={"type": "json_object"}), "response_format", '{"type": "text"}'),
    (CHAT, chat(logit_bias={"5": 1}), "logit_bias", "not supported yet"),
    (CHAT, chat(audio={"voice": "x"}), "audio", "not supported yet"),
    (CHAT, chat(modalities=["audio"]), "modalities", '["text"]'),
    (CHAT, chat(best_of=2), "best_of", "Unknown field"),
    (TEXT, {"model": BASE_MODEL}, "prompt", "required"),
    (TEXT, text(prompt=""), "prompt", "at least one token"),
    (TEXT, text(prompt=["a", ""]), "prompt", "at least one token"),
    (TEXT, text(prompt=[]), "prompt", "at least one"),
    (TEXT, text(prompt=[[]]), "prompt", "empty list"),
    (TEXT, text(prompt=["a", 1]), "prompt", "list of strings"),
    (TEXT, text(prompt=[True]), "prompt", "token ids"),
    (TEXT, text(prompt=["a"] * 65), "prompt", "at most 64"),
    (TEXT, text(prompt=[5, 257]), "prompt", "257 does not exist; allowed: 0 to 256"),
    (TEXT, text(prompt=[-1]), "prompt", "-1 does not exist"),
    (TEXT, text(echo=True), "echo", "allowed: false"),
    (TEXT, text(suffix="x"), "suffix", "not supported yet"),
    (TEXT, text(best_of=3), "best_of", "use 'n'"),
    (TEXT, text(logprobs=True), "logprobs", "integer"),
    (TEXT, text(messages=[USER]), "messages", "Unknown field"),
    ("/adapters/promote", {}, "version", "required"),
    ("/adapters/rollback", {"adaptor": "x"}, "adapter", "required"),
]  # fmt: skip


@pytest.mark.parametrize(("route", "body", "field", "words"), BAD_FIELDS)
def test_bad_field_is_400_that_names_it(http, replica, route, body, field, words):
    replica.requests.clear()
    response = http.post(route, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field
    assert f"'{field}'" in error["message"]
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["code"]
    assert replica.requests == []


BAD_BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"\xff\xfe",
    b"[" * 50_000,
    b'{"a":' * 10_000,
    b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
    json.dumps(chat(temperature=float("nan"))).encode(),
    json.dumps(chat(temperature=float("inf"))).encode(),
    json.dumps(chat()).encode().replace(b"}]", b', "temperature": 1e999}]'),
    b'{"n": ' + b"1" * 6000 + b"}",
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_bad_body_is_400(http, body):
    response = http.post(CHAT, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_long_prompt_is_refused_with_both_numbers(http):
    response = http.post(TEXT, json=text(prompt="a" * 200))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "200 tokens; this model's context length is 200" in error["message"]


def test_chat_of_more_messages_than_the_context_has_tokens_is_refused_unread(http):
    messages = [{"role": "user", "content": ""}] * 201
    response = http.post(CHAT, json={**chat(), "messages": messages})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "messages"
    assert error["code"] == "context_length_exceeded"
    assert "201 messages; this model's context length is 200" in error["message"]


@pytest.mark.parametrize("claimed", [True, False])
def test_body_past_the_limit_is_413(http, claimed):
    body = json.dumps(chat(user="x" * 200_000)).encode()
    content = body if claimed else iter([body])
    response = http.post(CHAT, content=content)
    assert response.status_code == 413
    assert "allowed: 100000 bytes" in response.json()["error"]["message"]


def test_unknown_route_is_404_in_the_same_shape(http):
    response = http.get("/v1/nothing")
    assert response.status_code == 404
    error = response.json()["error"]
    assert "GET /v1/nothing" in error["message"]
    assert error["code"] == "unknown_url"


def test_wrong_method_is_405_that_names_the_right_one(http):
    response = http.get(CHAT)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert "allowed: POST" in response.json()["error"]["message"]


def test_null_means_default(http, replica):
    replica.requests.clear()
    body = chat(temperature=None, stop=None, stream=None, n=None, tools=None, max_tokens=None)
    assert http.post(CHAT, json=body).status_code == 200
    assert replica.requests[0].sampling.temperature == 1.0


def test_neutral_values_of_unsupported_fields_pass(http):
    body = chat(
        tools=[], logit_bias={}, response_format={"type": "text"}, modalities=["text"], user="me"
    )
    assert http.post(CHAT, json=body).status_code == 200
    assert http.post(TEXT, json=text(best_of=1, echo=False, suffix="")).status_code == 200


def test_openapi_describes_the_bodies(http):
    paths = http.get("/openapi.json").json()["paths"]
    body = paths[CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"messages", "model"} <= set(body["required"])
    assert "$ref" not in json.dumps(body)


def test_openapi_says_which_values_are_not_supported_yet_and_what_fields_mean(http):
    paths = http.get("/openapi.json").json()["paths"]

    def fields(path):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        return body["properties"]

    tools = fields(CHAT)["tools"]["description"]
    assert tools == "Not supported yet; leave it out or send []."
    assert fields("/v1/fine_tuning/jobs")["continuous"]["description"].startswith("Extension: ")
