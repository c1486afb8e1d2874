"""Is the gradient noise scale that training measures on its way the one that an offline look finds?

The default model learns ``clinc150`` for a while. Then, at parameters that stand still, the same
samples go through training's own steps (a few packed micro-batches each, norms taken as they are
added up) and through an independent look: every sample's gradient by itself, kept apart, the signal
from the inner product of two disjoint halves, the noise from the spread around their mean. Last,
training goes on at its own rate, and what it measures with parameters on the move is shown too.

Run as: python benchmarks/noise_scale.py
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common import Report, checkpoint_folder, make_parser, progress

# isort: split
import torch
from torch import Tensor

from collm.cluster.planning.noise_scale import NoiseScale
from collm.lora.layout import lora_layout
from collm.lora.shadow import Shadow
from collm.lora.state import initial_state
from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.model.tokenizer import Tokenizer
from collm.model.weights import load_weights
from collm.training.config import JobConfig
from collm.training.corpus import Corpus
from collm.training.learning import Learning
from collm.training.measuring import Limits
from collm.training.microbatch import pack
from collm.training.passes import Pass
from collm.training.samples import Conversation, TokenSample, prepare_samples
from collm.types import GradientSums
from collm.workload.samples import load_samples
from unhurried import Unbounded, drain

_STILL = 1e-12
"""A learning rate that moves nothing."""


@dataclass(frozen=True, slots=True)
class Found:
    """One estimate."""

    noise: float
    """tr Σ per token."""
    signal: float
    """|G|²."""

    @property
    def phi_tokens(self) -> float:
        return self.noise / self.signal if self.signal > 0.0 else math.inf


def load(folder: Path, dtype: str) -> Decoder:
    checkpoint = Checkpoint(folder)
    weights = load_weights(checkpoint, checkpoint.spec, getattr(torch, dtype), torch.device("cpu"))
    return Decoder(checkpoint.spec, weights, 2048)


def read_samples(folder: Path, count: int) -> tuple[TokenSample, ...]:
    tokenizer = Tokenizer(folder, Checkpoint(folder).spec.eos_token_ids)
    conversations = [
        Conversation(
            messages=[{"role": one.role, "content": one.content} for one in sample.messages]
        )
        for sample in load_samples("clinc150")[: 4 * count : 4]
    ]
    return prepare_samples(conversations, tokenizer, max_tokens=256).samples


def make_learning(config: JobConfig, decoder: Decoder, samples: Sequence[TokenSample]) -> Learning:
    start = initial_state(lora_layout(decoder.spec, config.rank), config.seed)
    corpus = Corpus(samples, held_out_share=0.0, max_held_out=1, validation=(), general=())
    limits = Limits(Unbounded(), 1.0, config.micro_batch_tokens)
    return Learning(config, decoder, start, corpus, limits, "keep", num_epochs=None)


def train(learning: Learning, num_steps: int) -> list[GradientSums]:
    """Take optimizer steps; return what each says of its noise."""
    sums = []
    for number in range(num_steps):
        while not learning.is_step_due:
            drain(learning.learn())
        report = drain(learning.step())
        sums.append(report.gradient)
        if number % 10 == 0:
            progress(f"step {number}, loss {report.loss:.3f}")
    return sums


def pooled(sums: Sequence[GradientSums]) -> Found:
    """Return what steps say together."""
    total = GradientSums()
    for one in sums:
        total = total.plus(one)
    noise = total.spread / total.num_differences
    return Found(noise, (total.square - noise * total.inverse_tokens) / total.num_steps)


def offline(decoder: Decoder, shadow: Shadow, samples: Sequence[TokenSample]) -> Found:
    """Look at every sample's gradient by itself, in training's parameters."""
    halves = [torch.zeros_like(shadow.gradient, dtype=torch.float64) for _ in range(2)]
    weights, squares, num_tokens = [0.0, 0.0], 0.0, 0
    for index, sample in enumerate(samples):
        gradient, weight = gradient_of(decoder, shadow, sample)
        halves[index % 2] += gradient
        weights[index % 2] += weight
        squares += float(gradient.double().square().sum()) / weight
        num_tokens += len(sample.token_ids)
        if index % 100 == 0:
            progress(f"sample {index} of {len(samples)}")
    means = [half / weight for half, weight in zip(halves, weights, strict=True)]
    whole, weight = halves[0] + halves[1], sum(weights)
    spread = squares - float(whole.square().sum()) / weight
    return Found(spread / (len(samples) - 1) * num_tokens / weight, float(means[0] @ means[1]))


def gradient_of(decoder: Decoder, shadow: Shadow, sample: TokenSample) -> tuple[Tensor, float]:
    """Return a sample's gradient of its summed loss, and its supervised weight."""
    batch = pack([sample])
    shadow.gradient.zero_()
    for _ in Pass(decoder, batch, "offline", 256).learn(shadow, "keep"):
        pass
    return shadow.gradient, batch.supervised_weight


