"""One adapter's estimates, fed with made-up replicas whose truth is known."""

import pytest

from collm.cluster.planning.adapter_estimates import AdapterEstimates
from collm.types import AdapterTotals, Evaluation, GradientSums, LearningState

NO_GRADIENT = GradientSums()


def loss_of(tokens):
    return 2.0 * (tokens + 10_000.0) ** -0.5 * 100.0 + 0.5


class World:
    """Members train ``tokens`` per window each; the truth is what ``worth`` of them come to."""

    def __init__(self, *names, worth=1.0, is_joint=True):
        self.names = names
        self.worth = worth
        self.is_joint = is_joint
        self.estimates = AdapterEstimates(120.0)
        self.totals = dict.fromkeys(names, 0)
        self.evaluations = {}
        self.effective = 0.0
        self.estimates.meet(self.learners)

    @property
    def learners(self):
        return {
            name: LearningState(
                tokens_per_step=512,
                micro_batch_tokens=256,
                is_joint=self.is_joint,
                evaluation=self.evaluations.get(name),
            )
            for name in self.names
        }

    def window(self, tokens=5_120, evaluates=True, gradient=NO_GRADIENT):
        for name in self.names:
            self.totals[name] += tokens
        self.effective += self.worth * tokens * len(self.names)
        if evaluates:
            self.evaluations = {
                name: Evaluation(
                    num_tokens=self.totals[name], loss=loss_of(self.effective), num_samples=20
                )
                for name in self.names
            }
        done = AdapterTotals(num_trained_tokens=tokens, num_steps=tokens // 512, gradient=gradient)
        self.estimates.meet(self.learners)
        self.estimates.learn_training(
            dict.fromkeys(self.names, done),
            {name: AdapterTotals(num_trained_tokens=n) for name, n in self.totals.items()},
        )


def test_before_there_are_data_everything_has_a_value():
    world = World("r0", "r1")
    estimates = world.estimates
    assert estimates.curve.gain(10_000.0) > 0.0
    assert estimates.efficiency.e(512) == 1.0
    assert estimates.discount("r0") == pytest.approx(0.5**0.5)
    assert 512 in estimates.batch_choices
    forecast = estimates.forecast(0.0, 60.0)
    assert forecast.mean_per_s == 0.0
    assert forecast.std_per_s > 0.0


def test_who_learns_alone_counts_for_what_it_serves():
    world = World("r0", "r1", "r2", "r3", is_joint=False)
    assert world.estimates.discount("r0") == 0.25


def test_nobody_learning_is_no_error():
    estimates = AdapterEstimates(120.0)
    estimates.learn_training({"r0": AdapterTotals()}, {})
    assert estimates.batch_choices == ()


def test_the_curve_is_that_of_what_was_measured():
    world = World("r0", is_joint=False)
    for _ in range(12):
        world.window()
    curve = world.estimates.curve
    assert curve.num_points == 12
    assert curve.loss(20_000.0) == pytest.approx(loss_of(world.effective + 20_000.0), rel=0.05)


def test_a_point_counts_once_and_stands_where_training_was_then():
    world = World("r0", is_joint=False)
    for number in range(12):
        world.window(evaluates=number % 3 == 0)
    assert world.estimates.curve.num_points == 4
    late = World("r0", is_joint=False)
    for number in range(12):  # each evaluation is of parameters that are a window old
        before, loss = dict(late.totals), loss_of(late.effective)
        late.evaluations = {"r0": Evaluation(num_tokens=before["r0"], loss=loss, num_samples=20)}
        late.window(evaluates=False)
        assert late.estimates.curve.num_points == number + 1
    found = late.estimates.curve
    assert found.loss(20_000.0) == pytest.approx(loss_of(late.effective + 14_880.0), rel=0.05)


def test_gradients_of_all_members_say_how_large_steps_should_be():
    world = World("r0", "r1")
    noise, signal = 3_000.0, 1.0  # φ = 3,000 tokens
    step = GradientSums(
        num_steps=10,
        num_differences=10,
        spread=10 * noise,
        square=10 * (signal + noise / 512),
        inverse_tokens=10 / 512,
    )
    for _ in range(20):
        world.window(gradient=step)
    found = world.estimates.efficiency
    assert found.phi_tokens == pytest.approx(3_000.0, rel=0.1)
    assert found.base_tokens == 512


@pytest.mark.parametrize("worth", [0.5, 1.0])
def test_discounts_stay_sane_in_rounds(worth):
    world = World("r0", "r1", worth=worth)
    for _ in range(30):
        world.window()
    for name in world.names:
        assert 0.1 < world.estimates.discount(name) <= 1.0
    ahead = world.estimates.curve.loss(5_000.0)
    assert ahead < world.estimates.curve.loss_now


def test_arrivals_are_forecast_over_all_replicas():
    estimates = AdapterEstimates(120.0)
    for number in range(20):
        done = {name: AdapterTotals(num_arrived=60) for name in ("r0", "r1")}
        estimates.learn_arrivals(done, 60.0 * number, 60.0 * (number + 1))
    found = estimates.forecast(1_200.0, 1_260.0)
    assert found.mean_per_s == pytest.approx(2.0)
    assert found.std_per_s < 0.5
