"""Gradients through all quanta against one plain autograd pass of ``peft`` over ``transformers``.

The reference computes every sample on its own, without padding or packing. Both are float32 and
sum in different orders: gradients are compared relative to the largest of their module.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from collm.gate.config import GENERAL
from collm.lora.shadow import Shadow
from collm.lora.state import AdapterState
from collm.model.decoder import Decoder
from collm.ops import quantized
from collm.ops.quantized import Quantization, quantize
from collm.training import microbatch
from collm.training.attention import _FUSED_FROM
from collm.training.microbatch import pack
from collm.training.passes import Activations, Pass
from collm.training.samples import TokenSample
from factories.checkpoints import FAMILIES, Family
from factories.training import general_samples, make_samples, random_state, tiny_decoder

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

TOLERANCE = {"atol": 2e-5, "rtol": 0.0}
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PREFIX = tuple(range(100, 124))


@dataclass(frozen=True)
class Case:
    samples: tuple[TokenSample, ...]
    rank: int
    alpha: float


CASES = {
    "one sample": Case(make_samples([21]), rank=4, alpha=4.0),
    "long sample": Case(make_samples([98]), rank=3, alpha=6.0),
    "several groups": Case(make_samples([2, 70, 9, 17, 33, 16, 40, 5]), rank=3, alpha=5.0),
    "shared prefix": Case(make_samples([26, 60, 31, 90, 27], prefix=PREFIX), rank=8, alpha=32.0),
    "fused kernel": Case(make_samples([300, 20, 280, 257]), rank=1, alpha=2.0),
    "fused kernel after a prefix": Case(
        make_samples([_FUSED_FROM - 10, 40, _FUSED_FROM + 44], prefix=PREFIX), rank=2, alpha=1.0
    ),
    "general text without the prefix": Case(
        (
            *general_samples([33, 12]),
            *make_samples([40, 31, 60], prefix=PREFIX),
            *general_samples([50], seed=51),
            *make_samples([45], seed=3, prefix=PREFIX, slice=GENERAL),
        ),
        rank=4,
        alpha=8.0,
    ),
    "weights": Case(
        tuple(
            replace(sample, weight=weight)
            for sample, weight in zip(
                make_samples([26, 40, 31], prefix=PREFIX), (0.25, 1.0, 3.0), strict=True
            )
        ),
        rank=4,
        alpha=8.0,
    ),
}


@dataclass(frozen=True)
class Reference:
    losses: Tensor
    grads: dict[str, Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gradients")


@pytest.fixture(scope="module")
def decoder_of(folder: Path) -> Callable[[Family], Decoder]:
    return cache(lambda family: tiny_decoder(folder, family))


@pytest.fixture(scope="module")
def reference_of(
    folder: Path, decoder_of: Callable[[Family], Decoder]
) -> Callable[[Family, str], Reference]:
    @cache
    def compute(family: Family, name: str) -> Reference:
        state = random_state(decoder_of(family), CASES[name].rank)
        return peft_gradients(folder / family, CASES[name], state)

    return compute


def peft_gradients(
    folder: Path, case: Case, state: AdapterState, quantization: Quantization | None = None
) -> Reference:
    base = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    if quantization is not None:
        dequantize_linears(base, quantization)
    config = LoraConfig(
        task_type="CAUSAL_LM", target_modules=MODULES, r=case.rank, lora_alpha=case.alpha
    )
    model = get_peft_model(base, config).eval()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for factors in state.layout.views(state.flat):
            for part, a, b in factors.parts():
                name = f"base_model.model.model.layers.{factors.layer}.{part.module}"
                parameters[f"{name}.lora_A.default.weight"].copy_(a)
                # Our states have peft's scaling folded into B.
                unscaled = b * case.rank / case.alpha
                parameters[f"{name}.lora_B.default.weight"].copy_(unscaled)
    losses = [sample_loss(model, sample) for sample in case.samples]
    for sample, loss in zip(case.samples, losses, strict=True):
        (sample.weight * loss).backward()
    grads = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    return Reference(torch.stack(losses).detach(), grads)


def dequantize_linears(model: Any, quantization: Quantization) -> None:
    """Give each linear the weight that its quantized form stands for; the embedding stays."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            kind: Quantization = "int8" if name == "lm_head" else quantization
            rounded = quantize(module.weight.detach(), kind)
            module.weight = nn.Parameter(rounded.dequantized())


def sample_loss(model: Any, sample: TokenSample) -> Tensor:
    token_ids = torch.tensor(sample.token_ids)
    logits = model(token_ids.unsqueeze(0)).logits[0]
    supervised = torch.tensor(sample.is_supervised)[1:]
    return functional.cross_entropy(
        logits[:-1][supervised], token_ids[1:][supervised], reduction="sum"
    )


