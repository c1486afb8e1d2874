from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from collm.lora.bank import AdapterBank
from collm.lora.shadow import Shadow
from collm.lora.state import AdapterState
from collm.model.decoder import Decoder
from collm.pacing.quanta import QuantumKind, cut, evaluation_quanta, micro_batch_quanta
from collm.training.microbatch import pack
from collm.training.passes import Pass
from collm.training.samples import TokenSample
from factories.training import make_sample, make_samples, random_state, tiny_decoder

PREFIX = tuple(range(200, 212))
SAMPLES = make_samples([15, 40, 27], prefix=PREFIX)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("passes"), "mistral")


def make_shadow(decoder: Decoder, alpha: float = 8.0) -> Shadow:
    state = random_state(decoder, 4)
    return Shadow(state, alpha, decoder.weights.embedding.dtype, torch.device("cpu"))


def learn(decoder: Decoder, samples: Sequence[TokenSample], shadow: Shadow) -> Tensor:
    run = Pass(decoder, pack(samples), "a", 16)
    for _ in run.learn(shadow, "keep"):
        pass
    return run.loss.total


def evaluate(decoder: Decoder, samples: Sequence[TokenSample], shadow: Shadow) -> Tensor:
    run = Pass(decoder, pack(samples), "a", 16)
    for _ in run.evaluate(shadow.operand):
        pass
    return run.loss.total


@contextmanager
def unchanged(*tensors: Tensor) -> Iterator[None]:
    before = [tensor.clone() for tensor in tensors]
    yield
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))


@pytest.mark.parametrize("activations", ["keep", "recompute"])
def test_a_micro_batchs_quanta_come_in_the_stated_order(decoder: Decoder, activations) -> None:
    batch = pack(SAMPLES)
    loss_chunks = cut(batch.num_supervised, 7)
    assert len(loss_chunks) > 2
    quanta = Pass(decoder, batch, "a", 7).learn(make_shadow(decoder), activations)
    assert tuple(quanta) == micro_batch_quanta(4, batch.num_tokens, loss_chunks, "a")


def test_an_evaluations_quanta_come_in_the_stated_order(decoder: Decoder) -> None:
    batch = pack(SAMPLES)
    quanta = Pass(decoder, batch, "a", 7).evaluate(make_shadow(decoder).operand)
    loss_chunks = cut(batch.num_supervised, 7)
    assert tuple(quanta) == evaluation_quanta(4, batch.num_tokens, loss_chunks, "a")


def test_a_sample_that_is_too_long_for_a_quantum_is_cut_by_rows(decoder: Decoder) -> None:
    batch = pack(make_samples([300]))
    quanta = tuple(Pass(decoder, batch, "a", 512, 200).learn(make_shadow(decoder), "keep"))
    kinds = (QuantumKind.FORWARD, QuantumKind.BACKWARD)
    cut_ones = [quantum for quantum in quanta if quantum.kind in kinds]
    assert [quantum.size for quantum in cut_ones] == [160] * 16
    forward = [0, 0, 1, 1, 2, 2, 3, 3]
    assert [quantum.index for quantum in cut_ones] == [*forward, *reversed(forward)]


def test_a_sample_cut_by_rows_has_the_loss_of_the_whole_one(decoder: Decoder) -> None:
    batch, shadow = pack(make_samples([300])), make_shadow(decoder)
    whole = evaluate(decoder, make_samples([300]), shadow)
    for begin in (lambda run: run.evaluate(shadow.operand), lambda run: run.learn(shadow, "keep")):
        run = Pass(decoder, batch, "a", 512, 140)
        for _ in begin(run):
            pass
        # Float32 sums in another order.
        assert_close(run.loss.total, whole, atol=1e-3, rtol=1e-5)


def test_a_samples_loss_does_not_depend_on_its_pack_mates(decoder: Decoder) -> None:
    shadow = make_shadow(decoder)
    alone = torch.cat([evaluate(decoder, [sample], shadow) for sample in SAMPLES])
    # Float32 sums in another order.
    assert_close(evaluate(decoder, SAMPLES, shadow), alone, atol=1e-4, rtol=1e-5)
    others = make_samples([33, 9], seed=5)
    for position in range(3):
        mixed = [*others[:position], SAMPLES[0], *others[position:]]
        loss = evaluate(decoder, mixed, shadow)[min(position, 2)]
        assert_close(loss, alone[0], atol=1e-4, rtol=1e-5)


