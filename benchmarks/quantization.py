"""What a quantized base costs and brings: perplexity on real text, memory, and speed.

Perplexity is that of medical answers (``medquad``, shipped), given their questions, under the base
alone; its error is that of the paired difference to bfloat16, sample by sample. Speeds of all
formats are taken in turn in one process: decoding through the whole engine, and training steps of
rank 8 on every linear.

Run as: python benchmarks/quantization.py
"""

import argparse
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common import Rates, Report, checkpoint_folder, interleave, make_parser, progress

# isort: split
import torch
from torch import Tensor

from collm.lora.layout import lora_layout
from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.model.layers import Target
from collm.model.tokenizer import Tokenizer
from collm.model.weights import load_weights
from collm.ops.quantized import Quantization
from collm.training.microbatch import pack
from collm.training.passes import Operand, Pass
from collm.training.samples import Conversation, TokenSample, prepare_samples
from collm.workload.samples import load_samples
from engine_sides import BASE, CollmSide
from training_sides import CollmSide as TrainingSide

_FORMATS: Mapping[str, Quantization | None] = {"none": None, "int8": "int8", "int4": "int4"}
_BATCH_TOKENS = 2_048
_MIB = 2**20


def main() -> None:
    """Measure each format, then report."""
    parser = make_parser(__doc__ or "", rounds=5)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--samples", type=int, default=200, help="answers that are measured")
    parser.add_argument("--concurrent", type=int, nargs="+", default=[1, 8, 32])
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.samples, arguments.concurrent = 1, 4, [1]
    report = Report("Quantized base", arguments)
    folder = checkpoint_folder(arguments)
    dtype = getattr(torch, arguments.dtype)
    decoders = {name: _decoder(folder, dtype, kind) for name, kind in _FORMATS.items()}
    report.table("Quality and memory", _quality(report, folder, decoders))
    _speed(report, folder, dtype, decoders)
    report.finish()


def _decoder(folder: Path, dtype: torch.dtype, quantization: Quantization | None) -> Decoder:
    checkpoint = Checkpoint(folder)
    started_s = time.perf_counter()
    weights = load_weights(checkpoint, checkpoint.spec, dtype, torch.device("cpu"), quantization)
    progress(f"loaded {quantization} in {time.perf_counter() - started_s:.1f} s")
    return Decoder(checkpoint.spec, weights, 2048)


def _quality(report: Report, folder: Path, decoders: Mapping[str, Decoder]) -> list[dict[str, Any]]:
    samples = _answers(folder, report.arguments.samples)
    num_tokens = sum(sample.num_supervised for sample in samples)
    losses = {name: _losses(decoder, samples) for name, decoder in decoders.items()}
    rows = []
    for name, decoder in decoders.items():
        mean = sum(losses[name]) / num_tokens
        # Sums of nats, so that the differences weigh samples as the mean does.
        differences = [b - a for a, b in zip(losses["none"], losses[name], strict=True)]
        error = statistics.stdev(differences) * len(samples) ** 0.5 / num_tokens
        rows.append(
            {
                "weights": name,
                "linears, MiB": f"{decoder.weights.num_bytes / _MIB:.0f}",
                "nats a token": f"{mean:.4f}",
                "above bfloat16": f"{sum(differences) / num_tokens:+.4f} ± {error:.4f}",
                "perplexity": f"{math.exp(mean):.3f}",
            }
        )
        progress(str(rows[-1]))
    report.note(f"perplexity over {num_tokens} tokens of {len(samples)} answers")
    report.raw["losses"] = losses
    return rows


def _answers(folder: Path, count: int) -> Sequence[TokenSample]:
    tokenizer = Tokenizer(folder, Checkpoint(folder).spec.eos_token_ids)
    conversations = (
        Conversation(messages=[{"role": m.role, "content": m.content} for m in sample.messages])
        for sample in load_samples("medquad")
    )
    return prepare_samples(conversations, tokenizer, max_tokens=512).samples[:count]


def _losses(decoder: Decoder, samples: Sequence[TokenSample]) -> list[float]:
    """Return the summed nats of each sample under the base alone."""
    nothing = _no_adapter(decoder)
    losses: list[float] = []
    for batch in _batches(samples):
        run = Pass(decoder, pack(batch), "quantization", 64)
        for _ in run.evaluate(nothing):
            pass
        losses += run.loss.total.tolist()
    return losses


def _batches(samples: Iterable[TokenSample]) -> Iterable[list[TokenSample]]:
    batch: list[TokenSample] = []
    for sample in samples:
        if sum(len(s.token_ids) for s in [*batch, sample]) > _BATCH_TOKENS and batch:
            yield batch
            batch = []
        batch.append(sample)
    yield batch


def _no_adapter(decoder: Decoder) -> Operand:
    dtype = decoder.weights.embedding.dtype
    shapes = {t.name: (t.in_features, t.out_features) for t in lora_layout(decoder.spec, 1).targets}

    def operand(layer: int, target: Target) -> tuple[Tensor, Tensor]:
        return tuple(torch.zeros(1, size, dtype=dtype) for size in shapes[target])  # type: ignore[return-value]

    return operand


def _speed(
    report: Report, folder: Path, dtype: torch.dtype, decoders: Mapping[str, Decoder]
) -> None:
    engines = {
        name: CollmSide(folder, dtype, {}, quantization) for name, quantization in _FORMATS.items()
    }
    vocab_size = Checkpoint(folder).spec.vocab_size
    rows = []
    for n in report.arguments.concurrent:

        def decode(engine: CollmSide, turn: int, n: int = n) -> float:
            prompts = _tokens(n, 184, vocab_size, turn)
            return engine.decode(prompts, [BASE] * n, 48)

        rates = interleave(
            {name: partial(decode, engine) for name, engine in engines.items()},
            report.arguments.rounds,
        )
        rows.append({"tokens/s": f"decoding, {n} sequences"} | _cells(rates))
        progress(str(rows[-1]))

    def prefill(engine: CollmSide, turn: int) -> float:
        return engine.prefill(_tokens(1, 1_024, vocab_size, 1_000_000 + turn))

    sides = {name: partial(prefill, engine) for name, engine in engines.items()}
    rows.append({"tokens/s": "prefill, 1,024 tokens"} | _cells(interleave(sides, 3)))
    rows.append({"tokens/s": "training, 4 × 256 tokens"} | _cells(_train(decoders, vocab_size)))
    report.table("Speed (median, lowest to highest); ratios to bfloat16", rows)


def _train(decoders: Mapping[str, Decoder], vocab_size: int) -> dict[str, Rates]:
    rows = _tokens(4, 256, vocab_size, 0)
    samples = [TokenSample(tuple(row), (False,) + (True,) * 255) for row in rows]
    trainers = {name: TrainingSide(decoder, samples) for name, decoder in decoders.items()}

    def rate(trainer: TrainingSide, turn: int) -> float:
        started_s = time.perf_counter()
        trainer.step()
        return 1_024 / (time.perf_counter() - started_s)

    return interleave({name: partial(rate, trainer) for name, trainer in trainers.items()}, 3)


def _tokens(n: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(n * 1_000_003 + seed)
    rows: list[list[int]] = torch.randint(3, vocab_size, (n, length), generator=generator).tolist()
    return rows


def _cells(rates: Mapping[str, Rates]) -> dict[str, str]:
    plain = rates["none"].median
    cells = {name: str(rate) for name, rate in rates.items()}
    return cells | {f"{k} / none": f"{rates[k].median / plain:.2f}" for k in ("int8", "int4")}


if __name__ == "__main__":
    main()
