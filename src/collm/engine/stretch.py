"""A row of steps that are sure to be alike: decodes of the same sequences, up to the first end."""

from collections.abc import Sequence as Row

from collm.engine.blocks import Blocks
from collm.engine.sequence import Sequence


class Stretch:
    """What the next steps compute as long as nothing comes in between.

    Nothing waits, every running sequence decodes, and none can reach its last token before the last
    of ``num_steps``, or lack a block; so ``schedule`` would plan one token of each of
    ``sequences``, step after step. A simulator, whose tokens end nothing, counts such steps and
    lets ``skip`` catch up, and ``Scheduler.end_stretch`` after the last one.

    Args:
        sequences: All that run.
        num_steps: How many steps are sure.
        ending: Those whose last token comes with the last step; none if the row ends before.
        blocks: Where they take their blocks.
    """

    def __init__(
        self,
        sequences: Row[Sequence],
        num_steps: int,
        ending: Row[Sequence],
        blocks: Blocks,
    ) -> None:
        self.sequences = sequences
        self.num_steps = num_steps
        self.ending = ending
        self._blocks = blocks
        self.num_context_tokens = sum(one.num_computed_tokens for one in sequences)
        """Keys that are computed, before the first step of the row."""
        self._num_skipped = 0

    def num_lacking(self, num_steps: int) -> int:
        """Return the blocks that the row takes by step ``num_steps`` beyond those held by now."""
        return _num_lacking(self.sequences, num_steps - self._num_skipped, self._blocks.block_size)

    def skip(self, num_steps: int, token_id: int, now_s: float, *, has_begun_next: bool) -> None:
        """Leave everything as ``schedule`` and ``update`` would have, up to step ``num_steps``.

        Args:
            num_steps: Steps of the row that have ended, earlier skips included.
            token_id: What every sequence got in each.
            now_s: When the latest of them ended.
            has_begun_next: Whether the step after them was scheduled as well.
        """
        num_new = num_steps - self._num_skipped
        self._num_skipped = num_steps
        tokens = [token_id] * num_new
        for sequence in self.sequences:
            has_room = self._blocks.try_allocate(sequence, num_new + has_begun_next)
            assert has_room, f"{sequence.order} lacks a block that was free"
            sequence.token_ids += tokens
            sequence.num_computed_tokens += num_new
            self._blocks.commit(sequence)
            if num_new:
                sequence.last_token_at_s = now_s


def find_stretch(running: Row[Sequence], blocks: Blocks, max_len: int) -> Stretch | None:
    """Return the row of decodes that comes next, if there is one.

    Args:
        running: Every sequence that holds blocks, at least one; nothing waits.
        blocks: Where they take their blocks.
        max_len: Most tokens of a sequence.
    """
    last_s, num_steps = running[0].last_token_at_s, max_len
    if last_s is None:
        return None
    ending: list[Sequence] = []
    for one in reversed(running):  # the latest arrivals, which may still prefill, are found first
        num_tokens = len(one.token_ids)
        # All got a token in the same step, and so each one's gap to the next is the same.
        if num_tokens - one.num_computed_tokens > 1 or one.last_token_at_s != last_s:
            return None
        num_left = min(len(one.request.prompt) + one.request.sampling.max_tokens, max_len)
        num_left -= num_tokens
        if num_left < num_steps:
            num_steps, ending = num_left, [one]
        elif num_left == num_steps:
            ending.append(one)
    while num_steps and not _has_room(running, num_steps, blocks):
        num_steps //= 2
        ending = []
    if not num_steps:
        return None
    return Stretch(tuple(running), num_steps, tuple(reversed(ending)), blocks)


def _has_room(running: Row[Sequence], num_steps: int, blocks: Blocks) -> bool:
    """Return whether so many steps find their blocks."""
    at_most = len(running) * (num_steps // blocks.block_size + 1)
    if at_most <= blocks.num_free:  # nearly always, and quicker than to count
        return True
    return _num_lacking(running, num_steps, blocks.block_size) <= blocks.num_free


def _num_lacking(running: Row[Sequence], num_steps: int, block_size: int) -> int:
    """Return the blocks that so many steps take beyond those that are held."""
    num_lacking = 0
    for one in running:
        num_more = -(-(one.num_computed_tokens + num_steps) // block_size) - len(one.block_table)
        if num_more > 0:
            num_lacking += num_more
    return num_lacking
