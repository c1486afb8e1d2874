import pytest

from collm.gate.config import GENERAL
from collm.training.microbatch import num_packed_rows, pack, shared_prefix
from collm.training.samples import TokenSample
from factories.training import make_samples

PREFIX = tuple(range(50, 60))


def test_rows_are_the_prefix_and_then_each_sample_up_to_its_last_target() -> None:
    first = TokenSample((*PREFIX, 1, 2, 3), (*[False] * 11, True, True))
    second = TokenSample((*PREFIX, 4, 5), (*[False] * 11, True))
    batch = pack([first, second])
    assert batch.token_ids.tolist() == [*PREFIX, 1, 2, 4]
    assert batch.positions.tolist() == [*range(10), 10, 11, 10]
    assert batch.loss_rows.tolist() == [10, 11, 12]
    assert batch.targets.tolist() == [2, 3, 5]
    assert batch.sample_of_target.tolist() == [0, 0, 1]
    assert (batch.num_prefix, batch.lengths) == (10, (2, 1))
    assert (batch.num_tokens, batch.num_sample_tokens, batch.num_supervised) == (13, 25, 3)


def test_a_prefix_ends_before_the_first_row_with_a_loss() -> None:
    # Both samples are equal; row 9 predicts the first supervised token of each.
    sample = TokenSample((*PREFIX, 1, 2), (*[False] * 10, True, True))
    assert shared_prefix([sample, sample]) == 9
    batch = pack([sample, sample])
    assert batch.loss_rows.tolist() == [9, 10, 11, 12]


def test_a_short_common_beginning_or_a_lone_sample_has_no_prefix() -> None:
    samples = make_samples([20, 20], prefix=PREFIX[:7])
    assert shared_prefix(samples) == 0
    assert shared_prefix(make_samples([20], prefix=PREFIX)) == 0


def test_one_different_sample_among_many_ends_the_prefix() -> None:
    samples = make_samples([20, 22, 24], prefix=PREFIX)
    assert shared_prefix(samples) == 10
    odd = TokenSample((*PREFIX[:8], 1, 1, 1, 1), (*[False] * 11, True))
    assert shared_prefix([*samples, odd]) == 8


@pytest.mark.parametrize("num_general", [0, 2])
@pytest.mark.parametrize("num_own", [0, 1, 5])
def test_packed_rows_are_known_without_packing(num_own: int, num_general: int) -> None:
    own = make_samples([20 + index for index in range(num_own)], prefix=PREFIX)
    samples = (*own, *make_samples([15] * num_general, seed=4, slice=GENERAL))
    expected = pack(samples).num_tokens if samples else 0
    assert num_packed_rows(samples) == expected


def test_tokens_after_the_last_supervised_one_are_counted_and_not_computed() -> None:
    sample = TokenSample((1, 2, 3, 4, 5), (False, True, True, False, False))
    batch = pack([sample])
    assert batch.token_ids.tolist() == [1, 2]
    assert (batch.num_tokens, batch.num_sample_tokens) == (2, 5)


def test_general_text_does_not_keep_own_samples_from_sharing_a_prefix() -> None:
    own = make_samples([20, 22, 24], prefix=PREFIX)
    general = make_samples([15, 12], seed=4, slice=GENERAL)
    (same,) = make_samples([18], seed=5, prefix=PREFIX, slice=GENERAL)
    batch = pack([general[0], *own, general[1], same])
    assert (batch.num_prefix, batch.without_prefix) == (10, {0, 4})
    assert batch.lengths == (
        general[0].num_rows,
        *(sample.num_rows - 10 for sample in own),
        general[1].num_rows,
        same.num_rows - 10,
    )
    positions = batch.positions.tolist()
    assert positions[10 : 10 + general[0].num_rows] == list(range(general[0].num_rows))
    assert positions[-batch.lengths[-1] :] == list(range(10, same.num_rows))


def test_general_text_alone_shares_nothing() -> None:
    batch = pack(make_samples([20, 22], prefix=PREFIX, slice=GENERAL))
    assert (batch.num_prefix, batch.without_prefix) == (0, frozenset())


def test_a_step_is_divided_by_weighted_supervised_tokens() -> None:
    first = TokenSample((1, 2, 3), (False, True, True), weight=0.5)
    second = TokenSample((1, 2), (False, True), weight=3.0)
    batch = pack([first, second])
    assert batch.weights.tolist() == [0.5, 3.0]
    assert batch.supervised_weight == 4.0
    assert batch.num_supervised == 3


@pytest.mark.parametrize(
    ("length", "max_rows", "sizes"),
    [
        (300, None, [320]),
        (300, 320, [320]),
        (1_000, 800, [512, 512]),  # fewer rows than wanted, as they attend to more keys
        (300, 1, [128, 96, 96]),  # never very few
        (150, 140, [74, 73]),
        (100, 1, [99]),
    ],
)
def test_a_lone_sample_is_cut_into_pieces_of_as_many_rows_as_there_is_time_for(
    length: int, max_rows: int | None, sizes: list[int]
) -> None:
    pieces = pack(make_samples([length])).pieces(max_rows)
    assert [len(rows) for rows in pieces] == sizes
    assert [row for rows in pieces for row in rows] == list(range(sum(sizes)))


def test_several_samples_are_not_cut() -> None:
    batch = pack(make_samples([200, 210]))
    assert batch.pieces(100) == (range(batch.num_tokens),)
