"""Clients of a real replica that learns meanwhile."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import openai
import pytest

from collm.cli.replica_process import backends_of
from collm.lora.config import LoraConfig
from factories.checkpoints import tiny_checkpoint
from factories.replicas import BASE_MODEL, learning, open_tiny_replica
from factories.server_thread import running_server
from factories.waiting import WAIT_S, wait_until

MESSAGES = [{"role": "user", "content": "Number 7?"}]
GREEDY = {"temperature": 0, "max_tokens": 16, "extra_body": {"ignore_eos": True}}
ROOMS = {"lora": LoraConfig(max_rank=4, num_slots=16)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def learner(checkpoint, tmp_path):
    with (
        closing(open_tiny_replica(checkpoint, tmp_path, learning(), **ROOMS)) as replica,
        running_server(backends_of(replica)) as server,
    ):
        yield Learner(replica, server.url)


class Learner:
    def __init__(self, replica, url):
        self.replica = replica
        self.url = url

    def client(self):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=120)

    def progress(self):
        return self.replica.client.snapshot()["adapters"]["tutor"]

    def has_promoted(self, count):
        return self.progress()["promotions"] >= count

    def post(self, path, **body):
        response = httpx.post(self.url + path, json=body, timeout=120)
        response.raise_for_status()
        return response.json()


def ask(client, model="tutor"):
    """Return (version, text); the header and the body must name the same one."""
    raw = client.chat.completions.with_raw_response.create(model=model, messages=MESSAGES, **GREEDY)
    answer = raw.parse()
    assert raw.headers["x-collm-version"] == answer.system_fingerprint
    return answer.system_fingerprint, answer.choices[0].message.content


def ask_by_stream(client):
    chunks = list(
        client.chat.completions.create(model="tutor", messages=MESSAGES, stream=True, **GREEDY)
    )
    (version,) = {chunk.system_fingerprint for chunk in chunks}
    return version, "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_answers_follow_what_is_learned_one_version_each(learner):
    """Eight clients ask without pause while versions come; equal versions give equal answers."""
    answers = []
    deadline_s = time.monotonic() + 4 * WAIT_S

    def goes_on():
        has_seen_enough = learner.has_promoted(8) and len(dict(answers)) >= 3
        return not has_seen_enough and time.monotonic() < deadline_s

    def ask_on(asks):
        with learner.client() as client:
            while goes_on():
                answers.append(asks(client))
            answers.append(asks(client))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask_on, (ask, ask_by_stream) * 4))
    texts = dict(answers)
    assert set(answers) == set(texts.items())
    assert len(texts) >= 3
    promoted = {row.version for row in learner.replica.data.decisions.history("tutor")}
    assert set(texts) - {"base"} <= promoted
    last = max(int(version.partition("@")[2] or 0) for version in texts)
    assert last >= 8
    assert learner.progress()["held_out_loss"] is not None
    wait_until(lambda: learner.replica.client.snapshot()["used_blocks"] == 0)


def test_base_answers_the_same_before_and_after_training(learner):
    with learner.client() as client:
        before = ask(client, BASE_MODEL)
        wait_until(lambda: learner.has_promoted(2))
        assert ask(client, BASE_MODEL) == before


def test_rollback_while_learning_serves_the_version_before_and_learning_goes_on(learner):
    wait_until(lambda: learner.has_promoted(2))
    answer = learner.post("/adapters/rollback", adapter="tutor")
    history = learner.replica.data.decisions.history("tutor")
    rollback = next(row for row in history if row.kind == "rollback")
    assert rollback.version == answer["version"]
    count = learner.progress()["promotions"]
    wait_until(lambda: learner.has_promoted(count + 1))
    with learner.client() as client:
        assert int(ask(client)[0].partition("@")[2]) > int(rollback.previous.partition("@")[2])


def test_old_version_promoted_by_hand_is_what_training_goes_on_from(learner):
    wait_until(lambda: learner.has_promoted(3))
    assert learner.post("/adapters/promote", version="tutor@1")["is_active"]
    count = learner.progress()["promotions"]
    wait_until(lambda: learner.has_promoted(count + 1))
    kinds = [(row.version, row.reason) for row in learner.replica.data.decisions.history("tutor")]
    assert ("tutor@1", "asked for") in kinds
    assert learner.progress()["error"] is None
