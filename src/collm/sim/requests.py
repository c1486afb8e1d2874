"""Arrivals of a simulation: a trace's times and lengths, with a domain for each request."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from collm.errors import ConfigError
from collm.workload.traces import Trace

MAX_DOMAINS = 1_000
"""Of a mix: what is known of each is worked out again at every optimizer step."""


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request to come."""

    number: int
    """Counts from 0, in order of arrival."""
    at_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    domain: int
    """What it is about."""
    is_scored: bool
    """Whether its answer is right or wrong; length requests are neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What requests are about."""

    num_domains: int = 1
    """Domains from the start on, asked for alike."""
    scored_share: float = 0.0
    """Share of requests whose answer is right or wrong."""
    drift_at_s: float | None = None
    """When one more domain appears; ``None`` never."""
    drift_share: float = 0.5
    """Share of requests that are about the new domain from then on."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 1 <= self.num_domains <= MAX_DOMAINS:
            raise ConfigError(f"num_domains is {self.num_domains}; allowed is 1 to {MAX_DOMAINS}")
        for name in ("scored_share", "drift_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)}; allowed is 0 to 1")
        if self.drift_at_s is not None and not 0.0 <= self.drift_at_s < math.inf:
            raise ConfigError(f"drift_at_s is {self.drift_at_s}; allowed is finite and 0 or more")

    @property
    def num_domains_in_all(self) -> int:
        """Return the number of domains, the one that appears later included."""
        return self.num_domains + (self.drift_at_s is not None)

    def weights(self, now_s: float) -> tuple[float, ...]:
        """Return each domain's share of the requests at a time."""
        old = self.num_domains
        if self.drift_at_s is None:
            return (1.0 / old,) * old
        share = self.drift_share if now_s >= self.drift_at_s else 0.0
        return (*((1.0 - share) / old,) * old, share)


def sim_requests(trace: Trace, mix: Mix, seed: int) -> Iterator[SimRequest]:
    """Yield one request for each row of a trace; the same arguments give the same ones."""
    random = Random(f"{seed}/requests")
    for number, row in enumerate(trace):
        domain = _draw(mix.weights(row.arrived_at_s), random.random())
        yield SimRequest(
            number,
            row.arrived_at_s,
            row.prompt_tokens,
            row.output_tokens,
            domain,
            random.random() < mix.scored_share,
        )


def _draw(weights: Sequence[float], place: float) -> int:
    """Return the domain at a place in [0, 1) of their shares laid side by side."""
    for domain, weight in enumerate(weights):
        place -= weight
        if place < 0.0:
            return domain
    return max(index for index, weight in enumerate(weights) if weight > 0.0)
