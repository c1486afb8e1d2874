"""A recorded run of one adapter that learns in steps of several sizes. No torch.

What is believed of a token's worth by the size of its step, ``e(B)``, rests on the gradient noise
scale, which training measures on its way. What it is held against is losses on questions that
nobody learned from.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from collm.cluster.planning.efficiency import Efficiency
from collm.cluster.planning.noise_scale import NoiseScale
from collm.types import GradientSums
from foretelling_together import tokens_in_one_place
from packed import read_packed, write_packed


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Learning with optimizer steps of one size, from where all sizes began."""

    tokens_per_step: float
    """On average: a step ends with the sample that fills it."""
    curve: Sequence[tuple[int, float]]
    """Loss by tokens trained on."""
    gradient: GradientSums
    """What its steps measured of their noise."""

    def reaches(self, loss: float) -> float:
        """Return the tokens that first come to a loss."""
        return tokens_in_one_place(self.curve, loss)


def write_steps(sizes: Sequence[Steps], path: Path, **about: Any) -> None:
    """Write a run, gzipped; ``about`` says where it comes from."""
    write_packed({**about, "sizes": [asdict(one) for one in sizes]}, path)


def read_steps(path: Path) -> list[Steps]:
    """Return a recorded run, the smallest steps first."""
    return [
        Steps(
            tokens_per_step=one["tokens_per_step"],
            curve=[(num_tokens, loss) for num_tokens, loss in one["curve"]],
            gradient=GradientSums(**one["gradient"]),
        )
        for one in read_packed(path)["sizes"]
    ]


def believed(sizes: Sequence[Steps], base: Steps) -> Efficiency:
    """Return what the slow loop believes of a token's worth after it saw all steps."""
    noise = NoiseScale()
    for one in sizes:
        noise.add(one.gradient)
    return Efficiency(noise.phi_tokens, base.tokens_per_step)


def measured_worths(
    sizes: Sequence[Steps], base: Steps, losses: Sequence[float]
) -> list[list[float]]:
    """Return for each size what its tokens were worth in tokens of ``base``, loss by loss."""
    return [[base.reaches(loss) / one.reaches(loss) for loss in losses] for one in sizes]


def common_losses(sizes: Sequence[Steps], count: int = 4) -> list[float]:
    """Return losses that every size came to, highest first, evenly spaced in their logarithm."""
    high = sizes[0].curve[0][1]
    low = max(min(loss for _, loss in one.curve) for one in sizes)
    return [high * (low / high) ** (number / count) for number in range(1, count + 1)]
