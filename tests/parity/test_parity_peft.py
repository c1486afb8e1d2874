"""Our adapters against ``peft`` on the same tiny model: the same logits, and folders both ways.

Tolerance as in ``test_parity_families``: float32 sums in another order.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from collm.lora.layout import lora_layout
from collm.lora.peft_folder import load_peft, save_peft
from collm.lora.state import AdapterState
from factories.checkpoints import FAMILIES, tiny_checkpoint
from factories.engines import (
    Engine,
    build_engine,
    random_adapter,
    random_tokens,
    teacher_forced_logits,
)

# peft's own use of transformers, and its advice on converting rsLoRA with patterns.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Using Rank-Stabilized LoRA with:UserWarning"),
    pytest.mark.filterwarnings("ignore:The following alpha_pattern keys:RuntimeWarning"),
]

TOLERANCE = {"atol": 2e-4, "rtol": 2e-4}
PROMPT = random_tokens(19, seed=1)
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

CONFIGS: dict[str, dict[str, Any]] = {
    "all linears": {"target_modules": ALL, "r": 4, "lora_alpha": 4},
    "alpha": {"target_modules": ALL, "r": 4, "lora_alpha": 11},
    "rslora": {"target_modules": ALL, "r": 8, "lora_alpha": 5, "use_rslora": True},
    "two modules": {"target_modules": ["q_proj", "v_proj"], "r": 3, "lora_alpha": 16},
    "regex and one layer": {
        "target_modules": r".*\.(k_proj|down_proj)",
        "layers_to_transform": None,
        "r": 2,
        "lora_alpha": 8,
    },
    "one layer": {"target_modules": ALL, "layers_to_transform": [1], "r": 2, "lora_alpha": 8},
    "rank pattern": {
        "target_modules": ALL,
        "r": 4,
        "lora_alpha": 8,
        "rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 8, r"layers\.\d+\.mlp\..*": 3},
    },
    "alpha pattern": {
        "target_modules": ALL,
        "r": 4,
        "lora_alpha": 8,
        # The first that matches wins; a part of a name ("proj") matches nothing.
        "alpha_pattern": {"self_attn.q_proj": 2, "q_proj": 32, "proj": 64, r".*\.1\..*": 1},
    },
    "rank and alpha pattern, rslora": {
        "target_modules": ALL,
        "r": 4,
        "lora_alpha": 3,
        "use_rslora": True,
        "rank_pattern": {"v_proj": 1, "o_proj": 6},
        "alpha_pattern": {"v_proj": 2, r"model\.layers\.0\.self_attn\.o_proj": 7},
    },
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("peft")
    return {family: tiny_checkpoint(root, family) for family in FAMILIES}


def load_reference(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def trained_peft(folder: Path, config: dict[str, Any]) -> PeftModel:
    """A peft model whose B is not zero, as training would leave it."""
    model = get_peft_model(load_reference(folder), LoraConfig(task_type="CAUSAL_LM", **config))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.2, generator=generator)
    return model.eval()


@torch.inference_mode()
def logits_of(model: Any, prompt: list[int] = PROMPT) -> Tensor:
    logits: Tensor = model(torch.tensor([prompt])).logits[0]
    return logits


def our_logits(engine: Engine, state: AdapterState) -> Tensor:
    engine.publish("tuned", "1", state)
    (logits,) = teacher_forced_logits(engine, [PROMPT], chunk=5, models=["tuned"])
    return logits


@pytest.mark.parametrize("name", CONFIGS)
def test_unmerged_logits_equal_pefts(checkpoints, tmp_path, name):
    trained_peft(checkpoints["llama"], CONFIGS[name]).save_pretrained(tmp_path)
    # Read back by peft as well: a saved configuration has its patterns sorted, and order counts.
    model = PeftModel.from_pretrained(load_reference(checkpoints["llama"]), tmp_path).eval()
    engine = build_engine(checkpoints["llama"])
    state = load_peft(tmp_path, engine.spec)
    expected = logits_of(model)
    assert_close(our_logits(engine, state), expected, **TOLERANCE)
    base = logits_of(load_reference(checkpoints["llama"]))
    assert float((expected - base).abs().max()) > 0.1, "the adapter must matter"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_adapters(checkpoints, tmp_path, family):
    model = trained_peft(checkpoints[family], CONFIGS["alpha"])
    model.save_pretrained(tmp_path)
    engine = build_engine(checkpoints[family])
    assert_close(
        our_logits(engine, load_peft(tmp_path, engine.spec)), logits_of(model), **TOLERANCE
    )


def test_unmerged_equals_merged(checkpoints, tmp_path):
    model = trained_peft(checkpoints["qwen2"], CONFIGS["all linears"])
    model.save_pretrained(tmp_path)
    engine = build_engine(checkpoints["qwen2"])
    ours = our_logits(engine, load_peft(tmp_path, engine.spec))
    assert_close(ours, logits_of(model.merge_and_unload()), atol=1e-3, rtol=1e-3)


def test_exported_folder_gives_the_same_logits_in_peft(checkpoints, tmp_path):
    engine = build_engine(checkpoints["llama"])
    state = random_adapter(engine.spec, rank=4, scale=0.2)
    save_peft(state, tmp_path, "tiny")
    model = PeftModel.from_pretrained(load_reference(checkpoints["llama"]), tmp_path).eval()
    assert_close(our_logits(engine, state), logits_of(model), **TOLERANCE)


def test_a_folder_read_and_written_again_is_exact(checkpoints, tmp_path):
    model = trained_peft(checkpoints["llama"], CONFIGS["rank and alpha pattern, rslora"])
    spec = build_engine(checkpoints["llama"]).spec
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    model.save_pretrained(tmp_path)
    imported = load_peft(tmp_path, spec)
    save_peft(imported, tmp_path / "first", "tiny")
    again = load_peft(tmp_path / "first", spec)
    save_peft(again, tmp_path / "second", "tiny")
    assert again.layout == imported.layout == lora_layout(spec, 6)
    assert torch.equal(again.flat, imported.flat)
    assert again.digest() == imported.digest()
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        first, second = (tmp_path / name / file for name in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()


def test_target_modules_do_not_matter_to_us(checkpoints, tmp_path):
    spec = build_engine(checkpoints["llama"]).spec
    trained_peft(checkpoints["llama"], CONFIGS["alpha"]).save_pretrained(tmp_path)
    expected = load_peft(tmp_path, spec)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"target_modules": "all-linear"}))
    assert torch.equal(load_peft(tmp_path, spec).flat, expected.flat)
