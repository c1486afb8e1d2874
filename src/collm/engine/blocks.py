"""Who holds which KV block, and which blocks can be used again: the prefix cache."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from collm.engine.sequence import Sequence
from collm.types import VersionId

_Key = tuple[VersionId | int, tuple[int, ...]]
"""What a full block holds: its parent's content (the version, for a first block), its tokens."""


class Blocks(Protocol):
    """What a scheduler asks of a KV pool: ``BlockManager``, or a count of blocks in a simulation.

    A sequence's ``block_table`` is the pool's to change; each method does what it does there.
    """

    @property
    def num_blocks(self) -> int:
        """Size of the pool."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        ...

    @property
    def num_free(self) -> int:
        """Blocks that no table holds."""
        ...

    def try_admit(self, sequence: Sequence, *, num_spare: int) -> bool:
        """Give a bound sequence blocks for all its known tokens, or nothing."""
        ...

    def try_allocate(self, sequence: Sequence, num_new_tokens: int) -> bool:
        """Extend a table to hold ``num_new_tokens`` more computed tokens, or change nothing."""
        ...

    def commit(self, sequence: Sequence) -> None:
        """Take note of what a sequence has computed."""
        ...

    def free(self, sequence: Sequence) -> None:
        """Take a sequence's blocks back; it has computed nothing afterwards."""
        ...

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Assert that every block is accounted for by these, the sequences that hold blocks."""
        ...


@dataclass(slots=True)
class _Block:
    num_refs: int = 0
    version: VersionId | None = None
    content: int | None = None
    """Number of the exact chain of tokens up to this block's end, under ``version``."""
    key: _Key | None = None
    """Set while this block is the one that ``match_prefix`` returns for its content."""


