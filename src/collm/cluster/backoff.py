"""How long to wait before a process that ended is started again."""

_FIRST_S = 1.0
_LONGEST_S = 30.0
_SETTLED_S = 60.0
"""A process that lived this long had a start that was fine."""


class Backoff:
    """Waits of 1, 2, 4 … 30 seconds, from the beginning again after a minute of life."""

    def __init__(self) -> None:
        self._next_s = _FIRST_S

    def after(self, life_s: float) -> float:
        """Return the seconds to wait after a process that lived for ``life_s``."""
        wait_s = _FIRST_S if life_s >= _SETTLED_S else self._next_s
        self._next_s = min(2.0 * wait_s, _LONGEST_S)
        return wait_s
