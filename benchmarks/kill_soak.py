"""Does a server lose anything acknowledged, if it is killed for minutes or hours?

    python benchmarks/kill_soak.py [--minutes 30] [--seed 0]

The same lives as in tests/e2e/test_e2e_kill.py, of drawn lengths, one after the other on one data
folder: a tiny random model, a job that learns, and clients of everything; one life in five ends
while it starts. What does not hold ends the run with the seed, the life, and the folder to look at.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from random import Random

os.environ.setdefault("OMP_NUM_THREADS", "1")
# The program is the tests' own, so that both see the same faults.
sys.path.append(str(Path(__file__).parents[1] / "tests"))

from factories.kill_lives import Lives

MAX_LOSS_S = 30.0
"""Of training that a kill may undo."""


def main() -> None:
    """Live and die until the time is over; print a line for each life."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="time to go on for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--most", type=int, default=2_000, help="most acknowledgements that a life waits for"
    )
    options = parser.parse_args()
    random, end_s = Random(options.seed), time.monotonic() + 60 * options.minutes
    folder = Path(tempfile.mkdtemp(prefix="collm-kill-"))
    print(f"seed {options.seed}, folder {folder}", flush=True)
    lives = Lives(folder, options.seed)
    while time.monotonic() < end_s:
        if lives.num_lives and random.random() < 0.2:
            lives.die_young()
        # Short lives and long ones alike.
        lives.live(round(options.most ** random.random()))
        print(
            f"life {lives.num_lives}: {lives.num_acknowledged} acknowledged, "
            f"{len(lives.ledger.served)} versions served, at most {lives.max_loss_s:.1f} s of "
            "training undone by a kill",
            flush=True,
        )
        if lives.max_loss_s > MAX_LOSS_S:
            sys.exit(f"more than {MAX_LOSS_S:.0f} s of training were undone")
    lives.end_well()
    print("nothing acknowledged was lost")


if __name__ == "__main__":
    main()
