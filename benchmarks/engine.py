"""Decode and prefill speed of the engine beside ``transformers`` and ``peft``.

All sides load the same checkpoint folder in the same dtype and take turns in one process with the
same number of threads. ``transformers`` is ``generate`` with a static cache; the rows with adapters
compare to ``peft`` with ``adapter_names``, unmerged as well and with the same factors.
Before anything is timed, the sides must agree on greedy answers in float32.

Run as: python benchmarks/engine.py
"""

import argparse
import tempfile
from collections.abc import Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from common import Rates, Report, checkpoint_folder, interleave, make_parser, progress

# isort: split
import torch

from collm.lora.layout import lora_layout
from collm.lora.peft_folder import save_peft
from collm.lora.state import AdapterState, initial_state
from collm.model.checkpoint import Checkpoint
from collm.model.tokenizer import Tokenizer
from engine_sides import BASE, CollmSide, Side, TransformersSide

RANK = 16
NUM_ADAPTERS = 4
_NEAR_TIE = 0.05
"""Logits so close may swap places in float32, where sums are taken in another order."""
_QUESTIONS = ("What is the capital of France?", "Write a short poem about the sea.")


def main() -> None:
    """Check, measure, report."""
    parser = make_parser(__doc__ or "", rounds=5)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--concurrent", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=184, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=48, help="output tokens of each sequence")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.concurrent, arguments.new = 1, [1, 4], 8
        arguments.context = 32
    report = Report("Engine speed", arguments)
    folder = checkpoint_folder(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        adapters = make_adapters(folder, Path(scratch))
        _check_answers(report, folder, adapters)
        _measure(report, folder, adapters)
    report.finish()


def make_adapters(folder: Path, scratch: Path, rank: int = RANK) -> dict[str, Path]:
    """Save adapters of random factors that change answers a little."""
    layout = lora_layout(Checkpoint(folder).spec, rank)
    paths = {}
    for seed, name in enumerate(adapter_names(NUM_ADAPTERS, NUM_ADAPTERS, rank)):
        flat = initial_state(layout, seed).flat.clone()
        generator = torch.Generator().manual_seed(seed)
        for factors in layout.views(flat):
            factors.b.normal_(0.0, 0.05, generator=generator)
        path = scratch / name
        path.mkdir()
        save_peft(AdapterState(layout, flat), path, BASE)
        paths[path.name] = path
    return paths


def _check_answers(report: Report, folder: Path, adapters: dict[str, Path]) -> None:
    """Compare greedy answers in float32; a token may differ at a near-tie only."""
    spec = Checkpoint(folder).spec
    tokenizer = Tokenizer(folder, spec.eos_token_ids)
    num_new = 8 if report.arguments.quick else 32
    ours = CollmSide(folder, torch.float32, adapters)
    base = TransformersSide(folder, torch.float32, {})
    adapted = TransformersSide(folder, torch.float32, adapters)
    for question in _QUESTIONS:
        prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
        for model, theirs in ((BASE, base), (*adapter_names(1, 1), adapted)):
            answer = ours.generate(prompt, model, num_new)
            expected = theirs.generate(prompt, model, num_new)
            num_same = _num_same(answer, expected)
            if num_same < num_new:
                gap = theirs.gap_of_best_two([*prompt, *expected[:num_same]], model)
                verdict = f"then a near-tie (logits {gap:.4f} apart)"
                if gap > _NEAR_TIE:
                    raise SystemExit(f"{model}: {answer} is not {expected}, {gap} apart")
            else:
                verdict = "all"
            text = tokenizer.decode(answer)
            same = f"{num_same} of {num_new} greedy tokens equal, {verdict}"
            report.note(f"float32, {model}: {same}: {text!r}")


def _num_same(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip_longest(a, b)) if x != y), len(a))


def _measure(report: Report, folder: Path, adapters: dict[str, Path]) -> None:
    arguments = report.arguments
    dtype = getattr(torch, arguments.dtype)
    ours = CollmSide(folder, dtype, adapters)
    base = TransformersSide(folder, dtype, {})
    adapted = TransformersSide(folder, dtype, adapters)
    vocab_size = Checkpoint(folder).spec.vocab_size
    rows = []
    for num_adapters in (0, 1, NUM_ADAPTERS):
        for n in arguments.concurrent:
            if num_adapters <= n:
                theirs = adapted if num_adapters else base
                models = adapter_names(n, num_adapters)
                sides = _decode_sides(arguments, ours, theirs, models, vocab_size)
                rates = interleave(sides, arguments.rounds)
                rows.append({"sequences": n, "adapters": num_adapters} | _cells(rates))
                progress(f"decode {rows[-1]}")
                report.raw[f"decode/{n}/{num_adapters}"] = _values(rates)
    report.table(
        f"Decode tokens/s, context {arguments.context} to {arguments.context + arguments.new};"
        " peer: transformers, with adapters peft",
        rows,
    )
    report.table("Prefill tokens/s; peer: transformers", _prefill(report, ours, base, vocab_size))


def adapter_names(n: int, num_adapters: int, rank: int = RANK) -> list[str]:
    """Return what each of ``n`` prompts uses, adapters in turn."""
    return [f"rank{rank}-{i % num_adapters}" if num_adapters else BASE for i in range(n)]


def _decode_sides(
    arguments: argparse.Namespace, ours: Side, theirs: Side, models: list[str], vocab_size: int
) -> dict[str, Any]:
    def measure(side: Side, turn: int) -> float:
        prompts = random_prompts(len(models), arguments.context, vocab_size, turn)
        return side.decode(prompts, models, arguments.new)

    return {"collm": partial(measure, ours), "peer": partial(measure, theirs)}


def _prefill(report: Report, ours: Side, theirs: Side, vocab_size: int) -> list[dict[str, Any]]:
    shapes = [(1, 32), (2, 16)] if report.arguments.quick else [(1, 200), (8, 200), (1, 1024)]
    rows = []
    for n, length in shapes:

        def measure(side: Side, turn: int, n: int = n, length: int = length) -> float:
            # Other prompts than those of the decode rows: nothing may come from a prefix cache.
            return side.prefill(random_prompts(n, length, vocab_size, 1_000 * length + turn))

        sides = {"collm": partial(measure, ours), "peer": partial(measure, theirs)}
        rates = interleave(sides, report.arguments.rounds)
        rows.append({"prompts": f"{n} × {length}"} | _cells(rates))
        progress(f"prefill {rows[-1]}")
        report.raw[f"prefill/{n}x{length}"] = _values(rates)
    return rows


def random_prompts(n: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Return prompts that no other seed gives."""
    generator = torch.Generator().manual_seed(n * 1_000_003 + seed)
    shape = (n, length)
    prompts: list[list[int]] = torch.randint(3, vocab_size, shape, generator=generator).tolist()
    return prompts


def _cells(rates: Mapping[str, Rates]) -> dict[str, Any]:
    ratio = rates["collm"].median / rates["peer"].median
    return {**{name: str(rate) for name, rate in rates.items()}, "collm / peer": f"{ratio:.2f}"}


def _values(rates: Mapping[str, Rates]) -> dict[str, tuple[float, ...]]:
    return {name: rate.values for name, rate in rates.items()}


if __name__ == "__main__":
    main()
