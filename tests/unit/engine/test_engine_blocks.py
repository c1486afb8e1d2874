import pytest

from collm.engine.blocks import BlockManager
from collm.engine.sequence import Sequence
from collm.types import Binding, VersionId
from factories.engine import request

V1, V2 = VersionId("a@1"), VersionId("a@2")


def sequence_of(prompt: list[int], version: VersionId = V1) -> Sequence:
    sequence = Sequence(request("r", prompt), 0)
    sequence.binding = Binding(version, 0)
    return sequence


def compute(blocks: BlockManager, prompt: list[int], version: VersionId = V1) -> Sequence:
    sequence = sequence_of(prompt, version)
    assert blocks.try_admit(sequence, num_spare=0)
    sequence.num_computed_tokens = len(prompt)
    blocks.commit(sequence)
    return sequence


def test_a_sequence_takes_blocks_for_its_known_tokens_and_returns_them():
    blocks = BlockManager(4, 2)
    sequence = sequence_of([1, 2, 3])
    assert blocks.try_admit(sequence, num_spare=0)
    assert len(sequence.block_table) == 2
    assert blocks.num_free == 2
    blocks.check([sequence])
    blocks.free(sequence)
    assert blocks.num_free == 4
    assert sequence.block_table == []
    blocks.check([])


def test_admission_without_room_changes_nothing():
    blocks = BlockManager(3, 2)
    sequence = sequence_of([1, 2, 3, 4])
    assert not blocks.try_admit(sequence, num_spare=2)
    assert sequence.block_table == []
    assert blocks.num_free == 3
    assert blocks.try_admit(sequence, num_spare=1)


def test_hits_that_are_not_in_use_do_not_count_as_room_for_the_rest():
    blocks = BlockManager(3, 2)
    blocks.free(compute(blocks, [1, 2, 3, 4]))
    other = compute(blocks, [9])
    assert blocks.num_free == 2
    assert not blocks.try_admit(sequence_of([1, 2, 3, 4, 5]), num_spare=0)
    blocks.check([other])


def test_growth_takes_a_block_only_when_the_last_one_is_full():
    blocks = BlockManager(2, 2)
    sequence = compute(blocks, [1])
    assert blocks.try_allocate(sequence, 1)
    assert len(sequence.block_table) == 1
    sequence.num_computed_tokens = 2
    assert blocks.try_allocate(sequence, 1)
    assert len(sequence.block_table) == 2
    sequence.num_computed_tokens = 4
    assert not blocks.try_allocate(sequence, 1)
    assert len(sequence.block_table) == 2


def test_a_prefix_is_found_but_never_the_whole_prompt():
    blocks = BlockManager(8, 2)
    first = compute(blocks, [1, 2, 3, 4])
    assert blocks.match_prefix(V1, [1, 2, 3, 4]) == first.block_table[:1]
    assert blocks.match_prefix(V1, [1, 2, 3, 4, 5]) == first.block_table
    assert blocks.match_prefix(V1, [1, 2, 9, 4, 5]) == first.block_table[:1]
    assert blocks.match_prefix(V1, [1, 2]) == []
    assert blocks.match_prefix(V1, [3, 4, 5]) == []


def test_a_prefix_of_another_version_is_not_found():
    blocks = BlockManager(8, 2)
    compute(blocks, [1, 2, 3])
    assert blocks.match_prefix(V2, [1, 2, 3]) == []


def test_a_version_named_like_a_content_number_is_not_mistaken_for_it():
    blocks = BlockManager(8, 2)
    compute(blocks, [1, 2, 3, 4, 5])
    for name in ("0", "1"):
        assert blocks.match_prefix(VersionId(name), [3, 4, 5]) == []


def test_the_cache_compares_tokens_not_hashes():
    # In CPython hash(-1) == hash(-2), also inside a tuple.
    blocks = BlockManager(8, 2)
    compute(blocks, [-1, -1, 5])
    assert hash((-1, -1)) == hash((-2, -2))
    assert blocks.match_prefix(V1, [-2, -2, 5]) == []


