"""The tables of benchmarks/coordination.py: means over seeds, their intervals, the goals."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from collm.metrics.goodput import goodput_ratio, regret

Row = Mapping[str, Any]
Runs = Mapping[int, Row]
"""An arm's runs by seed."""
Key = tuple[str, str, float, float]
"""Devices, trace, load, minutes."""
T_95 = {1: math.nan, 2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Two-sided 95 % point of Student's t by the number of values."""
FIGURES: Mapping[str, tuple[str, str]] = {
    "F/s": ("throughput_per_s", ".2f"),
    "SLO": ("attainment", ".3f"),
    "Q": ("quality", ".3f"),
    "F·Q": ("paper_goodput_per_s", ".2f"),
    "task/s": ("task_goodput_per_s", ".3f"),
    "trained tokens/s": ("training_tokens_per_s", ".0f"),
}


def print_report(rows: Sequence[Row]) -> None:
    """Print a table for each trace and load, then the goals and the ablation over all of them."""
    print("All figures are SIMULATED: mean ± half of the 95 % interval over seeds.")
    cells = by_cell(rows)
    for (devices, trace, load, minutes), arms in sorted(cells.items()):
        print(f"\n### {devices} devices, {trace}, load {load:g}, {minutes:g} minutes\n")
        print_cell(arms)
    print("\n### Ratios of paper goodput, by seed\n")
    print_goals(cells)


def by_cell(rows: Sequence[Row]) -> dict[Key, dict[str, dict[int, Row]]]:
    """Return each arm's runs by cell and seed, each the mean over its draws."""
    draws: dict[Key, dict[str, dict[int, list[Row]]]] = {}
    for row in rows:
        cell = row["cell"]
        key = cell["devices"], cell["trace"], cell["load"], cell["minutes"]
        runs = draws.setdefault(key, {}).setdefault(row["arm"], {})
        runs.setdefault(cell["seed"], []).append(row["simulated"])
    return {
        key: {
            name: {seed: _mean_of(found) for seed, found in runs.items()}
            for name, runs in arms.items()
        }
        for key, arms in draws.items()
    }


def _mean_of(draws: Sequence[Row]) -> Row:
    names = [name for name, value in draws[0].items() if isinstance(value, int | float)]
    return {name: statistics.fmean(one[name] for one in draws) for name in names}


def print_cell(arms: Mapping[str, Runs]) -> None:
    """Print the figures of every arm."""
    print(f"| arm | seeds | {' | '.join(FIGURES)} | regret | p99 TTFT s |")
    print("|---|---|" + "---|" * (len(FIGURES) + 2))
    for name, runs in arms.items():
        cells = [
            interval([run[field] for run in runs.values()], form)
            for field, form in FIGURES.values()
        ]
        lost = paired(runs, arms.get("oracle", {}), lambda own, best: regret(own, best))
        ttft = interval([run["ttft_p99_s"] for run in runs.values()], ".2f")
        print(f"| {name} | {len(runs)} | {' | '.join(cells)} | {interval(lost, '.3f')} | {ttft} |")


def print_goals(cells: Mapping[Key, Mapping[str, Runs]]) -> None:
    """Print how collm stands to what it should beat, and to itself without its parts."""
    others = sorted({name for arms in cells.values() for name in arms} - {"collm"})
    print(f"| devices, trace, load | F / serve-only's | {' | '.join(others)} |")
    print("|---|---|" + "---|" * len(others))
    for (devices, trace, load, _), arms in sorted(cells.items()):
        own = arms.get("collm", {})
        kept = [
            own[seed]["throughput_per_s"] / run["throughput_per_s"]
            for seed, run in arms.get("serve-only", {}).items()
            if seed in own and run["throughput_per_s"]
        ]
        ratios = (interval(paired(own, arms.get(name, {}), _ratio), ".2f") for name in others)
        print(f"| {devices}, {trace}, {load:g} | {interval(kept, '.3f')} | {' | '.join(ratios)} |")


def _ratio(own: float, other: float) -> float:
    return goodput_ratio(own, other, base_quality=1.0) or math.nan


def paired(own: Runs, others: Runs, compare: Callable[[float, float], float]) -> list[float]:
    """Return the comparison of paper goodputs for each seed that both have."""
    name = "paper_goodput_per_s"
    return [
        compare(run[name], others[seed][name])
        for seed, run in own.items()
        if seed in others and others[seed][name] > 0.0
    ]


def interval(values: Sequence[float | None], form: str) -> str:
    """Return mean and half-width of the 95 % interval of the mean, in words."""
    found = [value for value in values if value is not None]
    if not found:
        return "–"
    mean = statistics.fmean(found)
    if len(found) == 1:
        return f"{mean:{form}}"
    half = T_95[len(found)] * statistics.stdev(found) / math.sqrt(len(found))
    return f"{mean:{form}} ± {half:{form}}"
