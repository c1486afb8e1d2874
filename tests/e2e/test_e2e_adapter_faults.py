"""Faults reported of comparable systems, over HTTP against a replica of a tiny model.

``docs/decisions/faults-of-others.md`` lists them all, and where each is tested.
"""

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from collm.lora.peft_folder import load_peft, save_peft
from collm.model.checkpoint import Checkpoint
from collm.replica import foreign_folder
from collm.training import stream as training_stream
from collm.training.microbatch import pack
from factories.checkpoints import tiny_checkpoint
from factories.engines import random_adapter
from factories.replicas import BASE_MODEL, learning, publish_on_disk
from factories.served_replica import served_replica
from factories.versions import answer_alone
from factories.waiting import WAIT_S, wait_until

PROMPT = "The quick brown fox jumps over the lazy dog while"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def imports(tmp_path):
    folder = tmp_path / "imports"
    folder.mkdir()
    return folder


@pytest.fixture
def served(checkpoint, tmp_path, imports):
    """Nothing is loaded yet."""
    with served_replica(checkpoint, tmp_path / "data", import_root=imports) as served:
        yield served


@pytest.fixture
def put(checkpoint, imports):
    """Call ``put(seed)`` for a folder with ``random_adapter(seed=seed)`` that may be loaded."""
    spec = Checkpoint(checkpoint).spec

    def write(seed):
        folder = imports / f"seed-{seed}"
        if not folder.exists():
            folder.mkdir()
            save_peft(random_adapter(spec, seed=seed), folder, BASE_MODEL)
        return folder

    return write


@pytest.fixture
def expected(checkpoint, served):
    """Call ``expected(seed)`` for the text that this adapter, or the base, answers alone."""
    tokenizer = served.replica.client.tokenizer

    def text(seed, prompt=PROMPT, max_tokens=12):
        tokens = answer_alone(checkpoint, seed, tokenizer.encode(prompt), max_tokens)
        detokenizer = tokenizer.detokenizer()
        return "".join(map(detokenizer.push, tokens)) + detokenizer.flush()

    return text


def ok(response):
    assert response.status_code == 200, response.text
    return response


def test_name_that_is_loaded_again_answers_by_the_new_content_alone(served, put, expected):
    """The same prompt again and again, so that the prefix cache is full of the old content's."""
    for seed in (1, 2, 3):
        ok(served.load("a", put(seed), load_inplace=seed > 1))
        for _ in range(2):
            assert served.text("a", PROMPT) == expected(seed)
    served.post("/v1/unload_lora_adapter", lora_name="a")
    ok(served.load("a", put(2)))
    assert served.text("a", PROMPT) == expected(2)


def test_what_is_loaded_is_read_from_disk_no_more(served, put, expected):
    ok(served.load("a", put(1)))
    shutil.rmtree(put(1))
    shutil.rmtree(served.replica.data.versions.get("a@1").folder)
    for _ in range(3):
        assert served.text("a", PROMPT) == expected(1)


def test_unload_after_answers_with_several_choices_returns_and_gives_everything_back(served, put):
    ok(served.load("a", put(1)))
    for _ in range(3):
        assert len(served.complete("a", PROMPT, n=3, temperature=1.0).choices) == 3
    stream = served.complete("a", PROMPT, n=3, max_tokens=60, stream=True)
    next(stream)
    served.post("/v1/unload_lora_adapter", lora_name="a")
    reasons = [c.finish_reason for chunk in stream for c in chunk.choices if c.finish_reason]
    assert reasons == ["length"] * 3
    wait_until(lambda: not served.replica.client.versions() and served.used_blocks() == 0)
    with pytest.raises(openai.NotFoundError):
        served.complete("a")


def test_requests_are_served_while_adapters_load(served, put, expected, monkeypatch):
    """Loads that hang on a slow disk, more of them than there are threads to wait in."""
    ok(served.load("a", put(1)))
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slow_load(*args):
        begun.release()
        assert go_on.wait(600)
        return load_peft(*args)

    monkeypatch.setattr(foreign_folder, "load_peft", slow_load)
    num_loads = min(32, (os.cpu_count() or 1) + 4) + 1  # asyncio's own threads, and one more
    with ThreadPoolExecutor(num_loads) as pool:
        try:
            loads = [pool.submit(served.load, f"b{n}", put(2)) for n in range(num_loads)]
            for _ in range(num_loads - 1):
                assert begun.acquire(timeout=WAIT_S)
            assert served.text("a", PROMPT) == expected(1)
            assert served.text(BASE_MODEL, PROMPT) == expected(None)
            with pytest.raises(openai.BadRequestError, match="context length"):
                served.complete("a", "a long text " * 2_000)
        finally:
            go_on.set()
        # Slots are fewer than adapters: some are refused, with the reason.
        statuses = {load.result(WAIT_S).status_code for load in loads}
    assert statuses <= {200, 409}
    assert served.text("a", PROMPT) == expected(1)