def bootstrap(sums: Sequence[GradientSums], seed: int = 0) -> tuple[float, float]:
    """Return the middle 90 % of φ over steps drawn again."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(500):
        drawn = torch.randint(len(sums), (len(sums),), generator=generator).tolist()
        values.append(pooled([sums[index] for index in drawn]).phi_tokens)
    values.sort()
    return values[25], values[-26]


def main() -> None:
    parser = make_parser(__doc__ or "", rounds=4, rounds_are="passes over the samples, standing")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--warm-up", type=int, default=20, help="steps before the comparison")
    parser.add_argument("--tokens-per-step", type=int, default=1024)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.samples, arguments.warm_up, arguments.rounds = 64, 2, 1
    report = Report("Gradient noise scale: measured in training, and offline", arguments)
    folder = checkpoint_folder(arguments)
    decoder, samples = load(folder, arguments.dtype), read_samples(folder, arguments.samples)
    config = JobConfig(
        adapter="clinc",
        data="clinc150",
        tokens_per_step=arguments.tokens_per_step,
        micro_batch_tokens=arguments.tokens_per_step // 4,
        replay_share=0.0,
    )
    moving = make_learning(config, decoder, samples)
    train(moving, arguments.warm_up)
    still = make_learning(replace(config, learning_rate=_STILL), decoder, samples)
    still.state.shadow.load_parameters(moving.state.shadow.parameters)
    num_tokens = sum(len(sample.token_ids) for sample in samples)
    num_steps = max(2, arguments.rounds * num_tokens // config.tokens_per_step)
    standing = train(still, num_steps)
    found = offline(decoder, still.state.shadow, samples)
    on_the_move = train(moving, num_steps)
    faded = NoiseScale()
    for sums in on_the_move:
        faded.add(sums)
    low, high = bootstrap(standing)
    rows = [row("offline, sample by sample", found, found)]
    rows.append(row("in training, standing", pooled(standing), found))
    rows.append(row("in training, on the move", pooled(on_the_move), found))
    report.table(f"{len(samples)} samples, {num_tokens} tokens, {num_steps} steps", rows)
    report.note(f"standing, 90 % of φ over steps drawn again: {low:.0f} to {high:.0f} tokens")
    report.note(f"faded over {num_steps} steps on the move: φ = {faded.phi_tokens:.0f} tokens")
    report.finish()


def row(name: str, one: Found, reference: Found) -> dict[str, str]:
    difference = one.phi_tokens / reference.phi_tokens - 1.0
    return {
        "estimate": name,
        "tr Σ per token": f"{one.noise:.4g}",
        "|G|²": f"{one.signal:.4g}",
        "φ, tokens": f"{one.phi_tokens:.0f}",
        "φ beside offline": f"{difference:+.1%}",
    }


if __name__ == "__main__":
    main()
