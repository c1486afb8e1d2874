"""Folders that say they are for another base, or want the reader to work for ever."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from collm.errors import AdapterError
from collm.lora.peft_folder import PEFT_CONFIG, PEFT_WEIGHTS, load_peft, save_peft
from collm.lora.state import AdapterState
from collm.model.spec import ModelSpec
from factories.checkpoints import tiny_config
from factories.engines import random_adapter

SPEC = ModelSpec.from_config(tiny_config("llama", num_hidden_layers=1).to_dict())
STATE = random_adapter(SPEC, rank=2)


@pytest.fixture
def folder(tmp_path):
    save_peft(STATE, tmp_path, "tiny", "digest-of-ours")
    return tmp_path


def configure(folder, **fields):
    path = folder / PEFT_CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_file_of_ours_is_read_for_its_own_base_alone(folder):
    assert torch.equal(load_peft(folder, SPEC, "digest-of-ours").flat, STATE.flat)
    assert torch.equal(load_peft(folder, SPEC).flat, STATE.flat)
    with pytest.raises(AdapterError, match="was made for base digest-of-ou.*serves another"):
        load_peft(folder, SPEC, "another")


def test_file_of_others_names_no_base_and_is_read(folder):
    save_file(load_file(folder / PEFT_WEIGHTS), folder / PEFT_WEIGHTS)
    assert torch.equal(load_peft(folder, SPEC, "another").flat, STATE.flat)


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(q|q)*x", "a?a?a?", "q_proj*+*", "[^x]*", "x{1,99}", "x" * 300, ""],
)
@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern"])
def test_pattern_that_could_take_for_ever_is_refused(folder, key, pattern):
    configure(folder, **{key: {pattern: 2}})
    with pytest.raises(AdapterError, match=f"{key}.*is not supported"):
        load_peft(folder, SPEC)


@pytest.mark.parametrize(
    "pattern", ["q_proj", "model.layers.0.self_attn.q_proj", r"^.*\.q_proj", "q_proj|k_proj"]
)
def test_plain_patterns_are_read(folder, pattern):
    configure(folder, rank_pattern={pattern: 2}, alpha_pattern={pattern: 4})
    load_peft(folder, SPEC)


def test_factors_that_could_overflow_are_told_by_module_and_bound():
    layout = STATE.layout
    for value, row, words in (
        (2e4, slice(0, 1), r"layers\.0\.self_attn\.q_proj.* is 2e\+04, allowed are 10000"),
        (3e3, slice(None), r"q_proj.* multiply to [\d.e+]+, allowed are 10000"),
        (1e30, slice(None), r"q_proj.* is 1e\+30, allowed are 10000; .* multiply to \S+, allowed"),
    ):
        flat = STATE.flat.clone()
        flat[row] = value
        with pytest.raises(AdapterError, match=words):
            AdapterState(layout, flat).check_bounded()
    STATE.check_bounded()


def test_table_of_patterns_has_an_end(folder):
    configure(folder, rank_pattern=dict.fromkeys(map(str, range(1_001)), 2))
    with pytest.raises(AdapterError, match="at most 1000"):
        load_peft(folder, SPEC)
