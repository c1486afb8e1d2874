from collections import Counter

import pytest

from collm.training.corpus import SamplePool
from collm.training.order import Order, Place
from collm.training.samples import TokenSample
from factories.training import make_samples

SAMPLES = make_samples([9] * 40)


def pool_of(samples: tuple[TokenSample, ...]) -> SamplePool:
    pool = SamplePool()
    for sample in samples:
        pool.put(sample)
    return pool


def deal(order: Order, count: int) -> list[str]:
    return [order.take().sample_id for _ in range(count)]


def test_every_epoch_deals_every_sample_once_in_a_new_order() -> None:
    order = Order(pool_of(SAMPLES), "0")
    epochs = [deal(order, 40) for _ in range(5)]
    expected = Counter(sample.sample_id for sample in SAMPLES)
    assert all(Counter(epoch) == expected for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5
    assert order.place == Place(epoch=5)


def test_epochs_have_nothing_to_do_with_one_another() -> None:
    """Of 40 samples in two random orders, 20 are in the same half on average, sd 1.6."""
    order = Order(pool_of(SAMPLES), "0")
    halves = [set(deal(order, 40)[:20]) for _ in range(201)]
    shared = [len(a & b) for a, b in zip(halves, halves[1:], strict=False)]
    assert 9.5 < sum(shared) / len(shared) < 10.5
    ones = [len(h & halves[0]) for h in halves[1:]]
    assert max(ones) < 18


def test_an_order_depends_on_seed_epoch_and_ids_only() -> None:
    backwards = pool_of(tuple(reversed(SAMPLES)))
    assert deal(Order(pool_of(SAMPLES), "3"), 60) == deal(Order(backwards, "3"), 60)
    assert deal(Order(backwards, "3"), 40) != deal(Order(backwards, "4"), 40)


@pytest.mark.parametrize("num_before", [0, 1, 17, 39, 40, 41])
def test_a_place_resumes_exactly(num_before: int) -> None:
    order = Order(pool_of(SAMPLES), "5")
    deal(order, num_before)
    resumed = Order(pool_of(SAMPLES), "5")
    resumed.seek(order.place)
    assert deal(resumed, 50) == deal(order, 50)
    assert resumed.place == order.place


def test_a_place_survives_additions_and_removals() -> None:
    whole = deal(Order(pool_of(SAMPLES), "5"), 40)
    order = Order(pool_of(SAMPLES[:30]), "5")
    dealt = deal(order, 12)
    pool = pool_of(SAMPLES)
    gone = {SAMPLES[0].sample_id, SAMPLES[35].sample_id, dealt[-1]}
    for sample_id in gone:
        pool.discard(sample_id)
    resumed = Order(pool, "5")
    resumed.seek(order.place)
    rest = whole[whole.index(dealt[-1]) + 1 :]
    expected = [sample_id for sample_id in rest if sample_id not in gone]
    assert deal(resumed, len(expected)) == expected
    assert resumed.place.epoch == 1


def test_what_is_removed_is_not_dealt_and_what_is_added_is() -> None:
    pool = pool_of(SAMPLES[:20])
    order = Order(pool, "1")
    dealt = deal(order, 5)
    following = order.peek()
    assert following is not None
    pool.discard(following.sample_id)
    added = SAMPLES[20]
    pool.put(added)
    rest = deal(order, 40)
    assert following.sample_id not in rest
    assert Counter(dealt + rest)[added.sample_id] >= 1


def test_an_empty_pool_has_nothing_until_something_comes() -> None:
    pool = SamplePool()
    order = Order(pool, "1")
    assert order.peek() is None
    pool.put(SAMPLES[0])
    assert deal(order, 2) == [SAMPLES[0].sample_id] * 2
    pool.discard(SAMPLES[0].sample_id)
    assert order.peek() is None
    pool.put(SAMPLES[1])
    assert order.take() is SAMPLES[1]


def test_a_removal_at_the_end_of_an_epoch_ends_it() -> None:
    pool = pool_of(SAMPLES[:3])
    order = Order(pool, "1")
    deal(order, 2)
    last = order.peek()
    assert last is not None
    pool.discard(last.sample_id)
    assert order.place == Place(epoch=1)
