"""Training beside serving: what is served stays bit-identical."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from collm.clock import ManualClock
from collm.training.trainer import Trainer
from factories.checkpoints import tiny_checkpoint
from factories.engines import Engine, build_engine, random_tokens, teacher_forced_logits
from factories.training import (
    evaluations,
    job_config,
    make_job,
    random_state,
    rebase,
    run_until,
    steps,
)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return build_engine(tiny_checkpoint(tmp_path, "llama"), dtype=request.param)


def bank_tensors(engine: Engine) -> list[Tensor]:
    layout = engine.bank.layout
    return [
        tensor.clone()
        for layer in range(layout.num_layers)
        for target in layout.targets
        for factors in [engine.bank.factors(layer, target.name)]
        for tensor in (factors.a, factors.b)
    ]


def served_logits(engine: Engine, model: str) -> Tensor:
    (logits,) = teacher_forced_logits(engine, [random_tokens(30, seed=1)], models=[model])
    return logits


def test_training_leaves_active_outputs_and_every_slot_bit_identical(engine: Engine) -> None:
    states = [random_state(engine.decoder, 4, seed) for seed in (0, 1)]
    for name, state in zip("ab", states, strict=True):
        engine.publish(name, "1", state)
    slots, logits = bank_tensors(engine), [served_logits(engine, name) for name in ("a", "base")]
    job = make_job(engine.decoder, job_config(evaluate_every=2), start=states[0])
    trainer = Trainer([job], ManualClock())
    assert len(evaluations(run_until(trainer, steps(5)))) == 2
    rebase(trainer, "a", states[0], states[1])
    run_until(trainer, steps(2))
    assert all(torch.equal(a, b) for a, b in zip(slots, bank_tensors(engine), strict=True))
    assert torch.equal(served_logits(engine, "a"), logits[0])
    assert torch.equal(served_logits(engine, "base"), logits[1])
    assert not torch.equal(job._state.shadow.state().flat, states[0].flat)
