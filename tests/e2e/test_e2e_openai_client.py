"""The official client against a real server whose replica is scripted."""

import json

import httpx
import openai
import pytest

from collm.errors import CapacityError
from collm.types import FinishReason, VersionId
from factories.fake_replica import BASE_MODEL, VERSION, FakeReplica, Hold, events_for, saying
from factories.server_thread import running_server
from factories.waiting import WAIT_S

MESSAGES = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def replica():
    return FakeReplica()


@pytest.fixture(scope="module")
def server(replica):
    with running_server(replica) as server:
        yield server


@pytest.fixture
def script(replica):
    def use(new):
        replica.script = new
        replica.requests.clear()
        replica.closed_early.clear()

    use(saying(b"Hello!"))
    return use


@pytest.fixture
def client(server, script):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat_answers_with_text_usage_and_version(client, replica):
    raw = client.chat.completions.with_raw_response.create(model="helper", messages=MESSAGES)
    answer = raw.parse()
    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.system_fingerprint == VERSION
    assert raw.headers["x-collm-version"] == VERSION
    assert answer.model == "helper"
    prompt = replica.tokenizer.encode_chat(MESSAGES)
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(b"Hello!") + 1
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert replica.requests[0].prompt == tuple(prompt)
    assert replica.requests[0].sampling.max_tokens == replica.max_model_len - len(prompt)


def test_chat_stream_says_role_text_end_and_usage(client, script):
    script(saying("Grüße 🦙".encode()))
    stream = client.chat.completions.create(
        model=BASE_MODEL,
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "Grüße 🦙"
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-2:] == [None, "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens > chunks[-1].usage.completion_tokens > 0
    assert all(c.usage is None for c in chunks[:-1])
    assert {c.id for c in chunks} == {chunks[0].id}
    assert {c.system_fingerprint for c in chunks} == {"base"}


def test_stream_is_well_formed_event_stream(server, script):
    body = {"model": BASE_MODEL, "messages": MESSAGES, "stream": True}
    response = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=WAIT_S)
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    for frame in frames[:-2]:
        chunk = json.loads(frame.removeprefix("data: "))
        assert chunk["object"] == "chat.completion.chunk"
        assert "usage" not in chunk


