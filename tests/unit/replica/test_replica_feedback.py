"""From an answer to a sample of the adapter that gave it, and back out again."""

import asyncio

import pytest

from collm.errors import RequestError, StateError, UnknownObjectError
from collm.gate.trial import Verdict
from collm.lora.peft_folder import save_peft
from collm.lora.state import AdapterState
from collm.model.checkpoint import Checkpoint
from collm.replica import job_builder
from collm.replica.config import ReplicaConfig
from collm.server.adapter_backend import FeedbackRequest
from collm.store.data_folder import DataFolder
from collm.store.jobs import JobStatus
from collm.store.responses import StoredResponse
from collm.training.corpus import open_corpus
from collm.types import VersionId
from factories.checkpoints import tiny_checkpoint
from factories.engines import random_adapter
from factories.replicas import BASE_MODEL, learning, open_tiny_replica, publish_on_disk
from factories.waiting import wait_until

PROMPT = ({"role": "user", "content": "Number 7?"},)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(autouse=True)
def corpora(monkeypatch):
    """What the jobs that are built in the test learn from, in order."""
    seen = []

    def open_and_remember(*args, **fields):
        seen.append(open_corpus(*args, **fields))
        return seen[-1]

    monkeypatch.setattr(job_builder, "open_corpus", open_and_remember)
    return seen


@pytest.fixture
def opened(checkpoint, tmp_path):
    """Open a replica with some jobs; the one before is closed, the last at the end."""
    replicas = []

    def open_one(*jobs):
        for replica in replicas[-1:]:
            replica.close()
        config = ReplicaConfig(data_dir=str(tmp_path), threads=1, max_feedback_chars=200)
        replicas.append(open_tiny_replica(checkpoint, tmp_path, *jobs, replica=config))
        return replicas[-1]

    yield open_one
    for replica in replicas[-1:]:
        replica.close()


@pytest.fixture
def replica(opened):
    return opened(learning())


def record(
    replica, response_id="r1", adapter="tutor", answers=("It is odd.", "No."), prompt=PROMPT
):
    replica.feedback.record(
        StoredResponse(
            response_id=response_id,
            model=adapter,
            adapter=adapter,
            version=f"{adapter}@1",
            messages=prompt,
            answers=answers,
            created_at_s=0.0,
        )
    )


def do(call):
    return asyncio.run(asyncio.wait_for(call, 60))


def add(replica, response_id="r1", **fields):
    return do(replica.feedback.add(FeedbackRequest(response_id=response_id, **fields)))


def test_better_answer_becomes_a_sample_of_full_weight(replica, corpora):
    record(replica)
    feedback = add(replica, answer="It is odd, as 1 is.")
    assert (feedback.adapter, feedback.version, feedback.weight) == ("tutor", "tutor@1", 1.0)
    assert feedback.messages == (*PROMPT, {"role": "assistant", "content": "It is odd, as 1 is."})
    (kept,) = replica.data.feedback.samples("tutor")
    assert kept == feedback
    wait_until(lambda: knows(corpora[-1], feedback))


def knows(corpus, feedback):
    pools = (corpus.training.samples, corpus._held_out)
    return any(feedback.feedback_id in pool for pool in pools)


def test_earlier_answers_in_the_prompt_are_not_learned(replica, corpora):
    """What a user thinks of this answer says nothing of those that led to it."""
    earlier = {"role": "assistant", "content": "It is even."}
    record(replica, prompt=(*PROMPT, earlier, {"role": "user", "content": "Sure?"}))
    feedback = add(replica, answer="It is odd.")
    wait_until(lambda: knows(corpora[-1], feedback))
    sample = found(corpora[-1], feedback)
    pairs = zip(sample.token_ids, sample.is_supervised, strict=True)
    learned = [token_id for token_id, counts in pairs if counts]
    assert replica.client.tokenizer.decode(learned) == "It is odd."
    assert "It is even." in replica.client.tokenizer.decode(sample.token_ids)


