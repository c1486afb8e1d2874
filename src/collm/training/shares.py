"""Whose turn it is, when several learn."""

from collections.abc import Collection


class FairShares:
    """Deals turns so that time spent per weight stays equal among those that have work.

    Who had nothing to do (new, paused, without samples) is owed nothing for that time: it joins at
    the share of those whose turn it was last.
    """

    def __init__(self) -> None:
        """Begin without anybody."""
        self._weights: dict[str, float] = {}
        self._shares: dict[str, float] = {}
        """Seconds spent per weight."""
        self._idle: set[str] = set()
        self._latest = 0.0
        """The largest share at which a turn was dealt."""

    def add(self, name: str, weight: float) -> None:
        """Let ``name`` take part; it has spent nothing."""
        self._weights[name] = weight
        self._shares[name] = 0.0
        self._idle.add(name)

    def reweigh(self, name: str, weight: float) -> None:
        """Give ``name`` another weight from now on; what it spent is spent."""
        self._weights[name] = weight

    def remove(self, name: str) -> None:
        """Forget ``name``."""
        del self._weights[name], self._shares[name]
        self._idle.discard(name)

    def spend(self, name: str, seconds: float) -> None:
        """Note time that ``name`` took."""
        self._shares[name] += seconds / self._weights[name]

    def choose(self, names: Collection[str]) -> str:
        """Return whose turn it is among those that have work, at least one; earliest added at ties.

        Everybody else counts as idle until it has work again.
        """
        for name in self._idle.intersection(names):
            self._shares[name] = max(self._shares[name], self._latest)
        self._idle = self._weights.keys() - set(names)
        chosen = min((n for n in self._weights if n in names), key=self._shares.__getitem__)
        self._latest = max(self._latest, self._shares[chosen])
        return chosen