def learn(
    decoder: Decoder,
    case: Case,
    activations: Activations,
    max_loss_rows: int,
    max_rows: int | None = None,
) -> tuple[Shadow, Tensor]:
    """Run all quanta of one micro-batch; return the shadow and the loss of each sample."""
    embedding = decoder.weights.embedding
    state = random_state(decoder, case.rank)
    shadow = Shadow(state, case.alpha, embedding.dtype, embedding.device)
    run = Pass(decoder, pack(case.samples), "a", max_loss_rows, max_rows)
    for _ in run.learn(shadow, activations):
        pass
    return shadow, run.loss.total


def named_gradients(shadow: Shadow) -> dict[str, Tensor]:
    grads = {}
    for factors in shadow.layout.views(shadow.gradient):
        for part, a, b in factors.parts():
            name = f"base_model.model.model.layers.{factors.layer}.{part.module}"
            grads[f"{name}.lora_A.default.weight"] = a
            grads[f"{name}.lora_B.default.weight"] = b
    return grads


@pytest.mark.parametrize("activations", ["keep", "recompute"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_through_quanta_equal_one_autograd_pass(
    family: Family,
    name: str,
    activations: Activations,
    decoder_of: Callable[[Family], Decoder],
    reference_of: Callable[[Family, str], Reference],
) -> None:
    shadow, losses = learn(decoder_of(family), CASES[name], activations, max_loss_rows=13)
    assert_same(shadow, losses, reference_of(family, name))


@pytest.mark.parametrize("activations", ["keep", "recompute"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_a_sample_cut_by_rows_equal_one_autograd_pass(
    family: Family,
    activations: Activations,
    decoder_of: Callable[[Family], Decoder],
    reference_of: Callable[[Family, str], Reference],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(microbatch, "_MIN_PIECE", 8)
    case = CASES["long sample"]
    assert len(pack(case.samples).pieces(max_rows=30)) == 4
    shadow, losses = learn(decoder_of(family), case, activations, max_loss_rows=13, max_rows=30)
    assert_same(shadow, losses, reference_of(family, "long sample"))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_gradients_through_a_quantized_base_equal_one_autograd_pass(
    quantization: Quantization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding of inputs left out: a hair's difference may fall on either side of a step."""
    monkeypatch.setattr(quantized, "round_inputs", lambda x, group: x)
    case = CASES["shared prefix"]
    decoder = tiny_decoder(tmp_path, "llama", quantization=quantization)
    state = random_state(decoder, case.rank)
    expected = peft_gradients(tmp_path / "llama", case, state, quantization)
    assert_same(*learn(decoder, case, "keep", max_loss_rows=13), expected)


def assert_same(shadow: Shadow, losses: Tensor, expected: Reference) -> None:
    assert_close(losses, expected.losses, atol=1e-3, rtol=1e-5)
    grads = named_gradients(shadow)
    assert grads.keys() == expected.grads.keys()
    for module, grad in grads.items():
        largest = expected.grads[module].abs().max()
        assert largest > 1e-3, f"{module} gets no gradient"
        assert_close(grad / largest, expected.grads[module] / largest, **TOLERANCE)


def test_cases_reach_every_branch() -> None:
    batches = {name: pack(case.samples) for name, case in CASES.items()}
    assert batches["shared prefix"].num_prefix == len(PREFIX)
    assert batches["fused kernel after a prefix"].num_prefix == len(PREFIX)
    assert batches["several groups"].num_prefix == 0
    general = batches["general text without the prefix"]
    assert (general.num_prefix, general.without_prefix) == (len(PREFIX), {0, 1, 5})
    assert len(batches["several groups"].attention(None, torch.float32, 64).groups) == 4
    packed = batches["fused kernel after a prefix"].attention(None, torch.float32, 64)
    keys = [group.mask.shape[1] for group in packed.groups]
    assert min(keys) < _FUSED_FROM < max(keys)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("head_dim", [16, 32])
def test_bfloat16_gradients_point_the_same_way(name: str, head_dim: int, tmp_path: Path) -> None:
    """The packed bfloat16 weights that serve on a CPU against a float32 pass.

    With heads of 32 the kernels attend as well, where they run.
    """
    case = CASES[name]
    exact, _ = learn(tiny_decoder(tmp_path, "llama", head_dim=head_dim), case, "keep", 64)
    half = tiny_decoder(tmp_path, "llama", torch.bfloat16, head_dim=head_dim)
    rounded, _ = learn(half, case, "keep", 64)
    assert rounded.gradient.dtype == torch.float32
    assert functional.cosine_similarity(exact.gradient, rounded.gradient, dim=0) > 0.99


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_gradients_on_quantized_kernels_point_the_way_of_the_reference(
    quantization: Quantization, tmp_path: Path
) -> None:
    """bfloat16 kernels against the same quantized base in float32 and plain torch."""
    case = CASES["shared prefix"]
    exact, _ = learn(tiny_decoder(tmp_path, "llama", quantization=quantization), case, "keep", 64)
    on_kernels = tiny_decoder(tmp_path, "llama", torch.bfloat16, quantization=quantization)
    rounded, _ = learn(on_kernels, case, "keep", 64)
    assert functional.cosine_similarity(exact.gradient, rounded.gradient, dim=0) > 0.99