def found(corpus, feedback):
    pools = (corpus.training.samples, corpus._held_out)
    (sample,) = [pool[feedback.feedback_id] for pool in pools if feedback.feedback_id in pool]
    return sample


@pytest.mark.parametrize(("rating", "weight"), [(1.0, 1.0), (0.8, 0.6), (0.75, 0.5)])
def test_rating_weighs_the_answer_that_was_served(replica, rating, weight):
    record(replica)
    feedback = add(replica, rating=rating, choice=1)
    assert feedback.weight == pytest.approx(weight)
    assert feedback.messages[-1] == {"role": "assistant", "content": "No."}


@pytest.mark.parametrize("rating", [0.0, 0.3, 0.5])
def test_middling_or_bad_rating_teaches_nothing(replica, rating):
    record(replica)
    feedback = add(replica, rating=rating)
    assert (feedback.messages, feedback.weight, feedback.rating) == (None, 0.0, rating)
    assert replica.data.feedback.samples("tutor") == ()


def test_worse_rating_takes_the_sample_of_the_better_one_out_of_training(replica, corpora):
    record(replica)
    good = add(replica, rating=0.9)
    wait_until(lambda: knows(corpora[-1], good))
    with pytest.raises(StateError, match=f"exists already: {good.feedback_id}"):
        add(replica, rating=0.9)
    bad = add(replica, rating=0.2)
    wait_until(lambda: not knows(corpora[-1], good))
    assert replica.data.feedback.samples("tutor") == ()
    assert do(replica.feedback.list()).items == (bad,)
    with pytest.raises(UnknownObjectError):
        do(replica.feedback.get(good.feedback_id))


def test_blank_answer_that_was_served_teaches_nothing(replica):
    record(replica, answers=(" \n",))
    assert add(replica, rating=1.0).weight == 0.0


def test_answer_counts_whatever_the_rating_of_the_served_one(replica):
    record(replica)
    assert add(replica, rating=0.0, answer="Odd.").weight == 1.0


@pytest.mark.parametrize(
    ("fields", "error", "reason"),
    [
        ({"response_id": "r9", "rating": 1.0}, UnknownObjectError, "'r9' does not exist"),
        ({"rating": 1.0, "choice": 2}, RequestError, "'choice' is 2; the answer has 2"),
        ({"rating": 1.0, "choice": -1}, RequestError, "'choice' is -1"),
        ({"answer": "x" * 192}, RequestError, "have 201 characters; feedback may teach up to 200"),
    ],
)
def test_what_cannot_be_learned_is_refused_and_not_kept(replica, fields, error, reason):
    record(replica)
    with pytest.raises(error, match=reason):
        add(replica, **fields)
    assert replica.data.feedback.list().items == ()


def test_sample_that_the_adapters_job_could_not_learn_is_refused(opened):
    replica = opened(learning(micro_batch_tokens=48))
    record(replica)
    with pytest.raises(RequestError, match="job cannot learn this: .* at most 48 fit") as raised:
        add(replica, answer="one two three " * 10)
    assert (raised.value.param, raised.value.code) == ("answer", "too_long")
    record(replica, "other", adapter="other")
    assert add(replica, "other", answer="one two three " * 10).adapter == "other"


def test_same_sample_again_is_refused_also_after_it_was_deleted(replica, corpora):
    record(replica)
    record(replica, "r2")
    first = add(replica, answer="Odd.")
    with pytest.raises(StateError, match=f"exists already: {first.feedback_id}"):
        add(replica, "r2", answer="Odd.")
    wait_until(lambda: knows(corpora[-1], first))
    deleted = do(replica.feedback.delete(first.feedback_id))
    assert (deleted.messages, deleted.is_deleted) == (None, True)
    wait_until(lambda: not knows(corpora[-1], first))
    with pytest.raises(StateError, match=f"was deleted: {first.feedback_id}"):
        add(replica, "r2", answer="Odd.")
    assert do(replica.feedback.delete(first.feedback_id)).is_deleted
    with pytest.raises(UnknownObjectError):
        do(replica.feedback.delete("fb-9"))


