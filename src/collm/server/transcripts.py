"""The texts of one call's choices, put together from their deltas."""

from collections.abc import Callable

from collm.server.choices import Delta


class Transcript:
    """What every choice has said so far.

    Args:
        num_choices: Over all prompts of the call.
        on_complete: Called once, with the text of each choice, when the last one has ended. The
            last piece has not been sent yet, so that whoever has read it can be sure of the call.
    """

    def __init__(self, num_choices: int, on_complete: Callable[[tuple[str, ...]], None]) -> None:
        self._pieces: list[list[str]] = [[] for _ in range(num_choices)]
        self._num_open = num_choices
        self._on_complete = on_complete

    def add(self, delta: Delta) -> None:
        """Take the next piece of a choice."""
        self._pieces[delta.index].append(delta.text)
        if delta.finish_reason is not None:
            self._num_open -= 1
            if self._num_open == 0:
                self._on_complete(self.texts())

    def texts(self) -> tuple[str, ...]:
        """Return the text of each choice."""
        return tuple(map("".join, self._pieces))
