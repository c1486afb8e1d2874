"""The default model in our engine against ``transformers``, on real text, in float32."""

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from collm.cli.cache import cache_dir
from collm.model.catalog import list_models
from collm.model.checkpoint import Checkpoint
from collm.model.tokenizer import Tokenizer
from factories.engine import request
from factories.engines import build_engine, generate, teacher_forced_logits

pytestmark = pytest.mark.model

NUM_OUTPUT = 8
CHATS = [
    "What is the capital of France?",
    "My card was declined at the shop this morning. What can I do?",
]
PLAIN = "The Seine rises at Source-Seine, thirty kilometres northwest of Dijon, and flows"


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    model = list_models(cache_dir())[0]
    if not model.is_present:
        pytest.skip(f"{model.name} is not in the cache: run `collm models pull {model.name}`")
    return Checkpoint(model.path)


def test_greedy_continuations_of_real_text_equal_transformers(checkpoint):
    tokenizer = Tokenizer(checkpoint.folder, checkpoint.spec.eos_token_ids)
    prompts = [tokenizer.encode_chat([{"role": "user", "content": chat}]) for chat in CHATS]
    prompts.append(tokenizer.encode(PLAIN))
    engine = build_engine(
        checkpoint.folder, num_blocks=64, block_size=16, num_slots=2, max_prefill=48
    )
    requests = [
        request(str(index), prompt, temperature=0.0, max_tokens=NUM_OUTPUT, ignore_eos=False)
        for index, prompt in enumerate(prompts)
    ]
    answers = generate(engine, requests)
    reference = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32)
    for index, prompt in enumerate(prompts):
        with torch.inference_mode():
            output = reference.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=NUM_OUTPUT,
                do_sample=False,
            )
        assert answers[str(index)] == output[0, len(prompt) :].tolist(), prompt
    (logits,) = teacher_forced_logits(engine, [prompts[-1]], chunk=16)
    with torch.inference_mode():
        expected = reference(torch.tensor([prompts[-1]])).logits[0]
    assert_close(logits, expected, atol=2e-3, rtol=1e-3)