def test_deleted_feedback_takes_the_prompt_and_the_answers_along_from_the_whole_folder(
    replica, tmp_path
):
    record(replica, answers=("It is cobalt.", "No."))
    record(replica, "r2", answers=("It is ochre.",))
    feedback = add(replica, choice=1, answer="It is vermilion.")
    do(replica.feedback.delete(feedback.feedback_id))
    written = b"".join(path.read_bytes() for path in tmp_path.glob("collm.db*"))
    assert b"cobalt" not in written
    assert b"vermilion" not in written
    assert b"ochre" in written
    with pytest.raises(StateError, match="response 'r1' was deleted") as raised:
        add(replica, rating=1.0)
    assert raised.value.code == "deleted"
    assert add(replica, "r2", rating=1.0).weight == 1.0


def test_feedback_is_listed_by_adapter_and_read_by_id(replica):
    record(replica)
    record(replica, "other", adapter="other")
    first, second = add(replica, answer="Odd."), add(replica, "other", answer="Odd.")
    page = do(replica.feedback.list(adapter="tutor"))
    assert (page.items, page.has_more) == ((first,), False)
    assert do(replica.feedback.list(limit=1)).items == (second,)
    assert do(replica.feedback.get(second.feedback_id)) == second


def test_answers_beyond_what_may_wait_for_the_disk_are_dropped(replica, monkeypatch, caplog):
    caplog.set_level("CRITICAL")
    monkeypatch.setattr("collm.replica.feedback._MAX_PENDING", 2)
    monkeypatch.setattr(replica.feedback._archive, "write", lambda action: None)
    for number in range(3):
        record(replica, f"r{number}")
    assert len(replica.feedback._pending) == 2


def test_feedback_rolls_back_what_an_ended_job_promoted_also_after_a_restart(
    opened, checkpoint, tmp_path
):
    publish_on_disk(checkpoint, tmp_path, 1, num_promoted=1)
    base = Checkpoint(checkpoint)
    wild = random_adapter(base.spec, seed=2)
    wild = AdapterState(wild.layout, 8 * wild.flat)  # worse than whatever was before
    with DataFolder(tmp_path, max_versions=100, now_s=lambda: 0.0) as data:
        data.versions.publish(
            "tutor",
            "2",
            digest=wild.digest(),
            base_digest=base.digest,
            rank=wild.layout.rank,
            metadata={},
            write=lambda folder: save_peft(wild, folder, BASE_MODEL),
        )
        better = {"verdict": Verdict.BETTER.value}
        data.decisions.promote(VersionId("tutor@2"), "better on held-out samples", better)
        # Cancelled while its promotion was being noted, so that it knows of no result.
        job = data.jobs.add(adapter="tutor", settings={}, is_continuous=False)
        data.jobs.change(job.job_id, status=JobStatus.CANCELLED)
    replica = opened()

    def active():
        return [info.version for info in replica.client.versions() if info.is_active]

    assert active() == ["tutor@2"]
    for number in range(40):
        record(replica, f"r{number}")
        add(replica, f"r{number}", answer=f"It is odd, as {number} says.")
    wait_until(lambda: active() == ["tutor@1"])
    # In force first, on record after.
    row = wait_until(lambda: find(do(replica.adapters.history("tutor")), "rollback"))
    assert (row.version, row.previous) == ("tutor@1", "tutor@2")
    assert row.reason == "regression on live feedback"
    assert row.numbers["active_loss"] > row.numbers["previous_loss"]


def find(decisions, kind):
    return next((row for row in decisions if row.kind == kind), None)


def test_job_that_starts_later_learns_from_feedback_that_is_there(opened, corpora):
    replica = opened()
    record(replica)
    feedback = add(replica, answer="Odd.")
    gone = add(replica, answer="Even.")
    do(replica.feedback.delete(gone.feedback_id))
    opened(learning())
    assert knows(corpora[-1], feedback)
    assert not knows(corpora[-1], gone)
