"""Stop strings over text that arrives in pieces."""


class StopMatcher:
    """Releases text up to the first stop string, whatever the pieces it arrives in.

    The first stop is the one whose last character comes first; of several that end there, the one
    that starts first. That choice does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece.

        Returns:
            The text that may be shown now, and whether a stop string ended the output. A tail that
            could grow into a stop string is held back.
        """
        buffer = self._held + text
        match = self._first_match(buffer)
        if match is not None:
            start, end = match
            self._held = ""
            return buffer[: end if self._include else start], True
        num_held = self._num_held(buffer)
        cut = len(buffer) - num_held
        self._held = buffer[cut:]
        return buffer[:cut], False

    def flush(self) -> str:
        """Return the held tail: the output ended without completing a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, buffer: str) -> tuple[int, int] | None:
        found = [(buffer.find(stop), len(stop)) for stop in self._stops]
        ends = [(start + length, start) for start, length in found if start >= 0]
        if not ends:
            return None
        end, start = min(ends)
        return start, end

    def _num_held(self, buffer: str) -> int:
        """Length of the longest tail that begins some stop string."""
        longest = min(max(map(len, self._stops)) - 1, len(buffer))
        for length in range(longest, 0, -1):
            tail = buffer[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
