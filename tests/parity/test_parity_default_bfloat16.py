"""The default model as it is served, in bfloat16 on this CPU's kernels, against ``transformers``.

bfloat16 keeps 8 bits, so every implementation of it is off by a little, each in its own way. The
measure is ``transformers`` in float32; the bound is how far ``transformers`` itself is off it in
bfloat16, on the same real text.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from collm.cli.cache import cache_dir
from collm.model.catalog import list_models
from collm.model.checkpoint import Checkpoint
from collm.model.tokenizer import Tokenizer
from collm.ops.native import library
from collm.workload.samples import load_samples
from factories.engines import build_engine, teacher_forced_logits

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not library.is_available(), reason="no kernels run here"),
]

NUM_TEXTS, NUM_TOKENS = 8, 128
TIE = 0.5
"""Nats. Logits are near 16 here, where neighbours in bfloat16 are 1/8 apart: two candidates, each
off by one or two of these steps, change places within half a nat."""


@dataclass(frozen=True)
class Real:
    """Real text, and what ``transformers`` says of it."""

    checkpoint: Checkpoint
    texts: list[list[int]]
    exact: Tensor
    """Log-probabilities in float32 [num_tokens, vocab_size]."""
    rounded: Tensor
    """The same in bfloat16."""


@pytest.fixture(scope="module")
def real():
    model = list_models(cache_dir())[0]
    if not model.is_present:
        pytest.skip(f"{model.name} is not in the cache: run `collm models pull {model.name}`")
    checkpoint = Checkpoint(model.path)
    tokenizer = Tokenizer(checkpoint.folder, checkpoint.spec.eos_token_ids)
    encoded = (
        tokenizer.encode_chat([{"role": m.role, "content": m.content} for m in sample.messages])
        for sample in load_samples("medquad", "test")
    )
    long = (ids for ids in encoded if len(ids) >= NUM_TOKENS)
    texts = [next(long)[:NUM_TOKENS] for _ in range(NUM_TEXTS)]
    exact, rounded = (
        _reference(checkpoint, texts, dtype) for dtype in (torch.float32, torch.bfloat16)
    )
    return Real(checkpoint, texts, exact, rounded)


def _reference(checkpoint, texts, dtype):
    model = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=dtype)
    with torch.inference_mode():
        return _logprobs(model(torch.tensor(texts)).logits)


def _logprobs(logits):
    return logits.float().log_softmax(dim=-1).flatten(end_dim=-2)


@pytest.fixture(scope="module", params=[NUM_TOKENS, 1], ids=["prefill", "decode"])
def ours(request, real):
    engine = build_engine(
        real.checkpoint.folder, dtype=torch.bfloat16, num_blocks=64, block_size=16, num_slots=2
    )
    logits = teacher_forced_logits(engine, real.texts, chunk=request.param)
    return _logprobs(torch.stack(logits))


def error(found, real):
    """Return the mean distance of the real next token's log-probability from the exact one."""
    following = torch.tensor([text[1:] for text in real.texts]).unsqueeze(2)

    def of_next(logprobs):
        return logprobs.view(NUM_TEXTS, NUM_TOKENS, -1)[:, :-1].gather(2, following)

    return float((of_next(found) - of_next(real.exact)).abs().mean())


def agreement(found, real):
    """Return the share of positions whose most likely token is the exact one's."""
    return float((found.argmax(-1) == real.exact.argmax(-1)).float().mean())


def test_log_probabilities_are_as_near_as_those_of_transformers_in_bfloat16(ours, real):
    # A fifth of leeway: both are random walks of roundings over the same layers.
    assert error(ours, real) <= 1.2 * error(real.rounded, real)
    assert error(ours, real) < 0.1


def test_most_likely_tokens_agree_as_often_as_those_of_transformers_in_bfloat16(ours, real):
    # Two in a hundred of leeway: some eight of 384 positions, which are ties of the top two.
    assert agreement(ours, real) >= agreement(real.rounded, real) - 0.02
    assert agreement(ours, real) > 0.93


def test_where_the_most_likely_token_differs_it_was_a_near_tie(ours, real):
    chosen = real.exact.gather(1, ours.argmax(-1, keepdim=True)).squeeze(1)
    assert float((real.exact.amax(-1) - chosen).max()) < TIE
