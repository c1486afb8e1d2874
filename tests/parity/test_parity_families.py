"""Every served family against ``transformers`` on small random checkpoints, float32.

Tolerance: the two compute the same sums in another order, which moves logits of size 1 to 10 by a
few units of 1e-6; 1e-4 is far below what any wrong formula would cause.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, GenerationConfig

from factories.checkpoints import FAMILIES, SLIDING_WINDOW, tiny_checkpoint
from factories.engine import request
from factories.engines import Engine, build_engine, generate, random_tokens
from factories.engines import teacher_forced_logits as our_logits

TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
PROMPTS = [random_tokens(n, seed=n) for n in (29, 1, 2, 17, 5)]

ROPE = {"rope_theta": 10_000.0}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "llama biases, untied": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    ),
    "llama3 rope": (
        "llama",
        {
            "rope_parameters": {
                **ROPE,
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    "linear rope": ("llama", {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 2.0}}),
    "qwen2 yarn": (
        "qwen2",
        {
            "rope_parameters": {
                **ROPE,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen3 one window of two layers": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": SLIDING_WINDOW,
            "max_window_layers": 1,
            "attention_bias": True,
        },
    ),
    "mistral without window": ("mistral", {"sliding_window": None}),
}


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def load(variant: str) -> tuple[Path, Any, Engine]:
        family, fields = VARIANTS[variant]
        folder = tiny_checkpoint(tmp_path_factory.mktemp("parity"), family, **fields)
        reference = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        return folder, reference, build_engine(folder)

    return load


@torch.inference_mode()
def reference_logits(model: Any, prompt: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([prompt])).logits[0]
    return logits


@torch.inference_mode()
def reference_continuation(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy tokens by recomputing everything for each one: no cache, no stopping."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("chunk", [1, 3, SLIDING_WINDOW, 10_000])
def test_logits_of_a_batch_of_unequal_lengths_equal_transformers(load, variant, chunk):
    _, reference, engine = load(variant)
    for prompt, logits in zip(PROMPTS, our_logits(engine, PROMPTS, chunk=chunk), strict=True):
        assert_close(logits, reference_logits(reference, prompt), **TOLERANCE)


@pytest.mark.parametrize("variant", ["mistral", "qwen3 one window of two layers"])
def test_window_changes_logits_only_past_its_width(load, variant):
    """Shows that the parity above does cross the window."""
    folder, _, engine = load(variant)
    wide = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", sliding_window=512
    ).eval()
    prompt = PROMPTS[0]
    (logits,) = our_logits(engine, [prompt])
    expected = reference_logits(wide, prompt)
    assert_close(logits[:SLIDING_WINDOW], expected[:SLIDING_WINDOW], **TOLERANCE)
    assert (logits - expected)[SLIDING_WINDOW:].abs().amax(dim=-1).min() > 1e-2


@pytest.mark.parametrize("variant", FAMILIES)
def test_greedy_continuations_equal_transformers(load, variant):
    folder, reference, _ = load(variant)
    engine = build_engine(folder, max_prefill=7)
    requests = [
        request(str(index), prompt, temperature=0.0, max_tokens=16)
        for index, prompt in enumerate(PROMPTS)
    ]
    answers = generate(engine, requests)
    for index, prompt in enumerate(PROMPTS):
        assert answers[str(index)] == reference_continuation(reference, prompt, 16)


@pytest.mark.parametrize("variant", FAMILIES)
def test_end_of_sequence_ends_a_continuation_where_generate_ends(load, variant):
    folder, reference, _ = load(variant)
    prompt = PROMPTS[3]
    # A token that the model does produce is declared an end, as an eos of its own would be.
    eos = reference_continuation(reference, prompt, 6)[-1]
    config = GenerationConfig(max_new_tokens=16, do_sample=False, eos_token_id=eos, pad_token_id=0)
    with torch.inference_mode():
        output = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            generation_config=config,
        )
    ours = request("r", prompt, temperature=0.0, max_tokens=16, stop_token_ids=(eos,))
    assert generate(build_engine(folder), [ours])["r"] == output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("variant", ["llama", "mistral"])
def test_logits_after_a_prefix_cache_hit_equal_transformers(load, variant):
    folder, reference, _ = load(variant)
    engine = build_engine(folder)
    prompt = PROMPTS[0]
    vocab_size = engine.spec.vocab_size
    for name in ("cold", "warm"):
        engine.add(request(name, prompt, temperature=0.0, max_tokens=2, logprobs=vocab_size))
        engine.drain()
    assert engine.events["cold", 0][0].num_cached_tokens == 0
    assert engine.events["warm", 0][0].num_cached_tokens == 28
    first = engine.tokens("warm")[0]
    expected = reference_logits(reference, [*prompt, first]).log_softmax(dim=-1)
    for event, logprobs in zip(engine.events["warm", 0], expected[-2:], strict=True):
        ours = torch.empty(vocab_size)
        for token_id, logprob in event.logprobs.top:
            ours[token_id] = logprob
        assert_close(ours, logprobs, **TOLERANCE)


@pytest.mark.parametrize("variant", FAMILIES)
@pytest.mark.parametrize("chunk", [1, 6, 10_000])
def test_bfloat16_logits_stay_near_float32(load, variant, chunk):
    """Reduced precision rounds each activation to 8 bits: errors of some percent of a logit's
    spread are expected, and the most likely token may differ only at a near-tie."""
    folder, reference, _ = load(variant)
    engine = build_engine(folder, dtype=torch.bfloat16)
    for prompt, logits in zip(PROMPTS, our_logits(engine, PROMPTS, chunk=chunk), strict=True):
        expected = reference_logits(reference, prompt)
        spread = float(expected.std())
        error = logits - expected
        assert float(error.std()) < 0.03 * spread
        assert float(error.abs().max()) < 0.2 * spread
        ours, best = logits.argmax(dim=-1, keepdim=True), expected.amax(dim=-1, keepdim=True)
        assert float((best - expected.gather(1, ours)).max()) < 0.2 * spread
