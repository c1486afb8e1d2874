import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from collm.errors import RoundError
from collm.federated.factors import (
    AdapterFile,
    common_base,
    common_shapes,
    difference,
    read_factors,
    write_factors,
)
from collm.lora.peft_folder import PEFT_WEIGHTS, save_peft
from collm.model.spec import ModelSpec
from factories.checkpoints import tiny_config
from factories.engines import random_adapter
from factories.updates import random_factors

SPEC = ModelSpec.from_config(tiny_config("llama", num_hidden_layers=1).to_dict())
LARGE = 2**20


def of(modules=None, base_digest=None) -> AdapterFile:
    modules = modules or {"x.q": (4, 5), "x.k": (4, 3)}
    return AdapterFile(factors=random_factors(2, 1, modules), base_digest=base_digest)


def refused(path, tensors) -> str:
    save_file(tensors, path)
    with pytest.raises(RoundError) as caught:
        read_factors(path, "r1", LARGE)
    assert caught.value.member == "r1"
    assert str(caught.value).startswith("r1: ")
    return str(caught.value)


def pair(a, b) -> dict[str, torch.Tensor]:
    return {"x.q.lora_A.weight": a, "x.q.lora_B.weight": b}


def test_factors_survive_a_file_bit_by_bit(tmp_path):
    factors = random_factors(3, 1)
    write_factors(tmp_path / "f", factors, "digest")
    read = read_factors(tmp_path / "f", "r1", LARGE)
    assert read.base_digest == "digest"
    assert read.factors.keys() == factors.keys()
    for module, (a, b) in factors.items():
        assert torch.equal(read.factors[module][0], a)
        assert torch.equal(read.factors[module][1], b)


def test_what_replicas_write_is_read(tmp_path):
    state = random_adapter(SPEC, 4, 1)
    save_peft(state, tmp_path, "tiny", base_digest="b" * 64)
    read = read_factors(tmp_path / PEFT_WEIGHTS, "r1", LARGE)
    assert read.base_digest == "b" * 64
    expected = {
        f"base_model.model.model.layers.{factors.layer}.{part.module}": (a, b)
        for factors in state.layout.views(state.flat)
        for part, a, b in factors.parts()
    }
    assert read.factors.keys() == expected.keys()
    for module, (a, b) in expected.items():
        assert torch.equal(read.factors[module][0], a)
        assert torch.equal(read.factors[module][1], b)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_values_are_refused(tmp_path, bad):
    b = torch.ones(5, 2)
    b[3, 1] = bad
    assert "x.q has non-finite values" in refused(tmp_path / "f", pair(torch.ones(2, 4), b))


def test_values_that_would_overflow_are_refused(tmp_path):
    huge = pair(torch.full((2, 4), 1e30), torch.ones(5, 2))
    assert "values up to 1e+30" in refused(tmp_path / "f", huge)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (torch.ones(2, 4), torch.ones(5, 3), "needed are [rank, in] and [out, rank]"),
        (torch.ones(4), torch.ones(5, 4), "needed are [rank, in] and [out, rank]"),
        (torch.ones(0, 4), torch.ones(5, 0), "ranks 1 to 512"),
        (torch.ones(513, 4), torch.ones(5, 513), "ranks 1 to 512"),
        (torch.ones(2, 0), torch.ones(5, 2), "no empty factors"),
        (torch.ones(2, 4, dtype=torch.int64), torch.ones(5, 2), "torch.int64"),
    ],
)
def test_factors_that_do_not_fit_each_other_are_refused(tmp_path, a, b, reason):
    assert reason in refused(tmp_path / "f", pair(a, b))


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({}, "no LoRA factors"),
        ({"x.q.lora_A.weight": torch.ones(2, 4)}, "lora_A or lora_B of x.q is missing"),
        ({"x.q.weight": torch.ones(2, 4)}, "unexpected tensor 'x.q.weight'"),
        ({"lora_A.weight": torch.ones(2, 4)}, "unexpected tensor 'lora_A.weight'"),
        ({"x.q.lora_A": torch.ones(2, 4), "x.q.lora_A.weight": torch.ones(2, 4)}, "two lora_A"),
    ],
)
def test_files_that_hold_other_things_are_refused(tmp_path, tensors, reason):
    assert reason in refused(tmp_path / "f", tensors)


def test_half_precision_is_read_as_float32(tmp_path):
    save_file(pair(torch.ones(2, 4).bfloat16(), torch.ones(5, 2).half()), tmp_path / "f")
    a, b = read_factors(tmp_path / "f", "r1", LARGE).factors["x.q"]
    assert (a.dtype, b.dtype) == (torch.float32, torch.float32)


def test_pickles_are_refused_unread(tmp_path):
    (tmp_path / "plain").write_bytes(pickle.dumps({"x": 1}))
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("data.pkl", pickle.dumps({"x": 1}))
    for name in ("plain", "zip"):
        with pytest.raises(RoundError, match="r1: the file is a pickle; only safetensors is read"):
            read_factors(tmp_path / name, "r1", LARGE)


def test_large_missing_damaged_and_other_files_are_refused(tmp_path):
    path = tmp_path / "f"
    with pytest.raises(RoundError, match="r1: .*No such file"):
        read_factors(path, "r1", LARGE)
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(RoundError, match="r1: no valid safetensors file"):
        read_factors(path, "r1", LARGE)
    write_factors(path, random_factors(2, 1), None)
    num_bytes = path.stat().st_size
    with pytest.raises(RoundError, match=f"{num_bytes} bytes; allowed are {num_bytes - 1}"):
        read_factors(path, "r1", num_bytes - 1)
    with pytest.raises(RoundError, match="SHA-256"):
        read_factors(path, "r1", LARGE, digest="0" * 64)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(RoundError, match="r1: no valid safetensors file"):
        read_factors(path, "r1", LARGE)


def test_shapes_that_most_files_have_are_common():
    odd = of({"x.q": (4, 6), "x.k": (4, 3)})
    assert common_shapes([odd, of(), of()], None) == of().shapes()
    assert common_shapes([], None) is None


def test_without_a_majority_only_the_base_can_tell():
    odd = of({"x.q": (4, 6), "x.k": (4, 3)})
    assert common_shapes([odd, of()], None) is None
    assert common_shapes([odd, of()], of()) == of().shapes()
    assert common_shapes([of(), odd], of({"x.q": (4, 6)})) == odd.shapes()


def test_base_model_is_the_bases_or_the_most_named():
    assert (
        common_base([of(), of(base_digest="p"), of(base_digest="p"), of(base_digest="q")], None)
        == "p"
    )
    assert common_base([of(base_digest="p")], of(base_digest="z")) == "z"
    assert common_base([of()], None) is None


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (of({"x.q": (4, 5)}), "factors of x.k are missing"),
        (
            of({"x.q": (4, 5), "x.k": (4, 3), "x.v": (4, 3)}),
            "factors of x.v, which others do not have",
        ),
        (of({"x.q": (4, 6), "x.k": (4, 3)}), "x.q maps 4 to 6, others 4 to 5"),
        (of(base_digest="other"), "made for base other, not mine"),
        (of(base_digest="mine"), None),
        (of(), None),
    ],
)
def test_difference_says_what_does_not_fit(file, reason):
    assert difference(file, of().shapes(), "mine") == reason
