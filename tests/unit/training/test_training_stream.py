from collections import Counter
from dataclasses import replace

import pytest

from collm.gate.config import GENERAL
from collm.training.corpus import Corpus
from collm.training.microbatch import MicroBatch
from collm.training.stream import Cursor, SampleStream
from factories.training import general_samples, make_corpus, make_samples

SAMPLES = make_samples([3, 30, 8, 12, 5, 21, 9, 16, 4, 11])
GENERAL_TEXT = general_samples([18, 14, 20, 9, 16, 11])
TEXTS = {s.sample_id: s for s in (*SAMPLES, *GENERAL_TEXT)}


def stream_of(
    corpus: Corpus | None = None, seed: int = 0, *, share: float = 0.1, epochs: int | None = None
) -> SampleStream:
    return SampleStream(corpus or make_corpus(SAMPLES), seed, replay_share=share, num_epochs=epochs)


def with_general() -> Corpus:
    return make_corpus(SAMPLES, general=GENERAL_TEXT)


def deal(stream: SampleStream, num_batches: int, max_tokens: int = 25) -> list[str]:
    return [i for _ in range(num_batches) for i in stream.next(max_tokens).sample_ids]


def num_general(batch: MicroBatch) -> int:
    """Tokens of general text."""
    samples = [TEXTS[sample_id] for sample_id in batch.sample_ids]
    return sum(len(s.token_ids) for s in samples if s.slice == GENERAL)


