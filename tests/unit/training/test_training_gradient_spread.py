"""What a job says of its gradients' spread, beside gradients taken one micro-batch at a time."""

from pathlib import Path

import pytest
import torch

from collm.clock import ManualClock
from collm.lora.shadow import Shadow
from collm.model.decoder import Decoder
from collm.pacing.quanta import QuantumKind
from collm.training.microbatch import pack
from collm.training.passes import Pass
from collm.training.trainer import Trainer
from collm.types import GradientSums
from factories.training import (
    job_config,
    make_job,
    make_samples,
    random_state,
    reports,
    run_quanta,
    run_until,
    steps,
    tiny_decoder,
)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder: Path = tmp_path_factory.mktemp("spread")
    return tiny_decoder(folder, "mistral")


def test_the_norm_of_what_a_micro_batch_adds_is_that_of_its_gradient(decoder: Decoder) -> None:
    shadow = Shadow(random_state(decoder, 4), 8.0, torch.float32, torch.device("cpu"))
    batches = [pack(make_samples([9, 14], seed=1)), pack(make_samples([20], seed=2))]
    for number, batch in enumerate(batches):
        before = shadow.gradient.clone()
        shadow.added_square.zero_()
        for _ in Pass(decoder, batch, "a", 16).learn(shadow, "keep" if number else "recompute"):
            pass
        expected = float((shadow.gradient - before).square().sum())
        assert float(shadow.added_square) == pytest.approx(expected, rel=1e-4)


def test_a_step_reports_the_spread_of_its_micro_batches(decoder: Decoder) -> None:
    """Micro-batches of unequal weight, over explicit gradients."""
    training = make_samples([10, 30, 16, 18], seed=3, weight=2.0)
    start = random_state(decoder, 4)
    config = job_config(tokens_per_step=60, micro_batch_tokens=40)
    job = make_job(decoder, config, start=start, training=training)
    batches = []
    learn = job._stream.next
    job._stream.next = lambda bound: batches.append(learn(bound)) or batches[-1]
    (report,) = reports(run_until(Trainer([job], ManualClock()), steps(1)))
    assert len(batches) >= 2
    gradients, weights = [], []
    for batch in batches:
        shadow = Shadow(start, config.alpha, torch.float32, torch.device("cpu"))
        for _ in Pass(decoder, batch, "a", 16).learn(shadow, "keep"):
            pass
        gradients.append(shadow.gradient / batch.supervised_weight)
        weights.append(batch.supervised_weight)
    mean = sum(w * g for w, g in zip(weights, gradients, strict=True)) / sum(weights)
    spread = sum(
        w * float((g - mean).square().sum()) for w, g in zip(weights, gradients, strict=True)
    )
    num_tokens = report.num_tokens
    assert report.gradient.num_steps == 1
    assert report.gradient.num_differences == len(batches) - 1
    assert report.gradient.spread == pytest.approx(spread * num_tokens / sum(weights), rel=1e-3)
    assert report.gradient.square == pytest.approx(float(mean.square().sum()), rel=1e-3)
    assert report.gradient.inverse_tokens == 1.0 / num_tokens


def test_a_dropped_micro_batch_leaves_no_trace_in_the_next_step(decoder: Decoder) -> None:
    training = make_samples([30, 30, 30, 30], seed=4)
    found = []
    for is_interrupted in (False, True):
        job = make_job(decoder, job_config(), start=random_state(decoder, 4), training=training)
        trainer = Trainer([job], ManualClock())
        if is_interrupted:
            run_quanta(trainer, lambda q: q.kind is QuantumKind.BACKWARD)
            assert job.num_steps == 0
            trainer._drop_program("a")
        (report,) = reports(run_until(trainer, steps(1)))
        found.append(report.gradient)
    assert found[0].num_steps == 1
    assert found[1] == found[0]


def test_one_micro_batch_says_nothing(decoder: Decoder) -> None:
    config = job_config(tokens_per_step=30, micro_batch_tokens=40)
    job = make_job(decoder, config, training=make_samples([30, 35], seed=5))
    (report,) = reports(run_until(Trainer([job], ManualClock()), steps(1)))
    assert report.gradient == GradientSums()


def test_one_step_in_four_is_cut_in_two_where_it_would_be_one_micro_batch(
    decoder: Decoder,
) -> None:
    config = job_config(tokens_per_step=40, micro_batch_tokens=44)
    training = make_samples([10] * 40, seed=6)
    job = make_job(decoder, config, training=training, held_out=())
    found = reports(run_until(Trainer([job], ManualClock()), steps(8)))
    assert [one.gradient.num_differences for one in found] == [1, 0, 0, 0, 1, 0, 0, 0]
    assert {one.num_tokens for one in found} == {40}


def test_steps_of_several_micro_batches_are_not_cut_further(decoder: Decoder) -> None:
    config = job_config(tokens_per_step=80, micro_batch_tokens=40)
    training = make_samples([10] * 40, seed=6)
    job = make_job(decoder, config, training=training, held_out=())
    found = reports(run_until(Trainer([job], ManualClock()), steps(4)))
    assert [one.gradient.num_differences for one in found] == [1, 1, 1, 1]
