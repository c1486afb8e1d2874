"""Does coordinating serving and learning over a cluster pay? Simulated, all arms alike.

    python benchmarks/coordination.py --out coordination.jsonl
    python benchmarks/coordination.py --out coordination.jsonl --report

Eight replicas of the stated device `llama-3.1-8b-a30`, all alike or up to four times as slow as the
fastest, serve two Azure traces at several loads, under each policy of `collm.sim.policies` and
under `collm` without one of its coordinator's parts. All start from the same warm adapter; half-way
a domain appears that takes half of the requests. The oracle serves, from the start, the best
adapter that any of the arms ended with.

Where more is asked than all can bear, a run is chaotic: who is late depends on every step's time.
Draws repeat it with the same requests and other times; they are averaged before seeds are compared.

Every run becomes a line of the file; what is there already is not run again, so that a run can be
stopped and gone on with, and several can share the work. Every figure is simulated. Needs no model.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from coordination_arms import ABLATIONS, ARMS
from coordination_report import print_report
from coordination_runs import SLOWNESS, Cell, run_arm, run_oracle

TRACES = ("azure_conv_2023", "azure_code_2023")
LOADS = (0.5, 1.0, 2.0, 3.0)
ORACLE = "oracle"
COMPARED = tuple(name for name in ARMS if name not in {one.name for one in ABLATIONS})


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, or report what is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, added to")
    parser.add_argument("--report", action="store_true", help="run nothing, print the tables")
    parser.add_argument("--traces", nargs="+", default=TRACES)
    parser.add_argument("--loads", nargs="+", type=float, default=LOADS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--draws", type=int, default=1, help="runs of the same requests")
    parser.add_argument("--minutes", type=float, default=5.0, help="of each run")
    parser.add_argument("--devices", nargs="+", choices=tuple(SLOWNESS), default=tuple(SLOWNESS))
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=COMPARED)
    parser.add_argument("--ablate", action="store_true", help="collm without each of its parts")
    arguments = parser.parse_args(argv)
    if not arguments.report:
        names = ("collm", *(one.name for one in ABLATIONS)) if arguments.ablate else arguments.arms
        draws = range(arguments.draws)
        grid = product(arguments.seeds, arguments.devices, arguments.traces, arguments.loads, draws)
        for seed, devices, trace, load, draw in grid:
            cell = Cell(
                trace=trace,
                load=load,
                seed=seed,
                minutes=arguments.minutes,
                devices=devices,
                draw=draw,
            )
            run_cell(cell, names, arguments.out)
    print_report(read(arguments.out))


def run_cell(cell: Cell, names: Sequence[str], out: Path) -> None:
    """Run the arms of a cell that are not in the file, and the oracle of all that are by then."""
    there = {row["arm"]: row for row in read(out) if row["cell"] == asdict(cell)}
    for name in names:
        if name not in there:
            started_s = time.perf_counter()
            outcome = run_arm(cell, ARMS[name])
            there[name] = write(out, cell, name, outcome.figures, outcome.knowledge)
            took_s = time.perf_counter() - started_s
            print(f"{cell}: {name} took {took_s:.1f} s", file=sys.stderr, flush=True)
    final = max((tuple(row["knowledge"]) for row in there.values()), key=sum)
    if tuple(there.get(ORACLE, {"knowledge": ()})["knowledge"]) != final:
        outcome = run_oracle(cell, final)
        write(out, cell, ORACLE, outcome.figures, outcome.knowledge)


def write(
    out: Path, cell: Cell, arm: str, figures: dict[str, Any], knowledge: Sequence[float]
) -> dict[str, Any]:
    """Add a run to the file, and return its row."""
    row = {"cell": asdict(cell), "arm": arm, "simulated": figures, "knowledge": list(knowledge)}
    with out.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")
    return row


def read(out: Path) -> list[dict[str, Any]]:
    """Return the file's rows, the latest of those that are of one run."""
    if not out.exists():
        return []
    rows: dict[str, dict[str, Any]] = {}
    for line in out.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows[json.dumps([row["cell"], row["arm"]])] = row
    return list(rows.values())


if __name__ == "__main__":
    main()
