import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from collm.errors import ModelError
from collm.model.checkpoint import Checkpoint
from factories.checkpoints import FAMILIES, Family, tiny_checkpoint, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path, "llama")


def rewrite(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors") | change
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoint_saved_by_transformers_loads_and_verifies(
    family: Family, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(tiny_checkpoint(tmp_path, family, dtype=torch.bfloat16))
    checkpoint.verify()
    assert checkpoint.dtype == torch.bfloat16
    for name, expected in tiny_model(family).state_dict().items():
        if name in checkpoint.names:
            assert torch.equal(checkpoint.tensor(name), expected.bfloat16())


def test_sharded_checkpoint_reads_like_a_single_file(folder: Path, tmp_path: Path) -> None:
    sharded = tmp_path / "sharded"
    tiny_model("llama").save_pretrained(sharded, max_shard_size="100KB")
    assert not (sharded / "model.safetensors").exists()
    single, several = Checkpoint(folder), Checkpoint(sharded)
    several.verify()
    assert several.names == single.names
    assert all(torch.equal(several.tensor(n), single.tensor(n)) for n in single.names)


def test_index_that_names_a_missing_shard_is_refused(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path, max_shard_size="100KB")
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(ModelError, match="not in the folder"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, "model.norm.weight is missing"),
        ({"model.extra.weight": torch.zeros(1)}, "model.extra.weight is unexpected"),
        ({"model.norm.weight": torch.zeros(3)}, r"model.norm.weight has shape \[3\], not \[64\]"),
        ({"model.norm.weight": torch.zeros(64, dtype=torch.int8)}, "model.norm.weight is I8"),
    ],
)
def test_wrong_tensors_are_named(
    folder: Path, change: dict[str, torch.Tensor | None], message: str
) -> None:
    rewrite(folder, change)
    with pytest.raises(ModelError, match=message):
        Checkpoint(folder).verify()


def test_tied_projection_and_old_rotary_buffers_may_be_in_the_file(folder: Path) -> None:
    inv_freq = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(folder, {"lm_head.weight": torch.zeros(512, 64), inv_freq: torch.zeros(8)})
    Checkpoint(folder).verify()


def test_unknown_tensor_is_an_error(folder: Path) -> None:
    with pytest.raises(ModelError, match="no tensor nothing"):
        Checkpoint(folder).tensor("nothing")


def test_truncated_file_is_an_error(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x01\x02")
    with pytest.raises(ModelError, match=r"cannot read .*model.safetensors"):
        Checkpoint(folder)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_broken_config_is_an_error(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config.json"):
        Checkpoint(folder)


def test_folder_without_config_or_weights_is_an_error(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ModelError, match=r"no config.json"):
        Checkpoint(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"neither model.safetensors nor"):
        Checkpoint(folder)


def test_digest_depends_on_content_alone(folder: Path, tmp_path: Path) -> None:
    digest = Checkpoint(folder).digest
    os.utime(folder / "model.safetensors", (1, 1))
    assert Checkpoint(folder).digest == digest
    assert Checkpoint(tiny_checkpoint(tmp_path / "again", "llama")).digest == digest
    assert Checkpoint(tiny_checkpoint(tmp_path / "other", "llama", seed=1)).digest != digest
    (folder / "chat_template.jinja").write_text("another template")
    assert Checkpoint(folder).digest != digest


def test_digest_is_read_from_its_cache_while_files_are_untouched(folder: Path) -> None:
    _ = Checkpoint(folder).digest
    cache = folder / ".collm-digest.json"
    cache.write_text(json.dumps(json.loads(cache.read_text()) | {"digest": "cached"}))
    assert Checkpoint(folder).digest == "cached"
    os.utime(folder / "config.json", (1, 1))
    assert Checkpoint(folder).digest != "cached"