@pytest.mark.parametrize("max_tokens", [1, 25, 1_000])
def test_every_epoch_deals_every_sample_once(max_tokens: int) -> None:
    order = deal(stream_of(), 30, max_tokens)
    epochs = [order[i : i + 10] for i in range(0, 30, 10)]
    expected = Counter(sample.sample_id for sample in SAMPLES)
    assert all(Counter(epoch) == expected for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_order_depends_on_the_seed() -> None:
    assert deal(stream_of(seed=3), 8) == deal(stream_of(seed=3), 8)
    assert deal(stream_of(seed=3), 8) != deal(stream_of(seed=4), 8)


@pytest.mark.parametrize("num_before", range(9))
def test_a_cursor_resumes_exactly(num_before: int) -> None:
    stream = stream_of(with_general(), 5)
    deal(stream, num_before)
    resumed = stream_of(with_general(), 5)
    resumed.seek(Cursor.from_meta(stream.cursor.to_meta()))
    assert deal(resumed, 12) == deal(stream, 12)
    assert resumed.cursor == stream.cursor


def test_a_cursor_of_another_format_starts_anew() -> None:
    assert Cursor.from_meta({"epoch": "3", "index": "7"}) == Cursor()


def test_batches_keep_to_the_limit_unless_one_sample_exceeds_it() -> None:
    stream = stream_of(with_general())
    for _ in range(40):
        batch = stream.next(20)
        assert batch.num_sample_tokens <= 20 or len(batch.lengths) == 1
        assert batch.num_supervised


def test_a_single_sample_can_be_dealt_forever() -> None:
    stream = stream_of(make_corpus(SAMPLES[:1]))
    assert [len(stream.next(7).lengths) for _ in range(3)] == [2, 2, 2]
    assert (stream.cursor.own.epoch, stream.cursor.own.key) == (6, None)


def test_passes_end_with_their_last_sample() -> None:
    stream, dealt = stream_of(epochs=2), []
    while stream.has_next:
        dealt += stream.next(40).sample_ids
    assert Counter(dealt) == {sample.sample_id: 2 for sample in SAMPLES}
    assert stream.has_ended


def test_an_empty_stream_goes_on_when_samples_come() -> None:
    corpus = make_corpus(())
    stream = stream_of(corpus)
    assert not stream.has_next
    assert not stream.has_ended
    corpus.add(SAMPLES)
    assert set(deal(stream, 8, 40)) == {sample.sample_id for sample in SAMPLES}


@pytest.mark.parametrize("max_tokens", [40, 150])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_about_the_replay_share_of_the_tokens_is_general_text(
    share: float, max_tokens: int
) -> None:
    stream = stream_of(with_general(), share=share)
    batches = [stream.next(max_tokens) for _ in range(200)]
    general, total = sum(map(num_general, batches)), sum(b.num_sample_tokens for b in batches)
    assert general / total == pytest.approx(share, abs=0.01)
    # What is owed is less than one sample until it is dealt, so batches differ by little more.
    bound = share / (1.0 - share) * max_tokens + max(len(s.token_ids) for s in GENERAL_TEXT)
    assert all(num_general(batch) <= bound for batch in batches)


def test_no_replay_without_a_share_or_without_general_text() -> None:
    none = stream_of(with_general(), share=0.0)
    assert not any(num_general(none.next(60)) for _ in range(50))
    assert set(deal(stream_of(share=0.5), 50)) == {sample.sample_id for sample in SAMPLES}


def test_fresh_samples_are_dealt_before_the_rest() -> None:
    corpus = make_corpus(SAMPLES)
    stream = stream_of(corpus)
    deal(stream, 2)
    fresh = make_samples([9, 9, 9], seed=8)
    corpus.add(fresh)
    assert deal(stream, 2)[:2] == [sample.sample_id for sample in fresh[:2]]
    assert not corpus.fresh


def test_fresh_samples_leave_room_for_what_was_before() -> None:
    corpus = make_corpus(SAMPLES)
    fresh = [sample.sample_id for sample in make_samples([5] * 100, seed=8)]
    corpus.add(make_samples([5] * 100, seed=8))
    stream = stream_of(corpus, share=0.2)
    for first in range(0, 96, 16):
        assert list(corpus.fresh) == fresh[first:]
        assert stream.next(100).sample_ids[:16] == tuple(fresh[first : first + 16]), "80 tokens"
    stream.next(100)
    assert not corpus.fresh


def test_rewind_deals_again_what_was_not_committed() -> None:
    corpus = with_general()
    stream = stream_of(corpus)
    deal(stream, 3)
    stream.commit()
    corpus.add(make_samples([9, 8], seed=8))
    committed = stream.cursor
    dealt = deal(stream, 5)
    stream.rewind()
    assert stream.cursor == stream.committed == committed
    assert deal(stream, 5) == dealt


def test_a_removed_sample_is_never_dealt_again() -> None:
    corpus = with_general()
    stream = stream_of(corpus)
    fresh = make_samples([9, 8, 7], seed=8)
    corpus.add(fresh)
    dealt = deal(stream, 1)
    gone = {fresh[0].sample_id, fresh[2].sample_id, SAMPLES[4].sample_id}
    assert fresh[0].sample_id in dealt
    for sample_id in gone:
        corpus.remove(sample_id)
    stream.rewind()
    assert not gone & set(deal(stream, 60))
    later = stream_of(make_corpus([s for s in SAMPLES if s.sample_id not in gone]))
    later.seek(stream.cursor)
    assert not gone & set(deal(later, 60))


def test_a_removal_in_the_middle_of_a_pass_changes_nothing_else() -> None:
    corpus = make_corpus(SAMPLES)
    stream, undisturbed = stream_of(corpus), stream_of()
    assert deal(stream, 4, 1) == deal(undisturbed, 4, 1)
    gone = deal(stream_of(), 8, 1)[6]
    corpus.remove(gone)
    expected = [sample_id for sample_id in deal(undisturbed, 6, 1) if sample_id != gone]
    assert deal(stream, 5, 1) == expected


def test_weights_and_ids_come_through() -> None:
    weighted = [replace(s, weight=0.25 * (i + 1)) for i, s in enumerate(SAMPLES)]
    batch = stream_of(make_corpus(weighted)).next(1_000)
    by_id = {sample.sample_id: sample for sample in weighted}
    chosen = [by_id[sample_id] for sample_id in batch.sample_ids]
    assert batch.weights.tolist() == [sample.weight for sample in chosen]
    assert batch.supervised_weight == pytest.approx(
        sum(s.weight * s.num_supervised for s in chosen)
    )
