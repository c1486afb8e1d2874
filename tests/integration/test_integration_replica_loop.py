"""Serving and learning in one step loop, on a tiny engine and a clock that the test owns."""

from concurrent.futures import Future
from dataclasses import replace
from random import Random

import pytest

from collm.lora.store import version_id
from collm.pacing.quanta import QuantumKind
from collm.replica.inbox import Published, Rollback, Submit
from collm.types import BASE
from factories.checkpoints import tiny_checkpoint
from factories.engines import build_engine, generate, random_adapter, random_tokens
from factories.replicas import build_rig, greedy, learnable_job
from factories.training import job_config


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


def learning_rig(checkpoint, num_slots=6, **fields):
    """A rig whose job finds something better after most of its steps."""
    engine = build_engine(checkpoint, num_blocks=600, num_slots=num_slots)
    config = job_config("tutor", evaluate_every=1, learning_rate=5e-3, **fields)
    return build_rig(engine, [learnable_job(engine.decoder, config)])


def frozen_answer(checkpoint, rig, version, prompt, max_tokens):
    """What a version alone, loaded into an engine of its own, answers."""
    engine = build_engine(checkpoint)
    model = "base"
    if version != BASE:
        adapter, label = version.split("@")
        model = engine.publish(adapter, label, rig.archive.folder.states[version])
    return generate(engine, [greedy("alone", prompt, model, max_tokens=max_tokens)])["alone"]


def publish_from_outside(rig, label, seed):
    """Ask for a random version of what the rig's job learns."""
    state = random_adapter(rig.engine.spec, seed=seed)
    version = version_id("tutor", label)
    rig.archive.folder.states[version] = state
    message = Published(
        adapter="tutor",
        version=version,
        state=state,
        metadata={},
        numbers={},
        is_local=False,
        reply=Future(),
    )
    rig.inbox.put(message)


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_request_that_comes_in_the_midst_of_a_quantum_waits_for_that_one_alone(checkpoint, is_busy):
    """One comes in every quantum, whatever its kind; the one it comes in is the only one."""
    rig = learning_rig(checkpoint)
    arrivals = []

    def arrive(quantum):
        name = f"r{len(arrivals)}"
        arrivals.append((name, quantum.kind, len(rig.trainer.ran)))
        if len(arrivals) == 100:
            publish_from_outside(rig, "new-basis", seed=1)
        rig.inbox.put(Submit((greedy(name, random_tokens(3, len(arrivals)), max_tokens=1),)))

    if is_busy:
        rig.submit(greedy("busy", [9, 9], max_tokens=250))
    rig.trainer.on_run = arrive
    rig.run_until(lambda: {kind for _, kind, _ in arrivals} >= set(QuantumKind), max_steps=1_500)
    rig.trainer.on_run = lambda quantum: None
    rig.run_until(lambda: rig.has_ended(*(name for name, _, _ in arrivals)))
    waited = [rig.quanta_before[name] - num_before for name, _, num_before in arrivals]
    assert set(waited) == {1}


def test_checkpoint_is_taken_though_serving_leaves_no_time_for_training(checkpoint):
    rig = learning_rig(checkpoint)

    def step():
        return rig.learner.snapshot()["tutor"]["step"]

    rig.run_until(lambda: step() >= 2)
    rig.step()
    taken_at = step()
    rig.archive.snapshots.clear()
    rig.engine.prefill_limit.num_tokens = 2
    rig.submit(*(greedy(f"r{number}", random_tokens(150, number)) for number in range(3)))
    rig.run_until(lambda: rig.engine.scheduler.num_running > 0)
    rig.trainer.ran.clear()
    rig.clock.advance(1.1)  # past the interval between checkpoints
    for _ in range(20):
        rig.step()
    assert {quantum.kind for quantum in rig.trainer.ran} == {QuantumKind.SNAPSHOT}
    assert len(rig.trainer.ran) == 1, "it is one quantum, and nothing changed since"
    (snapshot,) = rig.archive.snapshots
    assert int(snapshot.meta["num_steps"]) >= taken_at


def test_training_leaves_what_is_served_bit_identical(checkpoint):
    """The same prompt under the same version, with logprobs, before and after optimizer steps."""
    rig = learning_rig(checkpoint, num_slots=6)
    rig.store.try_stage("fixed", "fixed@1", random_adapter(rig.engine.spec, seed=3))
    rig.store.promote("fixed@1")
    # No prefix cache hit may stand in for computing it again.
    prompts = {"base": random_tokens(9, 1), "fixed": random_tokens(9, 2)}

    def ask(round_number):
        seen = {}
        for model, prompt in prompts.items():
            name = f"{model} {round_number}"
            request = greedy(name, prompt, model, max_tokens=6)
            rig.engine.blocks.evict_version(BASE if model == "base" else "fixed@1")
            rig.submit(with_logprobs(request))
            rig.run_until(lambda name=name: rig.has_ended(name))
            seen[model] = [(e.token_id, e.logprobs) for e in rig.events[name]]
        return seen

    before = ask(1)
    rig.run_until(lambda: rig.learner.snapshot()["tutor"]["step"] >= 5)
    assert ask(2) == before


def with_logprobs(request):
    return replace(request, sampling=replace(request.sampling, logprobs=5))


class Storm:
    """32 streams at all times, while versions come from training, from outside, and go back."""

    def __init__(self, rig, num_requests):
        self.rig = rig
        self.prompts = {}
        self._num_requests = num_requests
        self._draw = Random(1)
        # Few different prompts, so that the prefix cache is asked for them under many versions.
        self._pool = [random_tokens(self._draw.randint(3, 20), seed) for seed in range(6)]
        self._running = set()

    def run(self):
        for step in range(2_000):
            self._running = {name for name in self._running if not self.rig.has_ended(name)}
            while len(self._running) < 32 and len(self.prompts) < self._num_requests:
                self._submit_one()
            if not self._running:
                return
            if step % 4 == 0:
                publish_from_outside(self.rig, f"from-outside-{step}", seed=step)
            if step % 23 == 22:
                self.rig.inbox.put(Rollback("tutor", Future()))
            self.rig.step()
        raise AssertionError(f"{self._running} have not ended")

    def _submit_one(self):
        name = f"r{len(self.prompts)}"
        prompt, max_tokens = self._draw.choice(self._pool), self._draw.randint(4, 24)
        self.prompts[name] = (prompt, max_tokens)
        self._running.add(name)
        self.rig.submit(greedy(name, prompt, "tutor", max_tokens=max_tokens))


def test_swap_storm_keeps_every_answer_on_the_version_that_it_began_with(checkpoint):
    rig = learning_rig(checkpoint, num_slots=12, tokens_per_step=20)
    rig.run_until(lambda: rig.store.active("tutor") is not None)
    storm = Storm(rig, num_requests=300)
    storm.run()
    answers = {}
    for name, (prompt, max_tokens) in storm.prompts.items():
        (version,) = rig.versions(name)
        key = (version, tuple(prompt))
        if key not in answers:
            answers[key] = frozen_answer(checkpoint, rig, version, prompt, 24)
        assert rig.tokens(name) == answers[key][:max_tokens], (name, version)
    versions = {version for version, _ in answers}
    assert len(versions) >= 15
    assert any("outside" in version for version in versions)
    assert any("outside" not in version for version in versions)
    rig.engine.assert_idle()
    # Active and held stay, and perhaps one that is staged.
    assert rig.engine.bank.num_slots - rig.store.num_free_slots <= 3
