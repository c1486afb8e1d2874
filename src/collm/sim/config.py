"""What is simulated."""

import math
from dataclasses import dataclass, field
from typing import Literal

from collm.cluster.planning_config import PlanningConfig
from collm.cluster.round_config import ROUND_GATE
from collm.cluster.routing_config import RegistryConfig, RouterConfig
from collm.engine.config import SchedulerConfig
from collm.errors import ConfigError
from collm.gate.config import GateConfig
from collm.pacing.config import PacingConfig
from collm.sim.faults import Fault
from collm.sim.requests import Mix


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """Federated rounds of a simulated cluster."""

    tokens_per_round: int = 16_384
    """Training tokens of a member in a round."""
    deadline_s: float = 120.0
    """Time that a member has to train."""
    gate_deadline_s: float = 60.0
    """Time that members have to judge an aggregate; a quorum's opinion is enough from then on."""
    interval_s: float = 2.0
    """From the end of a round to the next one."""
    quorum_share: float = 0.5
    """Share of the members that a round needs."""
    discount: float = 1.0
    """What a member's token is worth in the aggregate, from 0 to 1: data differ between members."""
    transfer_s: float = 1.0
    """To aggregate, and to bring a version to every replica."""
    gate: GateConfig = ROUND_GATE
    """When an aggregate replaces what is served, as in ``RoundConfig``."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.tokens_per_round < 1:
            raise ConfigError(f"tokens_per_round is {self.tokens_per_round}; allowed is 1 or more")
        if not 0.0 <= self.discount <= 1.0:
            raise ConfigError(f"discount is {self.discount}; allowed is 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """A cluster and its circumstances; the profile, the policy and the trace come beside it."""

    num_replicas: int = 1
    seed: int = 0
    """Makes the run repeatable, bit for bit."""
    slowness: tuple[float, ...] = ()
    """How many times as long each replica takes for its work as the profile says; none for all
    alike."""
    pacing: PacingConfig = field(default_factory=PacingConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """Prompts share no beginnings, so that a prefix cache would change nothing and is left out."""
    router: RouterConfig = field(default_factory=RouterConfig)
    registry: RegistryConfig = field(default_factory=RegistryConfig)
    costs: Literal["learned", "given"] = "learned"
    """``learned``: each replica fits its cost models as it goes, as real ones do; ``given``: they
    are right from the start and stay so, which is several times faster to simulate."""
    mix: Mix = field(default_factory=Mix)
    says_lengths: bool = False
    """Whether a request tells how long its answer gets, as those of a load generator do, which
    ignore the model's end; the front guesses otherwise."""
    warm_tokens: float = 0.0
    """Training tokens behind the adapter that is served at the start."""
    rounds: RoundSettings | None = None
    """How replicas learn together; ``None`` lets each serve what its own gate found better."""
    planning: PlanningConfig = field(default_factory=PlanningConfig)
    """How a coordinated policy plans; ``none`` leaves replicas to their own settings."""
    corrects_credit: bool = True
    """Whether misses take from a replica's credit, as they do; ``False`` shows what that is worth.
    """
    faults: tuple[Fault, ...] = ()
    drain_s: float = 300.0
    """How long after the last arrival answers are waited for."""
    fast_forward: bool = True
    """Compute rows of steps that are sure to be alike in one go; changes nothing else."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.num_replicas < 1:
            raise ConfigError(f"num_replicas is {self.num_replicas}; allowed is 1 or more")
        is_possible = all(0.0 < factor < math.inf for factor in self.slowness)
        if len(self.slowness) not in (0, self.num_replicas) or not is_possible:
            raise ConfigError(
                f"slowness is {self.slowness}; allowed are finite numbers above 0, one for each "
                "replica, or none"
            )
        if not 0.0 <= self.warm_tokens < math.inf:
            raise ConfigError(f"warm_tokens is {self.warm_tokens}; allowed is finite and 0 or more")
