"""A step in one call of the kernels against the same step operation by operation."""

import pytest
import torch
from torch.testing import assert_close

from collm.model.fused import can_fuse, make_forward
from factories.checkpoints import FAMILIES, tiny_checkpoint
from factories.engines import build_engine, random_adapter, random_tokens, teacher_forced_logits
from factories.kernels import PATHS, computing_on, computing_with, needs_kernels

HEADS = {"head_dim": 32}
MODELS = ["a0", "base", "a1", "a1", "base", "a0", "a0", "base", "a1"]
PROMPTS = [random_tokens(n, seed=n) for n in (29, 1, 2, 17, 5, 8, 12, 3, 40)]


@pytest.fixture(params=PATHS)
def path(request):
    """Compute each test on every path that this CPU has."""
    with computing_on(request.param) as chosen:
        yield chosen


def adapted_engine(folder, ranks=(4, 4), max_rank=None):
    """An engine with two adapters, in slots that by default have no room for more."""
    room = max_rank or max(ranks)
    engine = build_engine(folder, dtype=torch.bfloat16, block_size=16, max_rank=room)
    for index, rank in enumerate(ranks):
        adapter = random_adapter(engine.spec, rank, seed=index, scale=0.1)
        engine.publish(f"a{index}", "1", adapter)
    assert can_fuse(engine.decoder, engine.caches)
    return engine


def by_one_call(engine, chunk, models=None):
    forward = make_forward(engine.decoder, engine.caches, engine.bank)
    return teacher_forced_logits(engine, PROMPTS, chunk=chunk, models=models, forward=forward)


def both_ways(folder, chunk, models=None, ranks=(4, 4)):
    """Logits of all prompts by one call for all layers, and operation by operation."""
    engine = adapted_engine(folder, ranks)
    fused = by_one_call(engine, chunk, models)
    return fused, teacher_forced_logits(engine, PROMPTS, chunk=chunk, models=models)


def assert_same(fused, plain):
    """Sums are rounded to bfloat16 at other places, so a few logits of size one move a little."""
    fused, plain = torch.cat(fused), torch.cat(plain)
    assert (fused - plain).abs().mean() < 0.02 * plain.abs().mean()
    assert_close(fused, plain, atol=0.25, rtol=0.0)


@needs_kernels
@pytest.mark.parametrize("chunk", [1, 7, 10_000])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_single_operations(family, chunk, path, tmp_path):
    assert_same(*both_ways(tiny_checkpoint(tmp_path, family, **HEADS), chunk))


@needs_kernels
@pytest.mark.parametrize("chunk", [1, 3, 10_000])
@pytest.mark.parametrize("ranks", [(4, 4), (3, 3), (3, 8)])
def test_rows_of_different_adapters_share_a_step(chunk, ranks, path, tmp_path):
    folder = tiny_checkpoint(tmp_path, "llama", **HEADS)
    fused, plain = both_ways(folder, chunk, MODELS, ranks)
    assert_same(fused, plain)
    bare, _ = both_ways(folder, chunk)
    for index, model in enumerate(MODELS):
        changed = (fused[index] - bare[index]).abs().mean()
        assert (changed > 0.02) == (model != "base"), (model, changed)


@needs_kernels
@pytest.mark.parametrize("chunk", [1, 10_000])
def test_room_for_higher_ranks_changes_nothing(chunk, path, tmp_path):
    folder = tiny_checkpoint(tmp_path, "llama", **HEADS)
    tight, wide = (
        by_one_call(adapted_engine(folder, max_rank=rank), chunk, MODELS) for rank in (4, 32)
    )
    assert torch.equal(torch.cat(tight), torch.cat(wide))


@needs_kernels
@pytest.mark.parametrize("chunk", [1, 10_000])
def test_threads_that_share_a_step_change_nothing(chunk, path, tmp_path):
    engine = adapted_engine(tiny_checkpoint(tmp_path, "llama", **HEADS))
    with computing_with(1):
        alone = by_one_call(engine, chunk, MODELS)
    with computing_with(3):
        together = by_one_call(engine, chunk, MODELS)
    assert torch.equal(torch.cat(alone), torch.cat(together))


@needs_kernels
def test_biases_and_windows_are_part_of_a_step(path, tmp_path):
    fields = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
    assert_same(*both_ways(tiny_checkpoint(tmp_path, "llama", **HEADS, **fields), 9))


@needs_kernels
@pytest.mark.parametrize("fields", [{}, {**HEADS, "hidden_act": "gelu_pytorch_tanh"}])
def test_models_that_the_kernels_cannot_compute_keep_to_single_operations(fields, tmp_path):
    folder = tiny_checkpoint(tmp_path, "llama", **fields)
    engine = build_engine(folder, dtype=torch.bfloat16, block_size=16)
    assert not can_fuse(engine.decoder, engine.caches)


def test_float32_keeps_to_single_operations(tmp_path):
    engine = build_engine(tiny_checkpoint(tmp_path, "llama", **HEADS), block_size=16)
    assert not can_fuse(engine.decoder, engine.caches)
