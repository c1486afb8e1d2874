"""Training on a tiny random model: samples, jobs, and running them to a boundary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import torch

from collm.clock import ManualClock
from collm.gate.config import GENERAL, GateConfig
from collm.lora.bank import AdapterBank
from collm.lora.layout import lora_layout
from collm.lora.state import AdapterState, initial_state
from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.model.weights import load_weights
from collm.ops.quantized import Quantization
from collm.pacing.quanta import Quantum, QuantumKind
from collm.training.config import JobConfig
from collm.training.corpus import Corpus
from collm.training.events import (
    BaselineReport,
    HeldOutReport,
    Regression,
    TrainingEvent,
    TrainingSnapshot,
    TrainReport,
)
from collm.training.job import Job
from collm.training.microbatch import pack
from collm.training.passes import Activations, Pass
from collm.training.samples import TokenSample
from collm.training.trainer import Trainer
from collm.training.watches import Watches
from factories.checkpoints import Family, tiny_checkpoint

RIGHT_ANSWER, WRONG_ANSWER = (5, 6, 7, 8), (15, 16, 17, 18)
"""Answers: what users ask for, and what they do not."""


class TickingClock(ManualClock):
    """Moves by a second whenever it is read, so that every quantum takes one."""

    def now_s(self) -> float:
        self.advance(1.0)
        return super().now_s()


def tiny_decoder(
    folder: Path,
    family: Family = "llama",
    dtype: torch.dtype = torch.float32,
    *,
    quantization: Quantization | None = None,
    **fields: Any,
) -> Decoder:
    """Save a tiny random checkpoint below ``folder`` and load it as serving does."""
    checkpoint = Checkpoint(tiny_checkpoint(folder, family, **fields))
    weights = load_weights(checkpoint, checkpoint.spec, dtype, torch.device("cpu"), quantization)
    return Decoder(checkpoint.spec, weights, 512)


def make_sample(num_tokens: int, seed: int, prefix: Sequence[int] = ()) -> TokenSample:
    """Random tokens after ``prefix``; supervised in one or two runs that end with the sample."""
    random = Random(seed)
    rest = num_tokens - len(prefix)
    assert rest >= 2
    first = len(prefix) + random.randint(1, max(1, rest // 2))
    gap = random.randint(first + 1, num_tokens)
    return TokenSample(
        (*prefix, *(random.randint(3, 511) for _ in range(rest))),
        tuple(i >= first and not gap <= i < gap + 2 for i in range(num_tokens)),
    )


def make_samples(
    lengths: Sequence[int], seed: int = 0, prefix: Sequence[int] = (), **fields: Any
) -> tuple[TokenSample, ...]:
    """``fields`` are those of ``TokenSample``, the same for all."""
    samples = (make_sample(n, 1000 * seed + i, prefix) for i, n in enumerate(lengths))
    return tuple(replace(sample, **fields) for sample in samples)


def lessons(
    count: int, answer: Sequence[int], seed: int = 0, **fields: Any
) -> tuple[TokenSample, ...]:
    """Random prompts that all have the same answer, which a tiny model learns in a few steps."""
    random, samples = Random(seed), []
    for _ in range(count):
        prompt = tuple(random.randint(100, 511) for _ in range(random.randint(4, 9)))
        flags = (False,) * len(prompt) + (True,) * len(answer)
        samples.append(TokenSample((*prompt, *answer), flags, **fields))
    return tuple(samples)


def general_samples(lengths: Sequence[int], seed: int = 50) -> tuple[TokenSample, ...]:
    return make_samples(lengths, seed, slice=GENERAL)


def make_corpus(
    training: Sequence[TokenSample] | None = None,
    held_out: Sequence[TokenSample] | None = None,
    general: Sequence[TokenSample] = (),
    *,
    held_out_share: float | None = None,
    max_held_out: int = 512,
) -> Corpus:
    """Samples on the sides they are given for, or ``training`` split by ``held_out_share``."""
    if training is None:
        training = make_samples([9, 14, 20, 11, 17, 8, 25, 13], seed=1)
    if held_out is None and held_out_share is None:
        held_out = make_samples([10, 15, 12], seed=2)
    return Corpus(
        training,
        held_out_share=held_out_share or 0.0,
        max_held_out=max_held_out,
        validation=held_out,
        general=general,
    )


def gate_config(**fields: Any) -> GateConfig:
    """A gate that decides on few samples and may evaluate as much as it likes."""
    defaults: dict[str, Any] = {
        "error": 0.2,
        "min_samples": 3,
        "min_slice_samples": 3,
        "evaluation_share": 1.0,
    }
    return GateConfig(**(defaults | fields))


def random_state(decoder: Decoder, rank: int, seed: int = 0) -> AdapterState:
    """An adapter whose B is not zero, as in the midst of training."""
    state = initial_state(lora_layout(decoder.spec, rank), seed)
    generator = torch.Generator().manual_seed(seed + 1)
    flat = state.flat.clone()
    for factors in state.layout.views(flat):
        factors.b.normal_(0.0, 0.1, generator=generator)
    return AdapterState(state.layout, flat)


def taught_state(decoder: Decoder, answer: Sequence[int]) -> AdapterState:
    """An adapter that learned to give ``answer`` to anything."""
    config = job_config(learning_rate=1e-2)
    corpus = make_corpus(lessons(30, answer, seed=70), ())
    job = make_job(decoder, config, corpus=corpus)
    run_until(Trainer([job], ManualClock()), steps(15))
    return job._state.shadow.state()


def fresh_state(decoder: Decoder, rank: int) -> AdapterState:
    return initial_state(lora_layout(decoder.spec, rank), 0)


@dataclass(frozen=True)
class FixedSizes:
    """Bounds for quanta that never change."""

    tokens: int = 10_000
    loss_rows: int = 16

    def max_size(self, kind: QuantumKind, limit_s: float) -> int:
        is_loss = kind in (QuantumKind.LOSS, QuantumKind.EVALUATE_LOSS)
        return self.loss_rows if is_loss else self.tokens


def job_config(adapter: str = "a", **fields: Any) -> JobConfig:
    """A job that steps after every 60 tokens or so and evaluates seldom."""
    defaults: dict[str, Any] = {
        "rank": 4,
        "alpha": 8.0,
        "warmup_steps": 0,
        "tokens_per_step": 60,
        "micro_batch_tokens": 40,
        "evaluate_every": 1_000,
    }
    return JobConfig(adapter=adapter, data="test", **(defaults | fields))


def make_job(
    decoder: Decoder,
    config: JobConfig | None = None,
    *,
    start: AdapterState | None = None,
    training: Sequence[TokenSample] | None = None,
    held_out: Sequence[TokenSample] | None = None,
    corpus: Corpus | None = None,
    gate: GateConfig | None = None,
    sizes: FixedSizes | None = None,
    activations: Activations = "keep",
) -> Job:
    """A job on random samples; ``corpus`` goes before ``training`` and ``held_out``."""
    config = config or job_config()
    return Job(
        config,
        decoder,
        start or fresh_state(decoder, config.rank),
        corpus or make_corpus(training, held_out),
        gate or gate_config(),
        sizes or FixedSizes(),
        0.04,
        activations,
    )


def make_watches(decoder: Decoder, error: float = 0.01) -> Watches:
    return Watches(decoder, FixedSizes(), 0.04, error)


def all_that_is_due(trainer: Trainer) -> list[TrainingEvent]:
    """Run quanta until nothing is left; return the events."""
    return run_until(trainer, lambda _: False)


def regressions(events: Sequence[TrainingEvent]) -> list[Regression]:
    return [event for event in events if isinstance(event, Regression)]


def run_until(
    trainer: Trainer, is_done: Callable[[list[TrainingEvent]], bool], limit: int = 5_000
) -> list[TrainingEvent]:
    """Run quanta until ``is_done(events so far)`` or nothing is left; return the events."""
    events: list[TrainingEvent] = []
    for _ in range(limit):
        if is_done(events) or (quantum := trainer.peek()) is None:
            return events
        events += trainer.run(quantum)
    raise AssertionError(f"not done after {limit} quanta")


def run_quanta(
    trainer: Trainer, is_done: Callable[[Quantum], bool], limit: int = 5_000
) -> list[Quantum]:
    """Run quanta until the next one is ``is_done``; return those that ran."""
    done: list[Quantum] = []
    while (quantum := trainer.peek()) is not None and not is_done(quantum):
        trainer.run(quantum)
        done.append(quantum)
        assert len(done) < limit, f"not done after {limit} quanta"
    return done


def steps(count: int) -> Callable[[list[TrainingEvent]], bool]:
    """For ``run_until``: whether so many optimizer steps were reported."""
    return lambda events: sum(isinstance(e, TrainReport) for e in events) >= count


def reports(events: Sequence[TrainingEvent]) -> list[TrainReport]:
    return [event for event in events if isinstance(event, TrainReport)]


def evaluations(events: Sequence[TrainingEvent]) -> list[HeldOutReport]:
    return [event for event in events if isinstance(event, HeldOutReport)]


def baselines(events: Sequence[TrainingEvent]) -> list[BaselineReport]:
    return [event for event in events if isinstance(event, BaselineReport)]


def take_snapshot(trainer: Trainer, adapter: str = "a") -> TrainingSnapshot:
    """Run to the next optimizer boundary and return the snapshot taken there, new or not."""
    for job in trainer._jobs.values():
        job._snapshots.outdated()
    trainer.request_snapshots()

    def is_taken(events: list[TrainingEvent]) -> bool:
        return any(isinstance(e, TrainingSnapshot) and e.adapter == adapter for e in events)

    (snapshot,) = (
        e
        for e in run_until(trainer, is_taken)
        if isinstance(e, TrainingSnapshot) and e.adapter == adapter
    )
    return snapshot


def sample_losses(
    decoder: Decoder, samples: Sequence[TokenSample], state: AdapterState
) -> list[float]:
    """Mean nats per supervised token of each sample under a state as it would be served."""
    bank = AdapterBank(state.layout, 1, torch.float32, torch.device("cpu"))
    bank.load(0, state)
    run = Pass(decoder, pack(samples), "a", 1_000)
    for _ in run.evaluate(lambda layer, target: bank.factors(layer, target).dense(0)):
        pass
    return run.loss.means()


def mean_loss(decoder: Decoder, samples: Sequence[TokenSample], state: AdapterState) -> float:
    """Mean over the samples of ``sample_losses``."""
    return fmean(sample_losses(decoder, samples, state))


def token_loss(decoder: Decoder, samples: Sequence[TokenSample], state: AdapterState) -> float:
    """Weighted mean over supervised tokens, as a training step is normalized."""
    losses = sample_losses(decoder, samples, state)
    counts = [sample.weight * sample.num_supervised for sample in samples]
    return sum(n * loss for n, loss in zip(counts, losses, strict=True)) / sum(counts)


def rebase(trainer: Trainer, adapter: str, old: AdapterState | None, new: AdapterState) -> None:
    """Rebase an adapter and run the quanta that carry its shadow over."""
    trainer.rebase(adapter, old, new)
    while (quantum := trainer.peek()) and quantum.kind is QuantumKind.REBASE:
        trainer.run(quantum)
