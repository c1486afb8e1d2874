"""How many held-out samples does the gate need, and how often is it wrong?

    python benchmarks/gate.py [--candidates 1000]

Compares two measures of one sample's gain under the same betting test: tanh of the loss difference
(what the gate uses) and the difference of exp(-loss). Needs no model; losses are drawn.
"""

import argparse
import math
import random
import statistics
from collections.abc import Callable, Iterator

from collm.gate.config import GateConfig
from collm.gate.evidence import Evidence, gain

Gain = Callable[[float, float], float]

# Mean loss of what is served, mean improvement and its standard deviation per sample, in nats.
SCENES = {
    "no better, fluent text": (0.8, 0.0, 0.3),
    "no better, noisy": (1.5, 0.0, 0.6),
    "no better, hard text": (2.5, 0.0, 0.3),
    "a little better, fluent text": (0.8, 0.06, 0.3),
    "a little better, hard text": (2.5, 0.06, 0.3),
    "better, hard text": (2.5, 0.1, 0.3),
    "late improvement": (2.5, 0.02, 0.1),
    "early improvement": (3.0, 0.5, 0.8),
}


def exp_gain(active_loss: float, candidate_loss: float) -> float:
    """Return the difference of the geometric mean probabilities."""
    return math.exp(-candidate_loss) - math.exp(-active_loss)


def draw(
    rng: random.Random, mean: float, better: float, noise: float
) -> Iterator[tuple[float, float]]:
    """Yield (active, candidate) losses; noise is uniform, so that none falls below 0."""
    while True:
        loss = mean * (0.75 + 0.25 * rng.expovariate(1.0))
        yield loss, loss - better + noise * rng.uniform(-(3**0.5), 3**0.5)


def num_needed(pairs: Iterator[tuple[float, float]], measure: Gain, config: GateConfig) -> float:
    """Return the samples until a candidate passes, infinite if it does not."""
    evidence, increase = Evidence(first_look=config.min_samples), 0.0
    for number in range(1, config.max_samples + 1):
        active, candidate = next(pairs)
        evidence.add(measure(active, candidate))
        increase += candidate - active
        if increase < 0.0 and evidence.proves(config.error):
            return number
    return math.inf


def main() -> None:
    """Print one row per scene: share of candidates that pass, median samples, for both measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--candidates", type=int, default=1_000, help="candidates per scene")
    num_candidates = parser.parse_args().candidates
    print("| candidates | tanh: pass | median samples | exp: pass | median samples |")
    print("|---|---|---|---|---|")
    for name, scene in SCENES.items():
        cells = []
        for measure in (gain, exp_gain):
            needed = [
                num_needed(draw(random.Random(seed), *scene), measure, GateConfig())
                for seed in range(num_candidates)
            ]
            passed = sum(map(math.isfinite, needed)) / num_candidates
            middle = statistics.median(needed)
            cells.append(
                f"{passed:.1%} | {middle:.0f}" if middle < math.inf else f"{passed:.1%} | –"
            )
        print(f"| {name} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
