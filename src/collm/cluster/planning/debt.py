"""What a replica owes its users after missing objectives."""


class SloDebt:
    """Misses beyond what the target allows, remembered until they are made up for.

    ``Z ← clip(Z + target - attained, 0, Z_max)`` per round, unchanged without arrivals: a virtual
    queue. Priced by Z, misses meet their target in the long run; the ceiling keeps a long outage
    from ruling for as long again.

    Args:
        target_share: Share of requests that should meet every objective.
        max_debt: Z_max, in rounds missed entirely.

    Source: M. Neely, Stochastic Network Optimization, Morgan & Claypool 2010, section 4.4.
    """

    def __init__(self, target_share: float, max_debt: float = 1.0) -> None:
        self._target_share = target_share
        self._max_debt = max_debt
        self._value = 0.0

    @property
    def value(self) -> float:
        """Z, from 0 to its ceiling."""
        return self._value

    def observe(self, num_arrived: int, num_met: int) -> None:
        """Take in a round."""
        if num_arrived:
            change = self._target_share - num_met / num_arrived
            self._value = min(max(self._value + change, 0.0), self._max_debt)
