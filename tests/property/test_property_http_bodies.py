"""Whatever JSON a client sends, it gets an answer or a 4xx, and the step loop lives on."""

import json

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from collm.engine.config import MemoryConfig
from collm.server.adapter_schemas import (
    FeedbackBody,
    LoadBody,
    RollbackBody,
    UnloadBody,
    VersionBody,
)
from collm.server.schemas import ChatBody, CompletionBody
from factories.checkpoints import tiny_checkpoint
from factories.replicas import BASE_MODEL, open_tiny_replica, publish_on_disk
from factories.server_thread import running_server
from factories.waiting import wait_until

MESSAGE = {"role": "user", "content": "hi"}
BODIES = {
    "/v1/chat/completions": (ChatBody, {"model": BASE_MODEL, "messages": [MESSAGE]}),
    "/v1/completions": (CompletionBody, {"model": BASE_MODEL, "prompt": "hi"}),
    "/adapters/promote": (VersionBody, {"version": "tutor@1"}),
    "/adapters/rollback": (RollbackBody, {"adapter": "tutor"}),
    "/adapters/pin": (VersionBody, {"version": "tutor@1"}),
    "/adapters/unpin": (VersionBody, {"version": "tutor@1"}),
    "/v1/load_lora_adapter": (LoadBody, {"lora_name": "tutor", "lora_path": "nowhere"}),
    "/v1/unload_lora_adapter": (UnloadBody, {"lora_name": "nobody"}),
    "/v1/feedback": (FeedbackBody, {"response_id": "chatcmpl-x", "rating": 1}),
}

ODD_TEXTS = ["", "\x00", "\ud800", "é🦙", "tutor", "tutor@1", "tutor@", "@", "../x", "a" * 300]
ODD_NUMBERS = [0, -1, 1, 2, 511, 512, 2**31, 2**63, 2**64, 10**400, 0.0, -0.0, 1e-320, 0.5, 1e308]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([*ODD_NUMBERS, *ODD_TEXTS, float("nan"), float("inf")]),
    st.integers(-3, 20),
    st.floats(0, 2),
    st.text(max_size=8),
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["role", "content", "type", "text", "x"]), inner),
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "system", "tool"])} | {"content": inner}
        ),
    ),
    max_leaves=6,
)


shares = st.floats(0, 1)
plausible = {
    "model": st.sampled_from([BASE_MODEL, "tutor", "tutor@1", "tutor@2", "tutor@3", "nobody"]),
    "version": st.sampled_from(["tutor@1", "tutor@2", "tutor@3", "tutor"]),
    "adapter": st.sampled_from(["tutor", "nobody"]),
    "lora_name": st.just("nobody"),
    "rating": shares,
    "answer": st.text(max_size=8),
    "choice": st.integers(0, 2),
    "prompt": st.text(min_size=1, max_size=8) | st.lists(st.integers(0, 511), min_size=1),
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": st.text()}
        ),
        min_size=1,
        max_size=3,
    ),
    "stream": st.booleans(),
    "ignore_eos": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "n": st.integers(1, 4),
    "max_tokens": st.integers(1, 12),
    "max_completion_tokens": st.integers(1, 12),
    "min_tokens": st.integers(0, 8),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": st.text(min_size=1, max_size=2) | st.lists(st.text(min_size=1, max_size=2)),
    "stop_token_ids": st.lists(st.integers(0, 511), max_size=40),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1, exclude_min=True),
    "min_p": shares,
    "top_k": st.integers(-1, 600),
    "repetition_penalty": st.floats(0, 2, exclude_min=True),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "logprobs": st.booleans() | st.integers(0, 5),
    "top_logprobs": st.integers(0, 5),
}


@st.composite
def calls(draw):
    """A path, and a body that starts from a valid one; most of the changes could be meant."""
    path = draw(st.sampled_from([*list(BODIES)[:2] * 2, *BODIES]))
    schema, valid = BODIES[path]
    names = [*schema.model_fields, "no_such_field"]
    fields = draw(st.lists(st.sampled_from(names), max_size=4, unique=True))
    meant = [name for name in names if name in plausible]
    fields += draw(st.lists(st.sampled_from(meant), max_size=6, unique=True))
    is_wild = draw(st.integers(0, 3)) == 0
    return path, valid | {
        name: draw(anything if is_wild or name not in plausible else plausible[name])
        for name in fields
        if is_wild or name in plausible
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    checkpoint = tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")
    data_dir = tmp_path_factory.mktemp("data")
    publish_on_disk(checkpoint, data_dir, 1, 2, num_promoted=2)
    # A short context, for every default asks for all of it.
    memory = MemoryConfig(kv_cache_mib=1, block_size=4, max_model_len=32)
    replica = open_tiny_replica(checkpoint, data_dir, memory=memory)
    with running_server(replica.client) as server, httpx.Client(timeout=120) as client:
        server.client, server.replica = client, replica
        yield server
    replica.close()


def post(server, path, content):
    return server.client.post(
        server.url + path, content=content, headers={"content-type": "application/json"}
    )


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(call=calls())
@example(call=("/v1/completions", {"model": BASE_MODEL, "prompt": [[1, 2], [3]], "n": 2}))
@example(call=("/v1/completions", {"model": BASE_MODEL, "prompt": "a", "seed": 2**64}))
@example(call=("/v1/completions", {"model": BASE_MODEL, "prompt": "a", "temperature": 1e-320}))
@example(
    call=(
        "/v1/completions",
        {"model": BASE_MODEL, "prompt": "a", "temperature": 2, "top_p": 1e-320},
    )
)
@example(
    call=("/v1/completions", {"model": BASE_MODEL, "prompt": "a", "repetition_penalty": 1e-320})
)
@example(
    call=(
        "/v1/chat/completions",
        {"model": BASE_MODEL, "messages": [{"role": "user", "content": "\ud800"}]},
    )
)
def test_no_body_causes_a_server_error(server, call):
    path, body = call
    response = post(server, path, json.dumps(body).encode())
    assert response.status_code < 500, response.text
    assert "internal_error" not in response.text
    if response.status_code >= 400:
        assert response.json()["error"]["message"]
    assert server.replica.client.is_alive


@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(path=st.sampled_from(list(BODIES)), content=st.binary(max_size=30))
@example(path="/v1/completions", content=b"[" * 100_000)
@example(path="/v1/completions", content=b"9" * 10_000)
def test_no_bytes_cause_a_server_error(server, path, content):
    response = post(server, path, content)
    assert 400 <= response.status_code < 500


def test_replica_serves_and_holds_nothing_after_all_that(server):
    answer = post(
        server, "/v1/completions", json.dumps({"model": "tutor", "prompt": "a"}).encode()
    ).json()
    assert answer["usage"]["completion_tokens"] > 0
    wait_until(lambda: server.replica.client.snapshot()["used_blocks"] == 0)