def test_changing_one_sample_changes_no_other_loss(decoder: Decoder) -> None:
    """To the last bit."""
    shadow = make_shadow(decoder)
    mates = make_samples([30, 12], seed=7)
    first = evaluate(decoder, [mates[0], make_sample(20, 1), mates[1]], shadow)
    second = evaluate(decoder, [mates[0], make_sample(20, 2), mates[1]], shadow)
    assert torch.equal(first[[0, 2]], second[[0, 2]])
    assert not torch.equal(first[1], second[1])


def test_training_and_evaluation_see_the_same_loss(decoder: Decoder) -> None:
    shadow = make_shadow(decoder)
    assert_close(
        learn(decoder, SAMPLES, shadow), evaluate(decoder, SAMPLES, shadow), atol=1e-4, rtol=1e-5
    )


def test_gradients_add_up_over_micro_batches(decoder: Decoder) -> None:
    together, apart = make_shadow(decoder), make_shadow(decoder)
    learn(decoder, SAMPLES, together)
    for sample in SAMPLES:
        learn(decoder, [sample], apart)
    largest = together.gradient.abs().max()
    assert_close(apart.gradient / largest, together.gradient / largest, atol=1e-5, rtol=0.0)


def test_only_the_gradient_changes(decoder: Decoder) -> None:
    shadow = make_shadow(decoder)
    with unchanged(shadow.parameters, *frozen_tensors(decoder), *compute_copies(shadow)):
        learn(decoder, SAMPLES, shadow)
        evaluate(decoder, SAMPLES, shadow)
    assert shadow.gradient.any()


def frozen_tensors(decoder: Decoder) -> list[Tensor]:
    """Every tensor of the base weights."""
    weights = decoder.weights
    linears = [linear for layer in weights.layers for linear in layer.linears()]
    linears += [weights.head, weights.head_gradient]
    tensors = [t for linear in linears for t in vars(linear).values() if isinstance(t, Tensor)]
    norms = [n for layer in weights.layers for n in (layer.attention_norm, layer.mlp_norm)]
    return [weights.embedding, weights.final_norm, *tensors, *norms]


def compute_copies(shadow: Shadow) -> list[Tensor]:
    layers, targets = range(shadow.layout.num_layers), shadow.layout.targets
    return [t for layer in layers for target in targets for t in shadow.operand(layer, target.name)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_evaluation_sees_the_factors_that_serving_would_see(tmp_path: Path, dtype) -> None:
    """Alpha / rank is no power of two here, so scaling after rounding would differ."""
    decoder = tiny_decoder(tmp_path, "llama")
    start = random_state(decoder, 3)
    shadow = Shadow(start, 7.0, dtype, torch.device("cpu"))
    bank = AdapterBank(start.layout, 2, dtype, torch.device("cpu"))
    bank.load(1, shadow.state())
    for layer in range(start.layout.num_layers):
        for target in start.layout.targets:
            a, b = shadow.operand(layer, target.name)
            bank_a, bank_b = bank.factors(layer, target.name).dense(1)
            assert torch.equal(a, bank_a)
            assert torch.equal(b, bank_b)


def test_a_shadow_holds_the_state_that_it_started_from(decoder: Decoder) -> None:
    start = random_state(decoder, 3)
    shadow = Shadow(start, 7.0, torch.float32, torch.device("cpu"))
    assert_close(shadow.state().flat, start.flat, atol=0.0, rtol=1e-6)
    shadow.reset(AdapterState(start.layout, torch.ones_like(start.flat)))
    assert_close(shadow.state().flat, torch.ones_like(start.flat), atol=0.0, rtol=1e-6)


def test_a_state_taken_from_a_shadow_does_not_follow_it(decoder: Decoder) -> None:
    shadow = make_shadow(decoder)
    state = shadow.state()
    with unchanged(state.flat):
        shadow.parameters.add_(1.0)
        shadow.refresh(range(shadow.layout.num_layers))
