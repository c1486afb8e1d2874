"""The official client against a real replica of a tiny model."""

import itertools
import logging
import threading
from contextlib import closing

import httpx
import openai
import pytest

from collm.cli.replica_process import backends_of
from collm.engine.scheduler import Scheduler
from collm.errors import CollmError
from factories.checkpoints import tiny_checkpoint
from factories.engines import build_engine, generate
from factories.replicas import BASE_MODEL, greedy, open_tiny_replica, publish_on_disk
from factories.server_thread import running_server
from factories.waiting import WAIT_S, wait_until

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "The quick brown fox jumps over the lazy dog while"
GREEDY = {"temperature": 0, "max_tokens": 24, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def open_client(checkpoint, tmp_path):
    """Serve a replica of its own; the client knows it as ``replica`` and ``server``."""
    with (
        closing(open_tiny_replica(checkpoint, tmp_path)) as replica,
        running_server(backends_of(replica)) as server,
        client_of(server) as client,
    ):
        client.replica, client.server = replica, server
        yield client


@pytest.fixture(scope="module")
def shared(checkpoint, tmp_path_factory):
    """A replica of the base alone, for tests that leave nothing behind."""
    with (
        closing(open_tiny_replica(checkpoint, tmp_path_factory.mktemp("data"))) as replica,
        running_server(backends_of(replica)) as server,
        client_of(server) as client,
    ):
        client.replica, client.server = replica, server
        yield client


@pytest.fixture
def versioned(checkpoint, tmp_path):
    """A replica with three versions on disk, of which the first is active."""
    publish_on_disk(checkpoint, tmp_path, 1, 2, 3, num_promoted=1)
    with (
        closing(open_tiny_replica(checkpoint, tmp_path)) as replica,
        running_server(backends_of(replica)) as server,
        client_of(server) as client,
    ):
        client.replica, client.server = replica, server
        yield client


def client_of(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)


def post(client, path, **body):
    return httpx.post(client.server.url + path, json=body, timeout=120)


def complete(client, model=BASE_MODEL, prompt=PROMPT, **fields):
    raw = client.completions.with_raw_response.create(
        model=model, prompt=prompt, **(GREEDY | fields)
    )
    answer = raw.parse()
    assert raw.headers["x-collm-version"] == answer.system_fingerprint
    return answer


def used_blocks(client):
    return client.replica.client.snapshot()["used_blocks"]


def test_completion_is_what_the_engine_answers_alone(checkpoint, shared):
    answer = complete(shared)
    tokenizer = shared.replica.client.tokenizer
    prompt = tokenizer.encode(PROMPT)
    alone = generate(build_engine(checkpoint), [greedy("alone", prompt, max_tokens=24)])["alone"]
    detokenizer = tokenizer.detokenizer()
    text = "".join(map(detokenizer.push, alone)) + detokenizer.flush()
    assert answer.choices[0].text == text
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), 24)
    assert answer.system_fingerprint == "base"


