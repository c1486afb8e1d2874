"""LoRA training speed beside a plain ``peft`` loop, and how long each kind of quantum takes.

All sides train rank 8 on every linear of attention and MLP, with AdamW, over the same checkpoint
folder in the same dtype, and take turns in one process with the same number of threads. A turn is
one optimizer step over the same samples. Tokens are those of the samples on every side: padding
does not count, and a beginning that samples share counts for each of them.

It fails when a kind of quantum takes longer than its limit at p99, on a machine that is quiet.

Run as: python benchmarks/training.py
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common import (
    Rates,
    Report,
    checkpoint_folder,
    interleave,
    make_parser,
    progress,
)

# isort: split
import torch

from collm.clock import MonotonicClock
from collm.gate.config import GateConfig
from collm.lora.layout import lora_layout
from collm.lora.state import initial_state
from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.model.tokenizer import Tokenizer
from collm.model.weights import load_weights
from collm.pacing.config import PacingConfig
from collm.pacing.cost import QuantumCostModel
from collm.training.config import JobConfig
from collm.training.corpus import open_corpus
from collm.training.events import TrainReport
from collm.training.job import Job
from collm.training.samples import Conversation, TokenSample, prepare_samples
from collm.training.trainer import Trainer
from collm.workload.samples import load_samples
from quantum_log import QuantumLog
from training_sides import CollmSide, PeftSide, max_loss_difference, without_shared_prefix

_SNAPSHOT_EVERY_S = 5.0
_REBASE_EVERY_S = 6.0
_MAX_LOSS_DIFFERENCE = 1e-3
"""Nats per token between the sides' losses on the same samples in float32. In bfloat16 the few
tokens of short chats differ by some hundredths: each side rounds in an order of its own."""


def main() -> None:
    """Measure speed, then quanta, then report."""
    parser = make_parser(__doc__ or "", rounds=7)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=60.0, help="of quanta, per sample set")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 8.0
    report = Report("Training speed", arguments)
    folder = checkpoint_folder(arguments)
    checkpoint = Checkpoint(folder)
    weights = load_weights(
        checkpoint, checkpoint.spec, getattr(torch, arguments.dtype), torch.device("cpu")
    )
    decoder = Decoder(checkpoint.spec, weights, 2048)
    prepared = chats(folder)
    length = 32 if arguments.quick else 256
    workloads = {
        f"4 × {length}, fully supervised": random_samples(4, length, checkpoint.spec.vocab_size),
        "16 chats of clinc150": prepared[:16],
    }
    _check_losses(report, workloads, folder)
    report.table(
        "Training tokens/s (median, lowest to highest); ratio to the faster peer",
        [_speed_row(report, name, samples, folder, decoder) for name, samples in workloads.items()],
    )
    _check_quanta(report, prepared, length, decoder)


def _check_losses(
    report: Report, workloads: Mapping[str, Sequence[TokenSample]], folder: Path
) -> None:
    """Take a first step of each side in float32; end if they do not train on the same loss."""
    checkpoint, dtype = Checkpoint(folder), torch.float32
    weights = load_weights(checkpoint, checkpoint.spec, dtype, torch.device("cpu"))
    decoder = Decoder(checkpoint.spec, weights, 2048)
    for name, samples in workloads.items():
        peer = PeftSide(folder, dtype, samples, are_adapters_float32=True)
        difference = max_loss_difference([CollmSide(decoder, samples), peer])
        report.note(f"{name}: first losses in float32 differ by {difference:.1e} nats")
        if not difference < _MAX_LOSS_DIFFERENCE:
            raise SystemExit("the sides do not train on the same loss")


def _check_quanta(
    report: Report, prepared: Sequence[TokenSample], length: int, decoder: Decoder
) -> None:
    """Time the quanta of short, medium and the longest samples; finish the report.

    Raises:
        SystemExit: A kind of quantum is past its limit at p99.
    """
    longest = JobConfig(adapter="a", data="none").micro_batch_tokens
    vocab_size = decoder.spec.vocab_size
    sets = {"chats of clinc150": prepared}
    for num_tokens in (length, longest):
        sets[f"{num_tokens} tokens each"] = random_samples(64, num_tokens, vocab_size)
    late = []
    for name, samples in sets.items():
        log = _measure_quanta(report, name, samples, decoder)
        for kind, p99_ms in log.late_kinds().items():
            late.append(f"{kind} ({name}): {p99_ms:.1f} ms, limit {log.limit_ms:g} ms")
    for text in late:
        report.note(f"past its limit at p99: {text}")
    report.finish()
    if late:
        raise SystemExit(f"{len(late)} kinds of quanta are past their limit at p99")


def chats(folder: Path) -> tuple[TokenSample, ...]:
    """Return chats of a shipped set, encoded as the replica's own training does."""
    tokenizer = Tokenizer(folder, Checkpoint(folder).spec.eos_token_ids)
    conversations = (
        Conversation(messages=[{"role": m.role, "content": m.content} for m in sample.messages])
        for sample in load_samples("clinc150")[:2_000]
    )
    config = JobConfig(adapter="a", data="clinc150")
    return prepare_samples(conversations, tokenizer, max_tokens=config.micro_batch_tokens).samples


