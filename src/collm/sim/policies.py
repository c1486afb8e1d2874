"""How a cluster shares its time between serving and learning: the ways that are compared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from collm.errors import ConfigError
from collm.pacing.config import BudgetName

_SPLIT_SHARE = 0.25
"""Of the replicas under ``split``, those that train; at least one."""
_SHIFT_S = 120.0
"""Turns of ``time-slice``: long beside a reload, short beside an hour's trace."""
_TOKENS_PER_STEP = 16
"""Training tokens that ``token-level`` adds to a step: a decode step's own few sequences or so."""
_FIXED_BATCHES = (16, 64, 256)
"""Training tokens a step of the ``fixed`` policies: from less than a step's time to many times it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What one replica does under a policy."""

    serves: bool = True
    trains: bool = True
    budget: BudgetName | None = None
    """What lets quanta run; ``None`` takes what the configuration says."""
    tokens_per_step: int | None = None
    """Training tokens whose time follows every step, whatever ``budget`` would say; ``None`` for no
    such rule."""
    shift_s: float | None = None
    """Serve and train in turns of this length, a reload between them; ``None`` for no turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One way to run a cluster."""

    name: str
    models: str
    """What is simulated."""
    leaves_out: str
    """What the original has beyond it."""
    role: Callable[[int, int], Role]
    """Gives the role of replica i of n."""
    learns: bool = True
    """Whether there are rounds, or a lone replica's own gate."""
    routes: Literal["router", "round robin"] = "router"
    is_coordinated: bool = False
    """Whether the allocator, where planning is on, sets credits, batches and prices."""
    starts_final: bool = False
    """Whether the adapter that another run ended with is served from the start."""


def find_policy(name: str) -> Policy:
    """Return a policy by its name; raises ``ConfigError`` when there is none."""
    policy = POLICIES.get(name)
    if policy is None:
        raise ConfigError(f"policy: {name!r}, must be one of {', '.join(POLICIES)}")
    return policy


def _alike(role: Role) -> Callable[[int, int], Role]:
    return lambda index, num_replicas: role


def _fixed(num_tokens: int) -> Policy:
    return Policy(
        name=f"fixed-{num_tokens}",
        models=f"A fixed batch, as the paper compares with: each step is followed by the time of"
        f" {num_tokens} training tokens, whatever the load, and requests go round robin.",
        leaves_out="How the paper's fixed batch was chosen, which is not known: there are several,"
        " to be held against at their best.",
        role=_alike(Role(tokens_per_step=num_tokens)),
        routes="round robin",
    )


def _split(index: int, num_replicas: int) -> Role:
    if num_replicas < 2:
        raise ConfigError("policy split needs 2 replicas at least: one serves, one trains")
    is_trainer = index < max(1, round(_SPLIT_SHARE * num_replicas))
    return Role(serves=not is_trainer, trains=is_trainer)


_ALL = (
    Policy(
        name="collm",
        models="Replicas train in what the objectives leave and on the allocator's credit, learn in"
        " rounds, and get their requests from the router at the allocator's prices.",
        leaves_out="The allocator, where planning is off: credit is then what the configuration"
        " says, a step's tokens what the profile says, and work has no price.",
        role=_alike(Role()),
        is_coordinated=True,
    ),
    Policy(
        name="collm@fixed",
        models="The same replicas without coordination: requests go round robin, every optimizer"
        " step has the profile's batch, no credit.",
        leaves_out="That the paper's fixed batch runs whatever the load, see fixed-16: here the"
        " budget still protects the objectives, since that is the replica's own doing.",
        role=_alike(Role()),
        routes="round robin",
    ),
    Policy(
        name="serve-only",
        models="Serving with the adapter of the start, which nobody trains.",
        leaves_out="Nothing.",
        role=_alike(Role(trains=False)),
        learns=False,
    ),
    Policy(
        name="oracle",
        models="Serving, from the start, with the adapter that the compared run ends with.",
        leaves_out="How one would come by it.",
        role=_alike(Role(trains=False)),
        learns=False,
        starts_final=True,
    ),
    Policy(
        name="naive",
        models="A trainer beside a server without control: a whole micro-batch runs between any two"
        " steps, however late they are.",
        leaves_out="Two processes that fight for one device slow each other in worse ways than"
        " taking turns, and hold the weights twice.",
        role=_alike(Role(budget="uncontrolled")),
    ),
    Policy(
        name="split",
        models="A quarter of the replicas, one at least, trains and serves nobody; the others only"
        " serve. Versions reach all of them.",
        leaves_out="Moving replicas from one side to the other as load changes.",
        role=_split,
    ),
    Policy(
        name="time-slice",
        models="Each replica serves and trains in turns of two minutes with a reload between, as"
        " separate systems on one device; every other one begins half a turn later, and the router"
        " sends nothing to one that does not serve.",
        leaves_out="Draining: requests under way at the end of a turn stall until the next one.",
        role=_alike(Role(shift_s=_SHIFT_S)),
    ),
    Policy(
        name="token-level",
        models="Each step is followed by the time of a fixed number of training tokens, as in"
        " systems that put training tokens into inference batches (FlexLLM, arXiv 2402.18789).",
        leaves_out="One kernel for both, which makes those tokens cheaper than quanta of their own,"
        " and its choice of the number by load.",
        role=_alike(Role(tokens_per_step=_TOKENS_PER_STEP)),
    ),
    *map(_fixed, _FIXED_BATCHES),
)

POLICIES: Mapping[str, Policy] = MappingProxyType({policy.name: policy for policy in _ALL})
"""By name."""