def test_chat_stream_equals_the_plain_answer(shared):
    plain = shared.chat.completions.create(model=BASE_MODEL, messages=MESSAGES, **GREEDY)
    chunks = list(
        shared.chat.completions.create(
            model=BASE_MODEL,
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == plain.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens == 24
    encoded = shared.replica.client.tokenizer.encode_chat(MESSAGES)
    assert chunks[-1].usage.prompt_tokens == plain.usage.prompt_tokens == len(encoded)


def test_completion_stream_equals_the_plain_answer(shared):
    plain = complete(shared)
    chunks = list(shared.completions.create(model=BASE_MODEL, prompt=PROMPT, stream=True, **GREEDY))
    assert "".join(chunk.choices[0].text for chunk in chunks) == plain.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_logprobs_of_greedy_tokens_are_the_largest(shared):
    answer = shared.chat.completions.create(
        model=BASE_MODEL, messages=MESSAGES, logprobs=True, top_logprobs=3, **GREEDY
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == 24
    for entry in content:
        logprobs = [top.logprob for top in entry.top_logprobs]
        assert len(logprobs) == 3
        assert entry.logprob == logprobs[0] == max(logprobs) < 0
    listed = complete(shared, logprobs=2).choices[0].logprobs
    assert all(len(top) == 2 for top in listed.top_logprobs)
    assert len(listed.tokens) == len(listed.token_logprobs) == 24


def test_seed_repeats_choices_that_differ_from_each_other(shared):
    def ask(seed):
        answer = complete(shared, n=3, temperature=1.0, seed=seed)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.text for choice in answer.choices]

    assert ask(1) == ask(1)
    assert len(set(ask(1))) == 3
    assert ask(1) != ask(2)


def test_stop_string_completes_its_choice_and_the_others_go_on(open_client):
    draws = {"n": 3, "temperature": 1.0, "seed": 5}
    texts = [choice.text for choice in complete(open_client, **draws).choices]
    stop = texts[1][4:7]
    stopped = complete(open_client, stop=stop, **draws)
    for choice, text in zip(stopped.choices, texts, strict=True):
        assert choice.text == text.partition(stop)[0]
        assert choice.finish_reason == ("stop" if stop in text else "length")
    assert stopped.usage.completion_tokens < 3 * 24
    wait_until(lambda: open_client.replica.client.snapshot()["finished"] == 2)


def test_request_ended_by_a_stop_string_is_on_record_as_completed(open_client):
    text = complete(open_client, max_tokens=200).choices[0].text
    stopped = complete(open_client, max_tokens=200, stop=text[4:7])
    assert stopped.choices[0].text == text.partition(text[4:7])[0]
    wait_until(lambda: open_client.replica.client.snapshot()["finished"] == 2)
    wait_until(lambda: used_blocks(open_client) == 0)
    counts = open_client.replica.client.metrics_text().decode()
    assert 'collm_requests_total{model_name="tiny",outcome="completed"} 2.0' in counts
    assert 'collm_requests_total{model_name="tiny",outcome="aborted"} 0.0' in counts


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "nobody"}, 404, "tiny"),
        ({"prompt": "x " * 600}, 400, "context length"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [100_000]}, 400, "100000"),
        ({"max_tokens": 10_000}, 400, "max_tokens"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"no_such_field": 1}, 400, "no_such_field"),
    ],
)
def test_bad_request_is_refused_by_name_and_the_next_one_served(shared, body, status, words):
    response = post(shared, "/v1/completions", **({"model": BASE_MODEL, "prompt": "a"} | body))
    assert response.status_code == status
    assert words in response.json()["error"]["message"]
    assert complete(shared, max_tokens=2).usage.completion_tokens == 2


def test_client_that_leaves_gives_its_blocks_back(open_client, monkeypatch):
    has_left, schedule = threading.Event(), Scheduler.schedule

    def schedule_slowly(scheduler, now_s):
        if scheduler.num_running:
            has_left.wait(0.1)
        return schedule(scheduler, now_s)

    monkeypatch.setattr(Scheduler, "schedule", schedule_slowly)
    streams = [
        open_client.completions.create(
            model=BASE_MODEL,
            prompt=PROMPT,
            max_tokens=200,
            stream=True,
            n=2,
            extra_body={"ignore_eos": True},
        )
        for _ in range(3)
    ]
    for stream in streams:
        next(stream)
    wait_until(lambda: used_blocks(open_client) > 0)
    for stream in streams:
        stream.close()
    has_left.set()
    wait_until(lambda: used_blocks(open_client) == 0)
    assert open_client.replica.client.snapshot()["running"] == 0
    assert complete(open_client).usage.completion_tokens == 24


def test_names_mean_versions_and_a_freed_one_is_404_that_lists_what_exists(versioned):
    texts = {}
    for number in (1, 2, 3):
        version = f"tutor@{number}"
        assert post(versioned, "/adapters/promote", version=version).json()["version"] == version
        texts[number] = complete(versioned, "tutor").choices[0].text
        pinned = complete(versioned, version)
        assert (pinned.system_fingerprint, pinned.choices[0].text) == (version, texts[number])
    assert len({*texts.values(), complete(versioned).choices[0].text}) == 4
    assert complete(versioned, "tutor").system_fingerprint == "tutor@3"
    assert complete(versioned, "tutor@2").choices[0].text == texts[2]
    with pytest.raises(openai.NotFoundError) as caught:
        complete(versioned, "tutor@1")
    for name in ("'tutor@1' does not exist", "tiny, tutor, tutor@2, tutor@3"):
        assert name in str(caught.value)
    wait_until(
        lambda: (
            [model.id for model in versioned.models.list()]
            == ["tiny", "tutor", "tutor@2", "tutor@3"]
        )
    )