def test_several_choices_keep_their_texts_apart(client, script):
    script(saying(b"one", b"three"))
    answer = client.chat.completions.create(model=BASE_MODEL, messages=MESSAGES, n=2)
    assert [choice.message.content for choice in answer.choices] == ["one", "three"]
    texts = ["", ""]
    for chunk in client.chat.completions.create(
        model=BASE_MODEL, messages=MESSAGES, n=2, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["one", "three"]


def test_chat_logprobs_align_with_shown_tokens(client):
    answer = client.chat.completions.create(
        model=BASE_MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == "Hello!"
    assert content[0].bytes == [ord("H")]
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [
        ("x", -0.5),
        ("y", -9999.0),
    ]


def test_streamed_logprobs_equal_plain_ones(client):
    arguments = {
        "model": BASE_MODEL,
        "messages": MESSAGES,
        "logprobs": True,
        "stop": ["lo!"],
        "temperature": 0,
    }
    plain = client.chat.completions.create(**arguments).choices[0]
    streamed = [
        entry
        for chunk in client.chat.completions.create(stream=True, **arguments)
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content
    ]
    assert plain.message.content == "Hel"
    assert streamed == plain.logprobs.content
    assert len(streamed) == len("Hel")


def test_completion_logprobs_are_parallel_lists(client):
    answer = client.completions.create(model=BASE_MODEL, prompt="a", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == list("Hello!")
    assert logprobs.text_offset == [0, 1, 2, 3, 4, 5]
    assert logprobs.top_logprobs[0] == {"x": -0.5}


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [(97, 98)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([97, 98], [(97, 98)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
    ],
)
def test_completion_takes_prompts_in_all_four_shapes(client, replica, prompt, expected):
    answer = client.completions.create(model=BASE_MODEL, prompt=prompt)
    assert [request.prompt for request in replica.requests] == expected
    assert [choice.text for choice in answer.choices] == ["Hello!"] * len(expected)
    assert replica.requests[0].sampling.max_tokens == 16


def test_completion_streams_several_prompts_and_choices(client):
    texts = {}
    for chunk in client.completions.create(model=BASE_MODEL, prompt=["a", "b"], n=2, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == dict.fromkeys(range(4), "Hello!")


def test_several_prompts_of_one_call_are_submitted_together(client, replica):
    client.completions.create(model="helper", prompt=["a", "b"])
    client.completions.create(model="helper", prompt="c")
    calls = [[(one.model, one.prompt) for one in call] for call in replica.calls[-2:]]
    assert calls == [[("helper", (97,)), ("helper", (98,))], [("helper", (99,))]]


def test_answer_that_changes_its_version_is_an_error(client, script):
    def mixed(request):
        first, *rest = events_for(request, b"Hello", version=VERSION)
        return [first, *(event._replace(version=VersionId("helper@3")) for event in rest)]

    script(mixed)
    with pytest.raises(openai.InternalServerError, match="helper@2 and cannot go on with helper@3"):
        client.chat.completions.create(model="helper", messages=MESSAGES)


def test_stop_string_ends_the_answer_and_the_request(client, replica, script):
    script(lambda request: [*events_for(request, b"Hello wor")[:-1], Hold()])
    answer = client.chat.completions.create(model=BASE_MODEL, messages=MESSAGES, stop="lo w")
    assert answer.choices[0].message.content == "Hel"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == len(b"Hello w")
    assert replica.wait_closed_early()
    assert replica.finished[replica.requests[0].request_id] == [0]


def test_stop_string_of_one_choice_ends_it_alone(client, replica, script):
    script(saying(b"Hello world", b"Help is near"))
    answer = client.chat.completions.create(model=BASE_MODEL, messages=MESSAGES, n=2, stop="lo")
    assert [choice.message.content for choice in answer.choices] == ["Hel", "Help is near"]
    assert replica.finished[replica.requests[0].request_id] == [0]


def test_length_limit_is_named_as_the_reason(client, script):
    script(saying(b"Hello!", finish=FinishReason.LENGTH))
    answer = client.chat.completions.create(model=BASE_MODEL, messages=MESSAGES, max_tokens=3)
    assert answer.choices[0].message.content == "Hel"
    assert answer.choices[0].finish_reason == "length"


def test_sampling_fields_reach_the_request(client, replica):
    client.chat.completions.create(
        model=BASE_MODEL,
        messages=MESSAGES,
        max_completion_tokens=5,
        temperature=0.5,
        top_p=0.25,
        seed=7,
        presence_penalty=-1,
        frequency_penalty=1.5,
        user="someone",
        store=False,
        metadata={"a": "b"},
        extra_body={"top_k": -1, "min_p": 0.1, "min_tokens": 2, "ignore_eos": True},
    )
    sampling = replica.requests[0].sampling
    assert (sampling.max_tokens, sampling.min_tokens, sampling.seed) == (5, 2, 7)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 0)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-1.0, 1.5)
    assert (sampling.min_p, sampling.ignore_eos) == (0.1, True)


def test_unknown_model_is_404_that_lists_what_exists(client):
    with pytest.raises(openai.NotFoundError, match="helper@2") as caught:
        client.chat.completions.create(model="helper@1", messages=MESSAGES, stream=True)
    assert caught.value.code == "model_not_found"


def test_failure_at_admission_is_a_status_even_for_streams(client, script):
    script(lambda request: [_failed(request, CapacityError("needs 9 blocks, there are 4"))])
    with pytest.raises(openai.BadRequestError, match="9 blocks"):
        client.chat.completions.create(model=BASE_MODEL, messages=MESSAGES, stream=True)


def test_failure_in_the_middle_is_an_error_event_and_no_done(server, script):
    script(
        lambda request: [*events_for(request, b"He")[:1], _failed(request, ValueError("secret"))]
    )
    body = {"model": BASE_MODEL, "messages": MESSAGES, "stream": True}
    frames = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=WAIT_S).text.split(
        "\n\n"
    )
    error = json.loads(frames[-2].removeprefix("data: "))["error"]
    assert error["code"] == "internal_error"
    assert "secret" not in error["message"]
    assert "[DONE]" not in "".join(frames)


def test_failure_in_the_middle_raises_in_the_client(client, script):
    script(lambda request: [*events_for(request, b"He")[:1], _failed(request, ValueError())])
    stream = client.chat.completions.create(model=BASE_MODEL, messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="error while answering"):
        list(stream)


def test_client_that_leaves_a_stream_aborts_its_request(client, replica, script):
    script(lambda request: [*events_for(request, b"He")[:1], Hold()])
    stream = client.chat.completions.create(model=BASE_MODEL, messages=MESSAGES, stream=True)
    next(stream)
    stream.close()
    assert replica.wait_closed_early()


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_before_the_first_token_aborts_its_request(
    client, replica, script, stream
):
    script(lambda request: [Hold()])
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.2).chat.completions.create(
            model=BASE_MODEL, messages=MESSAGES, stream=stream
        )
    assert replica.wait_closed_early()


def test_models_are_listed_and_shown(client):
    assert [model.id for model in client.models.list()] == [BASE_MODEL, "helper", VERSION]
    assert client.models.retrieve(BASE_MODEL).id == BASE_MODEL
    with pytest.raises(openai.NotFoundError, match="org/tiny, helper"):
        client.models.retrieve("nothing")


def _failed(request, error):
    event = events_for(request, b"x")[0]
    return type(event)(
        request_id=request.request_id,
        choice=0,
        token_id=None,
        finish_reason=FinishReason.ERROR,
        error=error,
    )
