"""KV blocks where nothing but their number matters."""

from collections.abc import Iterable
from itertools import repeat

from collm.engine.sequence import Sequence

_SOME_BLOCK = 0
"""Every entry of every block table: a table's length is all that is ever asked of it."""


class CountedBlocks:
    """A pool of KV blocks that are counted, and have neither a place nor a content.

    It says what ``engine.BlockManager`` says where no prompt shares a beginning with another one,
    and takes next to no memory: a thousand replicas have some million blocks.

    Args:
        num_blocks: Size of the pool.
        block_size: Tokens per block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_free = num_blocks
        """Blocks that no table holds."""

    def try_admit(self, sequence: Sequence, *, num_spare: int) -> bool:
        """Give a sequence blocks for all its known tokens, or nothing.

        Args:
            sequence: Holds no blocks yet; its table is filled.
            num_spare: Blocks that must stay free for others.
        """
        num_new = -(-len(sequence.token_ids) // self.block_size)
        if num_new + num_spare > self.num_free:
            return False
        self._give(sequence, num_new)
        return True

    def try_allocate(self, sequence: Sequence, num_new_tokens: int) -> bool:
        """Extend a table to hold ``num_new_tokens`` more computed tokens, or change nothing."""
        num_tokens = sequence.num_computed_tokens + num_new_tokens
        num_new = -(-num_tokens // self.block_size) - len(sequence.block_table)
        if num_new <= 0:
            return True
        if num_new > self.num_free:
            return False
        self._give(sequence, num_new)
        return True

    def commit(self, sequence: Sequence) -> None:
        """Do nothing: what a block holds is of no use to anybody else."""

    def free(self, sequence: Sequence) -> None:
        """Take a sequence's blocks back; it has computed nothing afterwards."""
        self.num_free += len(sequence.block_table)
        sequence.block_table.clear()
        sequence.num_computed_tokens = 0

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Assert that every block is accounted for by these, the sequences that hold blocks."""
        num_held = sum(len(one.block_table) for one in sequences)
        assert num_held + self.num_free == self.num_blocks, "blocks lost or invented"

    def _give(self, sequence: Sequence, num_blocks: int) -> None:
        self.num_free -= num_blocks
        sequence.block_table.extend(repeat(_SOME_BLOCK, num_blocks))