def test_rollback_and_promotion_over_http(versioned):
    post(versioned, "/adapters/promote", version="tutor@2").raise_for_status()
    answer = post(versioned, "/adapters/rollback", adapter="tutor").json()
    assert (answer["version"], answer["is_active"]) == ("tutor@1", True)
    assert complete(versioned, "tutor").system_fingerprint == "tutor@1"
    assert post(versioned, "/adapters/rollback", adapter="nobody").status_code == 404
    assert post(versioned, "/adapters/promote", version="tutor@9").status_code == 404
    assert complete(versioned, "tutor").system_fingerprint == "tutor@1"


def test_rollback_of_the_first_version_over_http_leaves_the_base(versioned):
    answer = post(versioned, "/adapters/rollback", adapter="tutor").json()
    assert (answer["version"], answer["adapter"], answer["is_active"]) == ("base", "tutor", True)
    with pytest.raises(openai.NotFoundError, match="'tutor' does not exist; available: tiny"):
        complete(versioned, "tutor")
    history = httpx.get(versioned.server.url + "/adapters/tutor/history", timeout=WAIT_S).json()
    row = history["data"][-1]
    assert (row["kind"], row["version"], row["previous"]) == ("rollback", "base", "tutor@1")
    again = post(versioned, "/adapters/rollback", adapter="tutor")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "model_not_found")
    post(versioned, "/adapters/promote", version="tutor@1").raise_for_status()
    assert complete(versioned, "tutor").system_fingerprint == "tutor@1"


def test_stream_goes_on_under_the_version_that_it_began_with(versioned):
    alone = complete(versioned, "tutor", max_tokens=200).choices[0].text
    stream = versioned.completions.create(
        model="tutor", prompt=PROMPT, stream=True, **(GREEDY | {"max_tokens": 200})
    )
    chunks = [next(stream)]
    post(versioned, "/adapters/promote", version="tutor@2").raise_for_status()
    assert complete(versioned, "tutor").system_fingerprint == "tutor@2"
    chunks += stream
    assert {chunk.system_fingerprint for chunk in chunks} == {"tutor@1"}
    assert "".join(chunk.choices[0].text for chunk in chunks) == alone


def test_prefix_cache_hits_never_cross_versions(versioned):
    def ask(model):
        answer = complete(versioned, model)
        return answer.choices[0].text, answer.usage.prompt_tokens_details.cached_tokens

    seen = {}
    for model in (BASE_MODEL, "tutor@1"):
        seen[model], num_cached = ask(model)
        assert num_cached == 0
        text, num_cached = ask(model)
        assert (text, num_cached > 0) == (seen[model], True)
    post(versioned, "/adapters/promote", version="tutor@2").raise_for_status()
    text, num_cached = ask("tutor")
    assert num_cached == 0
    assert text not in seen.values()
    assert ask("tutor@1")[0] == seen["tutor@1"]
    assert ask(BASE_MODEL)[0] == seen[BASE_MODEL]


def test_server_exits_with_an_error_when_the_step_loop_fails(
    checkpoint, tmp_path, monkeypatch, caplog
):
    num_steps, schedule = itertools.count(), Scheduler.schedule

    def fail_after_some(scheduler, now_s):
        if scheduler.num_running and next(num_steps) == 5:
            raise RuntimeError("made to fail")
        return schedule(scheduler, now_s)

    caplog.set_level(logging.CRITICAL)
    with (
        closing(open_tiny_replica(checkpoint, tmp_path)) as replica,
        running_server(backends_of(replica)) as server,
        client_of(server) as client,
    ):
        monkeypatch.setattr(Scheduler, "schedule", fail_after_some)
        stream = client.completions.create(
            model=BASE_MODEL, prompt=PROMPT, stream=True, **(GREEDY | {"max_tokens": 200})
        )
        next(stream)
        with pytest.raises(openai.APIError, match="replica ended"):
            list(stream)
        server.join()
        assert isinstance(server.error, CollmError)
