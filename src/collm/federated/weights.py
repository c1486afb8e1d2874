"""How much each member's update counts; no tensors."""

import math
from collections.abc import Mapping

_EVEN_SHARE = 0.1
"""Part of the demand that counts as spread evenly, so that a site nobody asked anything in this
window still teaches what it knows."""


def member_weights(
    num_examples: Mapping[str, int],
    demand: Mapping[str, float],
    staleness: Mapping[str, int],
) -> dict[str, float]:
    """Return each member's share of the aggregate; shares sum to one.

    The share goes with √(examples · demand) / √(1 + staleness). Weighting by examples alone fits
    the pooled data, by demand alone the requests served; their normalized geometric mean w is the
    distribution that minimizes KL(w‖examples) + KL(w‖demand). A large archive that nobody asks and
    a busy site with few samples are both held back, and whoever overstates a count by a factor k
    gains √k only.

    Args:
        num_examples: Samples trained on, by member. Without any, a member's share is 0.
        demand: Requests, or tokens, that each member answered in a window; a missing member had
            none. If nobody had any, examples and staleness decide.
        staleness: Promotions since the base that each update was trained from; a missing one is 0.

    Raises:
        ValueError: A count is negative or not finite, or no member has examples.

    Source: the discount of stale updates is that of FedBuff, arXiv 2106.06639.
    """
    for counts in (num_examples, demand, staleness):
        for member, count in counts.items():
            if not (math.isfinite(count) and count >= 0):
                raise ValueError(f"{member} counts {count}; finite and 0 or more is allowed")
    members = sorted(num_examples)
    total_demand = math.fsum(demand.get(member, 0.0) for member in members)
    raw = {}
    for member in members:
        even = 1.0 / len(members)
        share = demand.get(member, 0.0) / total_demand if total_demand else even
        smoothed = (1.0 - _EVEN_SHARE) * share + _EVEN_SHARE * even
        age = 1 + staleness.get(member, 0)
        raw[member] = math.sqrt(num_examples[member] * smoothed / age)
    total = math.fsum(raw.values())
    if not total:
        raise ValueError("no member has examples")
    return {member: weight / total for member, weight in raw.items()}