def random_samples(n: int, length: int, vocab_size: int) -> tuple[TokenSample, ...]:
    """Return samples in which everything after the first token is to be learned."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(3, vocab_size, (n, length), generator=generator).tolist()
    return tuple(TokenSample(tuple(row), (False,) + (True,) * (length - 1)) for row in rows)


def _speed_row(
    report: Report, name: str, samples: Sequence[TokenSample], folder: Path, decoder: Decoder
) -> dict[str, Any]:
    ours, apart = CollmSide(decoder, samples), CollmSide(decoder, samples)
    dtype = getattr(torch, report.arguments.dtype)
    peers = {
        "peft": PeftSide(folder, dtype, samples, are_adapters_float32=True),
        f"peft, adapters {report.arguments.dtype}": PeftSide(
            folder, dtype, samples, are_adapters_float32=False
        ),
    }
    difference = max_loss_difference([ours, *peers.values()])
    report.note(f"{name}: first losses in {report.arguments.dtype} differ by {difference:.4f} nats")
    num_tokens = sum(len(sample.token_ids) for sample in samples)

    def rate(step: Callable[[], float], turn: int) -> float:
        started_s = time.perf_counter()
        step()
        return num_tokens / (time.perf_counter() - started_s)

    sides = {
        "collm": partial(rate, ours.step),
        "collm, each prefix computed": partial(rate, without_shared_prefix(apart.step)),
        **{peer: partial(rate, side.step) for peer, side in peers.items()},
    }
    rates = interleave(sides, report.arguments.rounds)
    report.raw[name] = {side: rate.values for side, rate in rates.items()}
    row = {"samples": name, "tokens": num_tokens} | _cells(rates, list(peers))
    progress(str(row))
    return row


def _cells(rates: Mapping[str, Rates], peers: list[str]) -> dict[str, str]:
    best = max(rates[peer].median for peer in peers)
    ratio = rates["collm"].median / best
    apart = rates["collm, each prefix computed"].median / best
    cells = {side: str(rate) for side, rate in rates.items()}
    return cells | {"ratio": f"{ratio:.2f}", "ratio, each prefix computed": f"{apart:.2f}"}


def _measure_quanta(
    report: Report, name: str, samples: Sequence[TokenSample], decoder: Decoder
) -> QuantumLog:
    """Train as an idle replica does, from an empty cost model on, and time every quantum."""
    log = QuantumLog(PacingConfig().max_quantum_ms)
    cost = QuantumCostModel()
    config = JobConfig(adapter="a", data=name, evaluate_every=4)
    start = initial_state(lora_layout(decoder.spec, config.rank), 0)
    corpus = open_corpus(config, samples)
    job = Job(config, decoder, start, corpus, GateConfig(), cost, log.limit_ms / 1e3, "keep")
    trainer = Trainer([job], MonotonicClock())
    ends_s = time.monotonic() + report.arguments.seconds
    snapshot_at_s, rebase_at_s = 0.0, time.monotonic() + _REBASE_EVERY_S
    while time.monotonic() < ends_s:
        if time.monotonic() >= rebase_at_s:
            # Nothing changes by it, but it is as much work as upon another version.
            trainer.rebase(config.adapter, start, start)
            rebase_at_s = time.monotonic() + _REBASE_EVERY_S
        if time.monotonic() >= snapshot_at_s:
            trainer.request_snapshots()
            snapshot_at_s = time.monotonic() + _SNAPSHOT_EVERY_S
        quantum = trainer.peek()
        assert quantum is not None
        started_s = time.perf_counter()
        events = trainer.run(quantum)
        seconds = time.perf_counter() - started_s
        cost.observe(quantum, seconds)
        log.add(quantum, seconds)
        log.num_tokens += sum(e.num_tokens for e in events if isinstance(e, TrainReport))
    report.table(f"Quanta, {name}, micro-batches sized by the cost model", log.rows())
    report.raw[f"quanta/{name}"] = {kind: sorted(ms) for kind, ms in log.spent_ms.items()}
    report.note(f"{name}: {log.rate():.0f} training tokens/s in quanta that are sized so")
    return log


if __name__ == "__main__":
    main()