def test_shared_blocks_are_free_once_the_last_table_lets_go():
    blocks = BlockManager(8, 2)
    first = compute(blocks, [1, 2, 3, 4, 5])
    second = sequence_of([1, 2, 3, 4, 6])
    assert blocks.try_admit(second, num_spare=0)
    assert second.num_computed_tokens == 4
    assert second.block_table[:2] == first.block_table[:2]
    blocks.check([first, second])
    assert blocks.num_free == 4
    blocks.free(first)
    assert blocks.num_free == 5
    blocks.check([second])
    blocks.free(second)
    assert blocks.num_free == 8


def test_the_longest_unused_prefix_is_given_up_first_and_from_its_end():
    blocks = BlockManager(4, 2)
    blocks.free(compute(blocks, [1, 2, 3, 4]))
    blocks.free(compute(blocks, [5, 6, 7, 8]))
    taken = compute(blocks, [9])
    assert len(blocks.match_prefix(V1, [1, 2, 3, 4, 0])) == 1
    assert len(blocks.match_prefix(V1, [5, 6, 7, 8, 0])) == 2
    blocks.check([taken])


def test_a_reused_block_is_not_taken_for_the_parent_of_its_old_children():
    blocks = BlockManager(4, 2)
    first, second = sequence_of([1, 2, 5]), sequence_of([1, 2, 5])
    for sequence in (first, second):
        assert blocks.try_admit(sequence, num_spare=0)
        sequence.num_computed_tokens = 3
    blocks.commit(first)
    blocks.commit(second)
    second.token_ids.append(6)
    second.num_computed_tokens = 4
    blocks.commit(second)  # a child of the content that ``first`` registered
    reused = first.block_table[0]
    blocks.free(first)
    compute(blocks, [9])
    other = compute(blocks, [7, 8])
    assert other.block_table == [reused]
    assert blocks.match_prefix(V1, [7, 8, 5, 6, 0]) == [reused]


def test_the_same_prefix_computed_by_two_at_once_is_kept_once():
    blocks = BlockManager(8, 2)
    first, second = sequence_of([1, 2, 3, 4, 5]), sequence_of([1, 2, 3, 4, 5])
    for sequence in (first, second):
        assert blocks.try_admit(sequence, num_spare=0)
        sequence.num_computed_tokens = 5
    blocks.commit(first)
    blocks.commit(second)
    assert blocks.num_cached == 2
    assert not set(first.block_table) & set(second.block_table)
    blocks.free(first)
    blocks.free(second)
    assert blocks.num_cached == 2
    blocks.check([])


def test_an_evicted_version_is_not_found_and_its_unused_blocks_are_empty():
    blocks = BlockManager(4, 2)
    blocks.free(compute(blocks, [1, 2, 3], V1))
    blocks.free(compute(blocks, [1, 2, 3], V2))
    blocks.evict_version(V1)
    assert blocks.match_prefix(V1, [1, 2, 3]) == []
    assert len(blocks.match_prefix(V2, [1, 2, 3])) == 1
    blocks.check([])
    blocks.evict_version(VersionId("never seen"))
    assert blocks.num_free == 4


def test_blocks_of_a_version_evicted_while_in_use_are_free_when_let_go():
    blocks = BlockManager(8, 2)
    sequence = compute(blocks, [1, 2, 3], V1)
    blocks.evict_version(V1)
    blocks.check([sequence])
    assert blocks.match_prefix(V1, [1, 2, 3]) == []
    sequence.token_ids += [4, 5, 6]
    assert blocks.try_allocate(sequence, 2)
    sequence.num_computed_tokens = 6
    blocks.commit(sequence)
    assert blocks.num_cached == 0
    blocks.free(sequence)
    assert blocks.num_free == 8
    blocks.check([])


def test_without_prefix_cache_nothing_is_kept():
    blocks = BlockManager(8, 2, enable_prefix_cache=False)
    compute(blocks, [1, 2, 3])
    assert blocks.num_cached == 0
    assert blocks.match_prefix(V1, [1, 2, 3]) == []


def test_the_check_sees_a_table_that_nobody_accounted_for():
    blocks = BlockManager(8, 2)
    compute(blocks, [1, 2, 3])
    with pytest.raises(AssertionError, match="references and tables differ"):
        blocks.check([])
