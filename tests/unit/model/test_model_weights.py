"""The base weights in the form they are served in."""

import pytest
import torch

from collm.model.checkpoint import Checkpoint
from collm.model.weights import load_weights
from collm.ops.linear import DenseLinear
from factories.checkpoints import tiny_checkpoint

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return Checkpoint(tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama"))


def test_weights_that_are_not_quantized_keep_their_dtype(checkpoint):
    weights = load_weights(checkpoint, checkpoint.spec, torch.float32, CPU)
    linears = [linear for layer in weights.layers for linear in layer.linears()]
    assert all(isinstance(linear, DenseLinear) for linear in [*linears, weights.head])


@pytest.mark.parametrize(("kind", "bits"), [("int8", 8), ("int4", 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantized_weights_take_their_bits_and_the_head_eight(checkpoint, kind, bits, dtype):
    weights = load_weights(checkpoint, checkpoint.spec, dtype, CPU, kind)
    spec = checkpoint.spec
    assert weights.head.num_bytes == spec.vocab_size * (spec.hidden_size + 4)
    assert weights.head_gradient is weights.head
    assert weights.embedding.dtype == dtype
    size = spec.hidden_size * spec.intermediate_size
    down = weights.layers[0].down.num_bytes
    if kind == "int4" and dtype == torch.float32:
        # In plain torch a code takes a byte.
        assert down == size + size * 4 // 32
    else:
        assert down == size * bits // 8 + (4 * spec.hidden_size if kind == "int8" else 0)


def test_a_quantized_base_has_a_digest_of_its_own(checkpoint):
    digests = {checkpoint.base_digest(kind) for kind in (None, "int8", "int4")}
    assert checkpoint.digest in digests
    assert len(digests) == 3
    assert all(len(digest) == 64 for digest in digests)