def test_stream_of_an_adapter_that_is_left_early_returns_and_lets_go(served, put):
    ok(served.load("a", put(1)))
    for _ in range(3):
        stream = served.complete("a", PROMPT, max_tokens=200, stream=True)
        next(stream)
        stream.close()
    served.post("/v1/unload_lora_adapter", lora_name="a")
    wait_until(lambda: not served.replica.client.versions() and served.used_blocks() == 0)


def test_stream_goes_on_under_its_version_while_newer_ones_load(served, put, expected):
    ok(served.load("a", put(1)))
    stream = served.complete("a", PROMPT, max_tokens=200, stream=True)
    text, versions = "", set()
    for number, chunk in enumerate(stream):
        text += "".join(choice.text for choice in chunk.choices)
        versions.add(chunk.system_fingerprint)
        if number in (1, 3, 5):
            ok(served.load("a", put(number + 1), load_inplace=True))
    assert versions == {"a@1"}
    assert text == expected(1, max_tokens=200)
    assert served.text("a", PROMPT) == expected(6)


def test_import_pin_and_promotion_end_no_request(served, put, expected):
    ok(served.load("a", put(1)))
    stream = served.complete("a", PROMPT, max_tokens=200, stream=True)
    text = next(stream).choices[0].text
    files = [path.read_bytes() for path in sorted(put(2).iterdir())]
    ok(served.import_files("a", *files, promote=False))
    served.post("/adapters/pin", version="a@2")
    assert served.text("a@2", PROMPT) == expected(2)
    served.post("/adapters/unpin", version="a@2")
    served.post("/adapters/promote", version="a@2")
    text += "".join(choice.text for chunk in stream for choice in chunk.choices)
    assert text == expected(1, max_tokens=200)


def test_concurrent_loads_of_one_name_load_it_once(served, put, expected):
    folder = put(1)
    with ThreadPoolExecutor(6) as pool:
        plain = [pool.submit(served.load, "a", folder) for _ in range(6)]
        assert sorted(load.result().status_code for load in plain) == [200] + [400] * 5
        in_place = [pool.submit(served.load, "a", folder, load_inplace=True) for _ in range(6)]
        assert {load.result().status_code for load in in_place} == {200}
        mixed = [
            pool.submit(served.load, "a", put(seed), load_inplace=True) for seed in (2, 3, 4, 5)
        ]
        assert {load.result().status_code for load in mixed} == {200}
    assert len(served.active("a")) == 1
    assert served.text("a", PROMPT) in {expected(seed) for seed in (2, 3, 4, 5)}
    wait_until(lambda: len(served.replica.client.versions()) == 2)  # the active and the held one


# Feedback


def test_deleted_feedback_is_in_no_later_micro_batch_not_even_after_a_restart(
    checkpoint, tmp_path, monkeypatch
):
    dealt = []

    def remember(samples):
        dealt.append({sample.sample_id for sample in samples})
        return pack(samples)

    monkeypatch.setattr(training_stream, "pack", remember)
    publish_on_disk(checkpoint, tmp_path, 1, num_promoted=1)
    with served_replica(checkpoint, tmp_path, learning()) as served:
        deleted = give_feedback(served, "It is odd, as 1 is.")
        kept = give_feedback(served, "It is as odd as 3.")
        wait_until(lambda: {deleted, kept} <= set().union(*dealt))
        ok(served.http.delete(f"/v1/feedback/{deleted}"))
        num_dealt = len(dealt) + 1  # one may have been packed before the loop was told
        wait_until(lambda: times(kept, dealt[num_dealt:]) >= 2)
        assert times(deleted, dealt[num_dealt:]) == 0
    dealt.clear()
    with served_replica(checkpoint, tmp_path, learning()):
        wait_until(lambda: times(kept, dealt) >= 2)
        assert times(deleted, dealt) == 0


def times(sample_id, dealt):
    """How many micro-batches have it; after the second one, each sample has had its turn."""
    return sum(sample_id in sample_ids for sample_ids in dealt)


def give_feedback(served, answer):
    chat = served.openai.chat.completions.create(
        model="tutor", messages=[{"role": "user", "content": "Number 7?"}], max_tokens=4
    )
    return served.post("/v1/feedback", response_id=chat.id, answer=answer).json()["id"]
