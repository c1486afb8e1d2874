"""Counted operations against those that torch counts in ``transformers``' own model."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from collm.model.checkpoint import Checkpoint
from factories.checkpoints import tiny_checkpoint
from operations import Operations

LENGTH = 24


@pytest.fixture
def model(tmp_path):
    folder = tiny_checkpoint(tmp_path, "llama")
    loaded = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    return Operations(Checkpoint(folder).spec), loaded


def counted(model, n: int, length: int, **arguments) -> int:
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(torch.ones(n, length, dtype=torch.long), **arguments)
    return counter.get_total_flops()


def test_a_token_alone_takes_its_linears_and_one_key(model):
    operations, reference = model
    assert operations.prefill(5, 1) == counted(reference, 5, 1)
    attention = 5 * 2 * 4 * 4 * 16  # Layers, two products, heads, head size: of each row one key.
    assert operations.prefill(5, 1) - operations.linears(5, 5) == attention


def test_a_prompt_takes_half_of_the_square_that_is_computed_without_causality(model):
    operations, reference = model
    square = counted(reference, 3, LENGTH, logits_to_keep=1) - operations.linears(3 * LENGTH, 3)
    causal = operations.prefill(3, LENGTH) - operations.linears(3 * LENGTH, 3)
    assert causal == square * (LENGTH + 1) / (2 * LENGTH)


def test_training_takes_each_frozen_product_twice_and_those_of_adapters_thrice(model):
    operations, _ = model
    bare = operations.training(2, LENGTH, 0)
    forward = operations.prefill(2, LENGTH) + 2 * 512 * 64 * (2 * LENGTH - 2 - 2)
    causal = operations.prefill(2, LENGTH) - operations.linears(2 * LENGTH, 2)
    assert bare == 2 * forward + causal
    # Four linears of the attention and three of the MLP, in two layers.
    sizes = (64 + 64) + (64 + 64) + (64 + 64) + 3 * (64 + 128)
    assert operations.training(2, LENGTH, 8) - bare == 3 * 2 * 2 * 8 * sizes * 2 * LENGTH
