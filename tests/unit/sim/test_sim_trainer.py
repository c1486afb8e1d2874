from random import Random

import pytest

from collm.cluster.planning.noise_scale import NoiseScale
from collm.metrics.loop_times import LoopTimes
from collm.metrics.totals import Totals
from collm.pacing.config import PacingConfig
from collm.pacing.quanta import QuantumKind
from collm.sim.trainer import SimTrainer
from collm.sim.versions import ADAPTER
from factories.simulations import profile


def trainer() -> SimTrainer:
    totals = Totals(PacingConfig(), LoopTimes())
    return SimTrainer(profile(), lambda now_s: (1.0,), 1, (0.0,), Random(0), totals)


def num_rows_compared(one: SimTrainer, num_samples: int) -> int:
    """Let it judge somebody's candidate; return the rows that go through the first sublayer."""
    one.compare((5_000.0,), num_samples)
    num_rows = 0
    while one.foreign_rise is None:
        quantum = one.peek()
        assert quantum is not None
        if quantum.kind is QuantumKind.EVALUATE_FORWARD and quantum.index == 0:
            num_rows += quantum.size
        one.ran(0.0)
    return num_rows


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_comparing_fewer_samples_takes_their_share_of_an_evaluation(share: float) -> None:
    shape = profile().training
    num_rows = num_rows_compared(trainer(), round(share * shape.evaluation_samples))
    assert num_rows == round(share * shape.evaluation_tokens)


def test_better_candidate_is_seen_as_such_whatever_the_number_of_samples() -> None:
    one = trainer()
    num_rows_compared(one, 16)
    few = one.foreign_rise
    num_rows_compared(one, 128)
    assert few == one.foreign_rise
    assert few is not None
    assert few < 0.0


def train(one: SimTrainer) -> None:
    """Let it go through quanta until it rests."""
    while one.peek() is not None:
        one.ran(0.0)


def test_what_was_learned_for_a_round_without_an_outcome_is_gone_on_from() -> None:
    one = trainer()
    for _ in range(2):
        one.begin_round(1_000, 0.0)
        train(one)
        update = one.report()
    twice = one.num_tokens
    assert update == tuple(one.knowledge)
    alone = trainer()
    alone.begin_round(twice, 0.0)
    train(alone)
    assert update == alone.report()


def test_outcome_that_holds_the_update_is_gone_on_from_as_it_is() -> None:
    one = trainer()
    one.begin_round(1_000, 0.0)
    train(one)
    one.report()
    one.adopt((7_000.0,))
    assert one.knowledge == [7_000.0]


def test_what_was_not_reported_is_carried_over_to_the_outcome() -> None:
    one = trainer()
    one.begin_round(1_000, 0.0)
    train(one)
    (learned,) = one.knowledge
    assert learned > 0.0
    one.adopt((7_000.0,))
    assert one.knowledge == [7_000.0 + learned]


@pytest.mark.parametrize("num_batches", [1, 3])
def test_steps_tell_the_profiles_noise_scale_even_those_of_one_micro_batch(
    num_batches: int,
) -> None:
    totals = Totals(PacingConfig(), LoopTimes())
    device, noise = profile(), NoiseScale()
    one = SimTrainer(device, lambda now_s: (1.0,), 1, (0.0,), Random(0), totals)
    one.tokens_per_step = num_batches * device.training.micro_batch_sample_tokens
    one.begin_round(40 * one.tokens_per_step, 0.0)
    train(one)
    noise.add(totals.adapters[ADAPTER].gradient)
    assert noise.measured_tokens == pytest.approx(device.training.noise_scale_tokens)
