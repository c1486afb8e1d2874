from collections import Counter
from collections.abc import Iterator

import pytest

from collm.training.microbatch import MicroBatch
from collm.training.stream import Cursor, SampleStream
from factories.training import make_samples

SAMPLES = make_samples([3, 30, 8, 12, 5, 21, 9, 16, 4, 11])


def dealt(batch: MicroBatch) -> Iterator[tuple[int, ...]]:
    """Computed token ids of each sample of a batch."""
    rows = batch.token_ids.tolist()
    prefix, start = tuple(rows[: batch.num_prefix]), batch.num_prefix
    for length in batch.lengths:
        yield (*prefix, *rows[start : start + length])
        start += length


def deal(stream: SampleStream, num_batches: int, max_tokens: int = 25) -> list[tuple[int, ...]]:
    return [ids for _ in range(num_batches) for ids in dealt(stream.next(max_tokens))]


@pytest.mark.parametrize("max_tokens", [1, 25, 1_000])
def test_every_epoch_deals_every_sample_once_in_a_new_order(max_tokens: int) -> None:
    order = deal(SampleStream(SAMPLES, 0, Cursor()), 30, max_tokens)
    epochs = [order[i : i + 10] for i in range(0, 30, 10)]
    expected = Counter(sample.token_ids[: sample.num_rows] for sample in SAMPLES)
    assert all(Counter(epoch) == expected for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_order_depends_on_seed_and_epoch_only() -> None:
    assert deal(SampleStream(SAMPLES, 3, Cursor()), 8) == deal(
        SampleStream(SAMPLES, 3, Cursor()), 8
    )
    assert deal(SampleStream(SAMPLES, 3, Cursor()), 8) != deal(
        SampleStream(SAMPLES, 4, Cursor()), 8
    )
    through = deal(SampleStream(SAMPLES, 3, Cursor()), 30, max_tokens=1)
    assert deal(SampleStream(SAMPLES, 3, Cursor(epoch=2)), 10, max_tokens=1) == through[20:]


@pytest.mark.parametrize("num_before", range(9))
def test_a_cursor_resumes_exactly(num_before: int) -> None:
    stream = SampleStream(SAMPLES, 5, Cursor())
    deal(stream, num_before)
    resumed = SampleStream(SAMPLES, 5, stream.cursor)
    assert deal(resumed, 7) == deal(stream, 7)
    assert resumed.cursor == stream.cursor


def test_batches_keep_to_the_limit_unless_one_sample_exceeds_it() -> None:
    stream = SampleStream(SAMPLES, 0, Cursor())
    for _ in range(40):
        batch = stream.next(20)
        assert batch.num_sample_tokens <= 20 or len(batch.lengths) == 1
        assert batch.num_supervised


def test_a_single_sample_can_be_dealt_forever() -> None:
    stream = SampleStream(SAMPLES[:1], 0, Cursor())
    assert [len(stream.next(7).lengths) for _ in range(3)] == [2, 2, 2]
    assert stream.cursor == Cursor(epoch=6, index=0)
