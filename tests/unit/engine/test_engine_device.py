"""Nothing that a step or a micro-batch is computed with stays behind on the CPU.

torch's meta device stands for any other: its tensors have shapes and no values. No GPU is needed
for that, and nothing is said of one: neither of its results nor of its speed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from collm.lora.shadow import Shadow
from collm.training.microbatch import MicroBatch, pack
from collm.training.passes import Activations, Pass
from factories.checkpoints import Family, tiny_checkpoint
from factories.engines import Engine, build_engine, random_adapter, teacher_forced_logits
from factories.training import make_samples

META = torch.device("meta")
MAY_CROSS = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
PREFIX = tuple(range(200, 212))


class OneDevice(TorchDispatchMode):
    """Fails when an operation reads tensors of two devices; meta kernels do not all look."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        devices = {tensor.device for tensor in tensors if tensor.ndim > 0}
        assert len(devices) <= 1 or func in MAY_CROSS, (func, devices)
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=["llama", "mistral", "qwen3"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    family: Family = request.param
    folder = tiny_checkpoint(tmp_path, family)
    with OneDevice():
        yield build_engine(folder, dtype=torch.bfloat16, device=META)


@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_steps_are_computed_on_the_device_of_the_caches(engine: Engine, chunk: int) -> None:
    engine.publish("a", "1", random_adapter(engine.spec))
    prompts = [list(range(3, 3 + length)) for length in (12, 5)]
    for logits in teacher_forced_logits(engine, prompts, chunk=chunk, models=["a", "base"]):
        assert logits.device == META


def make_shadow(engine: Engine) -> Shadow:
    return Shadow(random_adapter(engine.spec), 8.0, torch.bfloat16, META)


BATCHES = {
    "together": pack(make_samples([20, 40, 40], prefix=PREFIX)),
    "in pieces": pack(make_samples([300])),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("activations", ["keep", "recompute"])
def test_micro_batches_are_learned_from_on_the_device_of_the_weights(
    engine: Engine, batch: MicroBatch, activations: Activations
) -> None:
    run = Pass(engine.decoder, batch, "a", 16, 128)
    for _ in run.learn(make_shadow(engine), activations):
        pass
    assert run.loss.total.device == META


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_micro_batches_are_evaluated_on_the_device_of_the_weights(
    engine: Engine, batch: MicroBatch
) -> None:
    run = Pass(engine.decoder, batch, "a", 16, 128)
    for _ in run.evaluate(make_shadow(engine).operand):
        pass
    assert run.loss.total.device == META