class BlockManager:
    """Hand out KV blocks and find those that already hold the beginning of a prompt.

    ::

        every block:  free list ──► referenced by block tables ──► free list
                                         │        ▲
                               (has key) ▼        │ (prefix hit)
                                   unreferenced, oldest first ──► reused when the free list is empty

    Keys are compared in full, never by hash alone, and contents are numbered and never renumbered:
    a block is found only through the exact tokens, all the way back to the version that computed
    them. Only full blocks are shared, so a shared block is never written again.

    Args:
        num_blocks: Size of the pool.
        block_size: Tokens per block.
        enable_prefix_cache: Whether full blocks are kept for later prompts.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_cache: bool = True
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._enable_prefix_cache = enable_prefix_cache
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._free = list(range(num_blocks - 1, -1, -1))
        self._unreferenced: OrderedDict[int, None] = OrderedDict()
        self._by_key: dict[_Key, int] = {}
        self._by_version: dict[VersionId, set[int]] = {}
        self._new_content = count()

    @property
    def num_free(self) -> int:
        """Blocks that no table holds: the empty ones and the cached ones."""
        return len(self._free) + len(self._unreferenced)

    @property
    def num_cached(self) -> int:
        """Blocks that a prefix may hit, in use or not."""
        return len(self._by_key)

    def match_prefix(self, version: VersionId, token_ids: list[int]) -> list[int]:
        """Return the blocks that hold the longest computed prefix, without taking them.

        At least one token is left to compute, because its logits are needed.
        """
        blocks: list[int] = []
        parent: VersionId | int | None = version
        size = self.block_size
        for start in range(0, len(token_ids) - size, size):
            assert parent is not None
            block = self._by_key.get((parent, tuple(token_ids[start : start + size])))
            if block is None:
                break
            blocks.append(block)
            parent = self._blocks[block].content
        return blocks

    def try_admit(self, sequence: Sequence, *, num_spare: int) -> bool:
        """Give a bound sequence blocks for all its known tokens, or nothing.

        Blocks of a cached prefix are used again and their tokens count as computed.

        Args:
            sequence: Holds no blocks yet; its table and computed count are set.
            num_spare: Blocks that must stay free for others.
        """
        # A hit leaves a token to compute, so at least one new block is always needed.
        if self.num_free <= num_spare:
            return False
        assert sequence.binding is not None
        assert not sequence.block_table
        hits = self.match_prefix(sequence.binding.version, sequence.token_ids)
        num_new = -(-len(sequence.token_ids) // self.block_size) - len(hits)
        num_idle_hits = sum(1 for block in hits if self._blocks[block].num_refs == 0)
        if num_new + num_idle_hits + num_spare > self.num_free:
            return False
        for block in hits:
            self._reference(block)
        sequence.block_table.extend(hits)
        sequence.num_computed_tokens = len(hits) * self.block_size
        sequence.num_committed_blocks = len(hits)
        sequence.block_table.extend(self._take() for _ in range(num_new))
        return True

    def try_allocate(self, sequence: Sequence, num_new_tokens: int) -> bool:
        """Extend a table to hold ``num_new_tokens`` more computed tokens, or change nothing."""
        num_tokens = sequence.num_computed_tokens + num_new_tokens
        num_new = -(-num_tokens // self.block_size) - len(sequence.block_table)
        if num_new <= 0:
            return True
        if num_new > self.num_free:
            return False
        sequence.block_table.extend(self._take() for _ in range(num_new))
        return True

    def commit(self, sequence: Sequence) -> None:
        """Offer the blocks that have become full of computed tokens to later prompts."""
        num_full = sequence.num_computed_tokens // self.block_size
        if num_full <= sequence.num_committed_blocks or not self._enable_prefix_cache:
            return
        assert sequence.binding is not None
        version, table = sequence.binding.version, sequence.block_table
        for index in range(sequence.num_committed_blocks, num_full):
            parent = self._blocks[table[index - 1]].content if index else version
            if parent is None:  # the version was evicted meanwhile: the chain cannot be found
                break
            start = index * self.block_size
            tokens = tuple(sequence.token_ids[start : start + self.block_size])
            self._label(table[index], version, (parent, tokens))
        sequence.num_committed_blocks = num_full

    def free(self, sequence: Sequence) -> None:
        """Drop a sequence's references; it has computed nothing afterwards."""
        # Last block first: a chain is then reused from its end, and what is left can be found.
        for index in reversed(sequence.block_table):
            block = self._blocks[index]
            assert block.num_refs > 0, f"block {index} freed twice"
            block.num_refs -= 1
            if block.num_refs > 0:
                continue
            if block.key is not None:
                self._unreferenced[index] = None
            else:
                self._forget(index)
                self._free.append(index)
        sequence.block_table.clear()
        sequence.num_computed_tokens = 0
        sequence.num_committed_blocks = 0

    def evict_version(self, version: VersionId) -> None:
        """Make a version's blocks impossible to hit; those in use are free once let go."""
        for index in sorted(self._by_version.get(version, ())):
            self._forget(index)
            if index in self._unreferenced:
                del self._unreferenced[index]
                self._free.append(index)

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Assert that every block is accounted for by these, the sequences that hold blocks."""
        num_refs = [0] * self.num_blocks
        for sequence in sequences:
            assert len(set(sequence.block_table)) == len(sequence.block_table)
            for index in sequence.block_table:
                num_refs[index] += 1
        assert num_refs == [block.num_refs for block in self._blocks], (
            "references and tables differ"
        )
        free = [*self._free, *self._unreferenced]
        num_used = sum(1 for refs in num_refs if refs)
        assert len(free) + num_used == self.num_blocks, "blocks lost or invented"
        assert len(set(free)) == len(free), "a block is free twice"
        assert not any(num_refs[index] for index in free), "a block in use is free"
        assert all(self._blocks[index].content is None for index in self._free)
        assert all(self._blocks[index].key is not None for index in self._unreferenced)
        assert all(self._blocks[index].key == key for key, index in self._by_key.items())

    def _take(self) -> int:
        if self._free:
            index = self._free.pop()
        else:
            index, _ = self._unreferenced.popitem(last=False)
            self._forget(index)
        self._blocks[index].num_refs = 1
        return index

    def _reference(self, index: int) -> None:
        self._blocks[index].num_refs += 1
        self._unreferenced.pop(index, None)

    def _label(self, index: int, version: VersionId, key: _Key) -> None:
        block = self._blocks[index]
        twin = self._by_key.get(key)
        if twin is None:
            block.content, block.key = next(self._new_content), key
            self._by_key[key] = index
        else:  # computed by two at once: the same content, but only one can be found
            block.content = self._blocks[twin].content
        block.version = version
        self._by_version.setdefault(version, set()).add(index)

    def _forget(self, index: int) -> None:
        block = self._blocks[index]
        if block.version is None:
            return
        members = self._by_version[block.version]
        members.remove(index)
        if not members:
            del self._by_version[block.version]
        if block.key is not None:
            del self._by_key[block.key]
        block.version = block.content = block.key = None
