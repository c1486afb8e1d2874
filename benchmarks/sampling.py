"""How long choosing a step's tokens takes, by parameters, beside plain torch and ``transformers``.

``collm`` is one call of the kernels for all rows; ``reference`` is the same row by row in torch, as
where the kernels cannot run; ``transformers`` is its logits processors with softmax and
multinomial, over all rows at once. Probabilities fall with a power of the rank: with the first
power nine tenths lie on thousands of tokens, with the second on a few. Last, whole decode steps of
the engine are compared, greedy and drawn, after prompts that are in the prefix cache.

Run as: python benchmarks/sampling.py
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from common import Report, checkpoint_folder, interleave, make_parser, progress

# isort: split
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from collm.model.checkpoint import Checkpoint
from collm.ops.native import library
from collm.ops.sampling import SamplingRow, sample, token_logprobs
from collm.types import SamplingParams
from engine import random_prompts
from engine_sides import BASE, CollmSide

_PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "T 1": {},
    "T 0.7, top-p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "T 1, top-k 50": {"top_k": 50},
}
_NUM_KNOWN = 400
"""Tokens of each row's prompt and output, half of them each."""
_CALLS = 5
"""In one measurement."""
_NUM_TOP = 5


def main() -> None:
    """Time calls, then whole steps, then report."""
    parser = make_parser(__doc__ or "", rounds=7)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.rows = 1, [4]
    report = Report("Choosing tokens", arguments)
    folder = checkpoint_folder(arguments)
    vocab_size = Checkpoint(folder).spec.vocab_size
    report.table("Microseconds for all rows of a step", _calls(report, vocab_size))
    report.table(
        "Microseconds with penalties, or for log-probabilities", _extras(report, vocab_size)
    )
    ours = CollmSide(folder, getattr(torch, arguments.dtype), {})
    report.table("Decode steps, tokens/s", _steps(report, ours, vocab_size))
    report.finish()


def _calls(report: Report, vocab_size: int) -> list[dict[str, Any]]:
    rows = []
    for power in (1, 2):
        for num_rows in report.arguments.rows:
            logits = _make_logits(num_rows, vocab_size, power, report.arguments.dtype)
            for name, params in _PARAMS.items():
                run = partial(sample, logits, _make_rows(num_rows, vocab_size, params))
                sides = {
                    "collm": partial(_time_us, run),
                    "reference": partial(_time_reference_us, run),
                    "transformers": partial(_time_us, _peer(logits, params)),
                }
                rows.append(
                    {"power": power, "rows": num_rows, "parameters": name}
                    | _cells(report, f"{power}/{num_rows}/{name}", sides)
                )
    return rows


def _extras(report: Report, vocab_size: int) -> list[dict[str, Any]]:
    num_rows = max(report.arguments.rows)
    logits = _make_logits(num_rows, vocab_size, 1, report.arguments.dtype)
    penalties = {"T 1, repetition 1.1": {"repetition_penalty": 1.1}}
    penalties["T 1, frequency 0.5"] = {"frequency_penalty": 0.5}
    runs = {
        name: partial(sample, logits, _make_rows(num_rows, vocab_size, params))
        for name, params in penalties.items()
    }
    wanted = [_NUM_TOP] * num_rows
    runs[f"log-probabilities, {_NUM_TOP} beside"] = partial(
        token_logprobs, logits, list(range(num_rows)), wanted
    )
    rows = []
    for name, run in runs.items():
        sides = {"collm": partial(_time_us, run), "reference": partial(_time_reference_us, run)}
        rows.append({"rows": num_rows, "what": name} | _cells(report, name, sides))
    return rows


def _steps(report: Report, ours: CollmSide, vocab_size: int) -> list[dict[str, Any]]:
    context, num_new = (32, 8) if report.arguments.quick else (184, 48)

    def measure(params: dict[str, Any], num_rows: int, _turn: int) -> float:
        ours.sampling = params
        prompts = random_prompts(num_rows, context, vocab_size, 0)
        return ours.decode(prompts, [BASE] * num_rows, num_new)

    rows = []
    for num_rows in report.arguments.rows:
        sides = {name: partial(measure, params, num_rows) for name, params in _PARAMS.items()}
        rows.append({"sequences": num_rows} | _cells(report, f"steps/{num_rows}", sides))
    return rows


def _cells(report: Report, name: str, sides: dict[str, Callable[[int], float]]) -> dict[str, str]:
    rates = interleave(sides, report.arguments.rounds)
    report.raw[name] = {side: rate.values for side, rate in rates.items()}
    cells = {side: str(rate) for side, rate in rates.items()}
    progress(f"{name}: {cells}")
    return cells


def _make_logits(num_rows: int, vocab_size: int, power: float, dtype: str) -> Tensor:
    """Make rows whose probabilities fall with a power of the rank, each in an order of its own."""
    generator = torch.Generator().manual_seed(0)
    ranked = 20.0 - power * torch.arange(1, vocab_size + 1).log()
    orders = [torch.randperm(vocab_size, generator=generator) for _ in range(num_rows)]
    return torch.stack([ranked[order] for order in orders]).to(getattr(torch, dtype))


def _make_rows(num_rows: int, vocab_size: int, params: dict[str, Any]) -> list[SamplingRow]:
    known = random_prompts(num_rows, _NUM_KNOWN, vocab_size, 0)
    sampling = SamplingParams(**params)
    return [
        SamplingRow(sampling, known[index], _NUM_KNOWN // 2, str(index), frozenset())
        for index in range(num_rows)
    ]


def _peer(logits: Tensor, params: dict[str, Any]) -> Callable[[], list[int]]:
    temperature = params.get("temperature", 1.0)
    if temperature == 0.0:
        return lambda: logits.argmax(dim=-1).tolist()
    steps = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if "top_k" in params:
        steps.append(TopKLogitsWarper(params["top_k"]))
    if "top_p" in params:
        steps.append(TopPLogitsWarper(params["top_p"]))

    def run() -> list[int]:
        scores = steps(None, logits.float())
        tokens: list[int] = torch.multinomial(scores.softmax(dim=-1), 1)[:, 0].tolist()
        return tokens

    return run


def _time_us(run: Callable[[], object], _turn: int) -> float:
    started_s = time.perf_counter()
    for _ in range(_CALLS):
        run()
    return 1e6 * (time.perf_counter() - started_s) / _CALLS


def _time_reference_us(run: Callable[[], object], turn: int) -> float:
    usual = library.path()
    library.choose("torch")
    spent_us = _time_us(run, turn)
    library.choose(usual)
    return spent_us


if __name__ == "__main__":
    main()
