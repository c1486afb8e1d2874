"""Faults of learning that must not reach what is served, and shares of training time."""

from collections import Counter
from concurrent.futures import Future
from dataclasses import replace

import pytest

from collm.pacing.quanta import QuantumKind
from collm.replica.inbox import (
    AddJob,
    AddSamples,
    CancelJob,
    PauseJob,
    RemoveSample,
    ResumeJob,
)
from collm.store.jobs import JobStatus
from collm.training import examiner, stream
from collm.training.microbatch import pack
from factories.archives import job_record
from factories.checkpoints import tiny_checkpoint
from factories.deciders import held_out_report
from factories.engines import build_engine, random_tokens
from factories.replicas import build_rig, greedy, learnable_job
from factories.training import (
    RIGHT_ANSWER,
    WRONG_ANSWER,
    gate_config,
    job_config,
    lessons,
    make_job,
    mean_loss,
    taught_state,
)
from factories.versions import ask_for

HELD_OUT = lessons(8, RIGHT_ANSWER, seed=2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def rig(checkpoint):
    return build_rig(build_engine(checkpoint, num_blocks=600, num_slots=6))


def start(rig, config, training, held_out=HELD_OUT, **gate):
    """Begin a job on the loop that runs already; return it."""
    job = make_job(
        rig.engine.decoder,
        config,
        training=training,
        held_out=held_out,
        gate=gate_config(**({"min_samples": 6, "min_slice_samples": 4} | gate)),
    )
    rig.learner.receive(AddJob(job=job, record=job_record("ftjob-7", config.adapter), base=None))
    return job


def progress(rig, adapter="tutor"):
    return rig.learner.snapshot()[adapter]


def answer(rig, name):
    rig.submit(greedy(name, random_tokens(9, 3), "tutor", arrived_at_s=rig.clock.now_s()))
    rig.run_until(lambda: rig.has_ended(name))
    return rig.versions(name), rig.tokens(name)


def no_harm(rig, job):
    pass


def gradients_of(value):
    def spoil(rig, job):
        def on_run(quantum):
            if quantum.kind is QuantumKind.OPTIMIZER and quantum.index == 0:
                job._state.shadow.gradient.fill_(value)

        rig.trainer.on_run = on_run

    return spoil


@pytest.mark.parametrize(
    ("learning_rate", "taught", "spoil"),
    [
        (5e-3, WRONG_ANSWER, no_harm),
        (1e3, RIGHT_ANSWER, no_harm),
        (5e-3, RIGHT_ANSWER, gradients_of(float("nan"))),
        (5e-3, RIGHT_ANSWER, gradients_of(float("inf"))),
    ],
    ids=["flipped labels", "exploding rate", "NaN gradients", "infinite gradients"],
)
def test_what_learning_breaks_is_never_served(rig, learning_rate, taught, spoil):
    """What is served knows the answer; every candidate of such a job is refused on record."""
    good = taught_state(rig.engine.decoder, RIGHT_ANSWER)
    reply = ask_for(rig, "tutor", "good", good)
    rig.run_until(reply.done)
    before = answer(rig, "before")
    config = job_config("tutor", evaluate_every=2, learning_rate=learning_rate)
    job = start(rig, config, lessons(60, taught, seed=1))
    spoil(rig, job)
    rig.run_until(lambda: progress(rig)["step"] >= 16)
    assert answer(rig, "after") == before
    assert rig.store.active("tutor") == "tutor@good"
    assert progress(rig)["promotions"] == 1, "the good one"
    refusals = rig.archive.folder.refusals
    assert refusals
    assert all(adapter == "tutor" and numbers["step"] > 0 for adapter, _, numbers in refusals)
    assert "error" not in rig.archive.folder.changes["ftjob-7"]
    if spoil is not no_harm:
        assert progress(rig)["skipped_steps"] >= 16
        assert job._state.is_finite


def test_an_earlier_step_that_was_better_stays_served_when_the_last_one_is_worse(rig):
    config = job_config("tutor", evaluate_every=1, learning_rate=5e-3, total_steps=40)
    gate = {"min_samples": len(HELD_OUT), "max_worse": 1_000}
    job = start(rig, config, lessons(30, RIGHT_ANSWER, seed=1), **gate)
    rig.run_until(lambda: progress(rig)["promotions"] >= 2)
    rig.inbox.put(AddSamples("tutor", lessons(200, WRONG_ANSWER, seed=4)))
    row = rig.archive.folder.changes["ftjob-7"]
    rig.run_until(lambda: row["status"].has_ended)
    assert row["status"] is JobStatus.SUCCEEDED
    assert progress(rig)["step"] == 40
    losses = {
        version: mean_loss(rig.engine.decoder, HELD_OUT, state)
        for version, state in rig.archive.folder.states.items()
    }
    last = mean_loss(rig.engine.decoder, HELD_OUT, job._state.shadow.state())
    served = losses[rig.store.active("tutor")]
    assert served == min(losses.values())
    assert served < last


@pytest.mark.parametrize("message", [CancelJob, PauseJob])
def test_a_version_is_rolled_back_when_feedback_proves_it_worse_though_its_job_learns_no_more(
    rig, message
):
    good, bad = (
        taught_state(rig.engine.decoder, taught) for taught in (RIGHT_ANSWER, WRONG_ANSWER)
    )
    rig.run_until(ask_for(rig, "tutor", "good", good).done)
    start(rig, job_config("tutor"), lessons(60, RIGHT_ANSWER, seed=1))
    rig.learner.handle([replace(held_out_report(candidate=bad), adapter="tutor")])
    rig.run_until(lambda: rig.store.active("tutor") == "tutor@1")
    reply = Future()
    rig.inbox.put(message(adapter="tutor", job_id="ftjob-7", reply=reply))
    rig.run_until(reply.done)
    num_steps = progress(rig)["step"]
    rig.inbox.put(AddSamples("tutor", lessons(40, RIGHT_ANSWER, seed=9)))
    rig.run_until(lambda: rig.store.active("tutor") == "tutor@good")
    row = "rolled back to tutor@good: regression on live feedback"
    assert rig.archive.folder.log[-1] == row
    assert progress(rig)["step"] == num_steps, "nothing was learned meanwhile"


def test_a_fresh_sample_waits_for_no_step_but_is_in_the_next_micro_batch(rig, monkeypatch):
    dealt = record_packs(monkeypatch, stream)
    config = job_config("tutor", tokens_per_step=2_000, evaluate_every=100)
    start(rig, config, lessons(200, RIGHT_ANSWER, seed=1))
    rig.run_until(lambda: len(dealt) >= 2)
    rig.inbox.put(AddSamples("tutor", (feedback("fb-1"),)))
    num_before = len(dealt)
    rig.run_until(lambda: len(dealt) > num_before)
    assert "fb-1" in dealt[num_before]
    assert progress(rig)["step"] == 0, "it is in the midst of a step"


def feedback(sample_id, seed=5):
    (sample,) = lessons(1, RIGHT_ANSWER, seed=seed)
    return replace(sample, sample_id=sample_id)


def record_packs(monkeypatch, module):
    """Return a list that grows by the ids of each micro-batch which ``module`` packs."""
    packed = []

    def remember(samples):
        packed.append([sample.sample_id for sample in samples])
        return pack(samples)

    monkeypatch.setattr(module, "pack", remember)
    return packed


def test_a_deleted_sample_is_neither_learned_nor_replayed_nor_judged_by_again(rig, monkeypatch):
    """Also when the micro-batches since the last step come again, as after a pause."""
    dealt, judged = record_packs(monkeypatch, stream), record_packs(monkeypatch, examiner)
    config = job_config("tutor", tokens_per_step=150, evaluate_every=1)
    held_out = (*HELD_OUT, feedback("held-out", seed=6))
    start(rig, config, lessons(20, RIGHT_ANSWER, seed=1), held_out)
    fresh = tuple(feedback(f"fb-{number}", seed=10 + number) for number in range(6))
    rig.inbox.put(AddSamples("tutor", fresh))
    rig.run_until(lambda: {"fb-1", "fb-2"} <= {i for ids in dealt for i in ids})
    rig.run_until(lambda: any("held-out" in ids for ids in judged))
    gone = {"fb-1", "fb-2", "held-out"}
    for sample_id in gone:
        rig.inbox.put(RemoveSample("tutor", sample_id))
    for message in (PauseJob, ResumeJob):
        reply = Future()
        rig.inbox.put(message(adapter="tutor", job_id="ftjob-7", reply=reply))
        rig.run_until(reply.done)
    rig.inbox.put(AddSamples("tutor", fresh[1:2]))  # as if it had been on its way
    rig.step()
    dealt.clear()
    judged.clear()
    first_step = progress(rig)["step"]
    rig.run_until(lambda: progress(rig)["step"] >= first_step + 10)
    seen = Counter(sample_id for ids in (*dealt, *judged) for sample_id in ids)
    assert not gone & seen.keys()
    assert seen["fb-3"] >= 2, "what was not deleted comes again and again"


def test_adapters_learn_side_by_side_by_their_weights_while_requests_are_served(checkpoint):
    engine = build_engine(checkpoint, num_blocks=600, num_slots=7)
    weights = {"one": 1.0, "two": 2.0, "three": 3.0}
    rates = {"evaluate_every": 2, "learning_rate": 5e-3}
    jobs = [
        learnable_job(engine.decoder, job_config(name, weight=weight, **rates))
        for name, weight in weights.items()
    ]
    rig = build_rig(engine, jobs)
    num_asked = 0
    while len(rig.trainer.ran) < 1_200:
        if rig.engine.scheduler.num_running < 3:
            model = list(weights)[num_asked % 3]
            prompt = random_tokens(5, num_asked)
            now_s = rig.clock.now_s()
            rig.submit(greedy(f"r{num_asked}", prompt, model, arrived_at_s=now_s))
            num_asked += 1
        rig.step()
    rig.run_until(lambda: rig.has_ended(*(f"r{number}" for number in range(num_asked))))
    counts = Counter(quantum.adapter for quantum in rig.trainer.ran)
    for name, weight in weights.items():
        assert counts[name] / len(rig.trainer.ran) == pytest.approx(weight / 6, rel=0.12)
        assert progress(rig, name)["promotions"] >= 1
    assert not any(event.error for events in rig.events.values() for event in events)
