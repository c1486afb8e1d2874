"""An adapter that is learned together: trains for rounds, reports, follows what is served."""

from math import inf, isfinite, nan
from statistics import fmean

import pytest
import torch

from collm.clock import ManualClock
from collm.lora.layout import lora_layout
from collm.lora.state import AdapterState
from collm.model.decoder import Decoder
from collm.pacing.quanta import QuantumKind
from collm.training.base_version import BaseVersion, fresh_state
from collm.training.comparing import Comparison
from collm.training.events import (
    BaselineReport,
    Compared,
    RoundFailed,
    RoundTrained,
    ShadowReset,
    TrainingSnapshot,
)
from collm.training.measuring import Limits
from collm.training.round_job import RoundJob
from collm.training.trainer import Trainer
from collm.types import GradientSums, VersionId
from factories.training import (
    RIGHT_ANSWER,
    FixedSizes,
    TickingClock,
    all_that_is_due,
    gate_config,
    job_config,
    lessons,
    make_corpus,
    make_job,
    make_watches,
    random_state,
    regressions,
    reports,
    run_quanta,
    run_until,
    sample_losses,
    tiny_decoder,
)

ANSWER = RIGHT_ANSWER
HELD_OUT = lessons(6, ANSWER, seed=2)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return tiny_decoder(tmp_path_factory.mktemp("model"))


def layout(decoder):
    return lora_layout(decoder.spec, 4)


def version(label, state, *members, strategy="svd"):
    metadata = {"members": ", ".join(members), "strategy": strategy}
    return BaseVersion.of(VersionId(f"a@{label}"), state, metadata)


def make_round_job(decoder, base=None, member="r0", *, held_out=HELD_OUT, **fields):
    config = job_config(**({"micro_batch_tokens": 40, "tokens_per_step": 60} | fields))
    corpus = make_corpus(lessons(60, ANSWER, seed=1), held_out)
    base = base or BaseVersion(version=None, state=fresh_state("a", layout(decoder)))
    limits = Limits(FixedSizes(), 0.04, config.micro_batch_tokens)
    return RoundJob(config, decoder, base, corpus, gate_config(), limits, "keep", member)


class World:
    """One job in a trainer, with the events so far."""

    def __init__(self, decoder: Decoder, base=None, **fields):
        self.job = make_round_job(decoder, base, **fields)
        self.trainer = Trainer([self.job], ManualClock())
        self.events = []

    def begin(self, number, max_tokens=200, base=None):
        self.events += self.trainer.begin_round("a", number, max_tokens, base)

    def rest(self):
        """Run until nothing is left to do."""
        self.events += run_until(self.trainer, lambda _: False)

    def train(self, number, max_tokens=200, base=None):
        self.begin(number, max_tokens, base)
        self.rest()
        return self.update(number)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def update(self, number):
        (found,) = [event for event in self.of(RoundTrained) if event.number == number]
        return found

    @property
    def shadow(self):
        return self.job._state.shadow.state()


def dense(state: AdapterState):
    parts = [p for f in state.layout.views(state.flat) for p in f.parts()]
    return torch.cat([(b @ a).flatten() for _, a, b in parts])


def test_nothing_is_learned_until_a_round_asks(decoder):
    world = World(decoder)
    world.rest()
    assert [type(event) for event in world.events] == [BaselineReport]
    assert world.events[0].num_samples == len(HELD_OUT)


def test_a_round_trains_on_its_tokens_and_no_more_then_rests(decoder):
    world = World(decoder)
    update = world.train(1, max_tokens=200)
    assert update.is_complete
    assert update.base is None
    assert 200 - 14 < update.num_tokens <= 200
    assert sum(report.num_tokens for report in reports(world.events)) == update.num_tokens
    assert sum(report.num_samples for report in reports(world.events)) == update.num_examples
    assert torch.equal(update.state.flat, world.shadow.flat)
    assert update.loss_after < update.loss_before
    assert world.trainer.peek() is None


def test_losses_are_those_of_both_sides_on_the_same_held_out_samples(decoder):
    update = World(decoder).train(1, max_tokens=400)
    before = sample_losses(decoder, HELD_OUT, fresh_state("a", layout(decoder)))
    after = sample_losses(decoder, HELD_OUT, update.state)
    assert update.num_measured == len(HELD_OUT)
    assert update.loss_before == pytest.approx(sum(before) / len(before), rel=1e-4)
    assert update.loss_after == pytest.approx(sum(after) / len(after), rel=1e-4)


def test_members_start_from_the_same_fresh_adapter_whatever_their_seeds(decoder):
    first, second = (make_round_job(decoder, seed=seed) for seed in (1, 2))
    assert torch.equal(first._state.shadow.parameters, second._state.shadow.parameters)
    other = fresh_state("b", layout(decoder))
    assert not torch.equal(other.flat, fresh_state("a", layout(decoder)).flat)


def test_a_round_upon_the_same_base_goes_on_from_what_was_learned(decoder):
    world = World(decoder)
    first, second = world.train(1), world.train(2)
    assert second.num_tokens > first.num_tokens
    assert second.num_examples > first.num_examples
    assert not torch.equal(second.state.flat, first.state.flat)
    assert second.base is None


def test_each_report_tells_of_the_gradients_since_the_one_before(decoder):
    world = World(decoder)
    for number in (1, 2):
        num_before = len(reports(world.events))
        update, total = world.train(number), GradientSums()
        for report in reports(world.events)[num_before:]:
            total = total.plus(report.gradient)
        assert total.num_steps > 0
        assert update.gradient == total


def test_finish_reports_what_there_is(decoder):
    world = World(decoder)
    world.begin(1, max_tokens=10_000)
    world.events += run_until(world.trainer, lambda events: bool(reports(events)))
    world.job.finish_round()
    world.rest()
    update = world.update(1)
    assert not update.is_complete
    assert 0 < update.num_tokens < 10_000
    assert update.loss_after is None


def test_finish_before_the_first_step_reports_what_was_begun(decoder):
    world = World(decoder)
    world.begin(1, max_tokens=10_000)
    run_quanta(world.trainer, lambda quantum: quantum.kind is QuantumKind.BACKWARD)
    world.job.finish_round()
    world.rest()
    assert world.update(1).num_tokens > 0


def test_a_version_that_holds_the_update_replaces_it(decoder):
    world = World(decoder)
    world.train(1)
    new = random_state(decoder, 4, seed=3)
    world.events += world.trainer.adopt("a", version(1, new, "r0", "r1"))
    world.rest()
    torch.testing.assert_close(world.shadow.flat, new.flat)
    assert world.job._state.optimizer.num_steps == 0
    second = world.train(2, base=version(1, new, "r0", "r1"))
    assert second.base == "a@1"
    assert second.num_tokens <= 200


def test_a_version_without_the_update_keeps_what_was_learned_upon_it(decoder):
    world = World(decoder)
    update = world.train(1)
    new = random_state(decoder, 2, seed=3)
    world.events += world.trainer.adopt("a", version(1, new, "r1"))
    world.rest()
    # Both have rank 2 and 4 of at most 4 dimensions each: what is cut off is small, not zero.
    wanted = dense(new) + dense(update.state)
    error = torch.linalg.norm(dense(world.shadow) - wanted) / torch.linalg.norm(wanted)
    assert error < 0.25
    assert world.train(2, base=version(1, new, "r1")).num_tokens > update.num_tokens


def test_fedavg_keeps_the_moments_and_moves_the_factors(decoder):
    world = World(decoder)
    update = world.train(1)
    num_steps, mean = world.job._state.optimizer.num_steps, world.job._state.optimizer.mean.clone()
    new = random_state(decoder, 4, seed=3)
    world.trainer.adopt("a", version(1, new, "r0", strategy="fedavg"))
    world.rest()
    torch.testing.assert_close(world.shadow.flat, new.flat)
    assert world.job._state.optimizer.num_steps == num_steps > 0
    assert torch.equal(world.job._state.optimizer.mean, mean)
    newer = random_state(decoder, 4, seed=4)
    world.trainer.adopt("a", version(2, newer, "r1", strategy="fedavg"))
    world.rest()
    torch.testing.assert_close(world.shadow.flat, newer.flat)
    assert update.number == 1


def test_a_version_amid_a_round_ends_it_and_what_it_learned_is_carried_on(decoder):
    world = World(decoder)
    world.begin(1, max_tokens=10_000)
    world.events += run_until(world.trainer, lambda events: bool(reports(events)))
    new = random_state(decoder, 2, seed=3)
    world.events += world.trainer.adopt("a", version(1, new, "r1"))
    update = world.update(1)
    assert update.base is None
    assert not update.is_complete
    world.rest()
    assert not torch.equal(dense(world.shadow), dense(new))
    assert world.train(2, base=version(1, new, "r1")).base == "a@1"


def test_a_round_from_a_version_not_served_yet_moves_there_once(decoder):
    world = World(decoder)
    new = version(1, random_state(decoder, 4, seed=3), "r1")
    update = world.train(2, base=new)
    assert update.base == "a@1"
    before = world.shadow.flat
    assert list(world.trainer.adopt("a", new)) == []
    world.rest()
    assert torch.equal(world.shadow.flat, before)


def test_what_is_taken_back_takes_the_round_with_it(decoder):
    world = World(decoder)
    world.begin(1, max_tokens=10_000)
    world.events += run_until(world.trainer, lambda events: bool(reports(events)))
    old = version(1, random_state(decoder, 4, seed=3), "r0")
    world.events += world.trainer.revert("a", old)
    assert [event.number for event in world.of(RoundFailed)] == [1]
    assert torch.equal(world.shadow.flat, old.state.flat)
    assert world.train(2, base=old).num_tokens <= 200


def test_what_is_taken_back_to_the_base_leaves_a_fresh_adapter(decoder):
    served = version(1, random_state(decoder, 4, seed=3), "r0")
    world = World(decoder, served)
    world.begin(1, max_tokens=10_000, base=served)
    world.events += run_until(world.trainer, lambda events: bool(reports(events)))
    world.events += world.trainer.revert("a", None)
    assert [event.number for event in world.of(RoundFailed)] == [1]
    fresh = fresh_state("a", world.shadow.layout)
    assert torch.equal(world.shadow.flat, fresh.flat)
    assert world.train(2).base is None


def test_a_shadow_proven_worse_starts_over_from_its_base(decoder):
    world = World(decoder, held_out=lessons(8, (9, 10, 11), seed=2), learning_rate=0.1)
    first = world.train(1, max_tokens=800)
    assert first.loss_after > first.loss_before
    second = world.train(2, max_tokens=100)
    assert [event.reason for event in world.of(ShadowReset)] == [
        "it was proven worse than what is served"
    ]
    assert second.num_tokens <= 100


def test_parameters_that_are_not_finite_fail_the_round_and_start_over(decoder):
    world = World(decoder)
    world.begin(1)
    run_quanta(world.trainer, lambda quantum: quantum.kind is QuantumKind.STAGE)
    world.job._state.shadow.parameters.fill_(nan)
    world.rest()
    assert [event.number for event in world.of(RoundFailed)] == [1]
    assert world.of(RoundTrained) == []
    assert world.train(2).loss_after is not None


def compare(world, decoder, candidate, active=None, number=1, max_samples=100):
    world.job.compare(
        Comparison(
            number=number,
            candidate=VersionId(f"a@{number}"),
            candidate_state=candidate,
            active=None if active is None else VersionId("a@9"),
            active_state=active,
            max_samples=max_samples,
        )
    )
    world.rest()
    return world.of(Compared)[-1]


def test_comparison_measures_both_on_every_held_out_sample(decoder):
    world = World(decoder)
    candidate, active = (random_state(decoder, 4, seed=seed) for seed in (3, 4))
    found = compare(world, decoder, candidate, active)
    sides = [sample_losses(decoder, HELD_OUT, state) for state in (active, candidate)]
    wanted = {sample.sample_id: pair for sample, *pair in zip(HELD_OUT, *sides, strict=True)}
    assert len(found.pairs) == len(HELD_OUT)
    for pair in found.pairs:
        assert [pair.active, pair.candidate] == pytest.approx(wanted[pair.sample_id], rel=1e-4)


def test_without_an_active_version_the_base_model_is_the_other_side(decoder):
    found = compare(World(decoder), decoder, random_state(decoder, 4, seed=3), max_samples=4)
    bare = sample_losses(decoder, HELD_OUT, fresh_state("a", layout(decoder)))
    known = {s.sample_id: loss for s, loss in zip(HELD_OUT, bare, strict=True)}
    assert len(found.pairs) == 4
    for pair in found.pairs:
        assert pair.active == pytest.approx(known[pair.sample_id], rel=1e-4)


def test_a_broken_candidate_shows(decoder):
    broken = random_state(decoder, 4, seed=3)
    broken = AdapterState(broken.layout, torch.full_like(broken.flat, inf))
    found = compare(World(decoder), decoder, broken)
    assert not any(isfinite(pair.candidate) for pair in found.pairs)


def test_what_was_measured_as_candidate_is_known_when_it_is_served(decoder):
    world = World(decoder)
    world.train(1)
    candidate = random_state(decoder, 4, seed=3)
    found = compare(world, decoder, candidate)
    num_before = len(world.of(BaselineReport))
    world.trainer.adopt("a", version(1, candidate, "r0"))
    kinds = [quantum.kind for quantum in run_quanta(world.trainer, lambda _: False)]
    assert QuantumKind.EVALUATE_FORWARD not in kinds
    assert num_before < 2
    assert len(found.pairs) == len(HELD_OUT)


def test_version_that_was_measured_as_candidate_is_reported_before_the_next_round_ends(decoder):
    world = World(decoder)
    world.train(1)
    candidate = random_state(decoder, 4, seed=3)
    found = compare(world, decoder, candidate)
    base = version(1, candidate, "r0")
    world.trainer.adopt("a", base)
    world.begin(2, max_tokens=400, base=base)
    world.events += run_until(world.trainer, lambda events: bool(reports(events)))
    baseline = world.of(BaselineReport)[-1]
    assert baseline.loss == pytest.approx(fmean(pair.candidate for pair in found.pairs))


def snapshot(world):
    world.events += world.trainer.snapshot_now()
    return world.of(TrainingSnapshot)[-1]


def test_a_restored_job_goes_on_in_its_round(decoder):
    world = World(decoder)
    world.begin(1, max_tokens=400)
    world.events += run_until(world.trainer, lambda events: len(reports(events)) == 2)
    taken = snapshot(world)
    again = World(decoder)
    again.job.restore(taken.tensors, taken.meta)
    update = again.train(1, max_tokens=400)
    world.rest()
    assert torch.equal(update.state.flat, world.update(1).state.flat)
    assert update.num_tokens == world.update(1).num_tokens


def test_a_job_restored_upon_another_base_starts_from_that(decoder):
    world = World(decoder)
    world.train(1)
    taken = snapshot(world)
    base = version(1, random_state(decoder, 4, seed=3))
    again = World(decoder, base)
    again.job.restore(taken.tensors, taken.meta)
    assert torch.equal(again.shadow.flat, base.state.flat)
    assert again.train(2, base=base).num_tokens <= 200


def test_a_paused_job_gives_what_it_has_when_asked(decoder):
    world = World(decoder)
    world.begin(1, max_tokens=10_000)
    world.events += run_until(world.trainer, lambda events: bool(reports(events)))
    world.trainer.pause("a")
    world.events += world.trainer.cut_round("a")
    assert world.update(1).num_tokens > 0


@pytest.fixture
def joint_watch(decoder, right, wrong):
    """Of a version that a round promoted and that is worse than the one before it."""
    one, two = VersionId("a@1"), VersionId("a@2")
    return make_watches(decoder).over("a", two, wrong, one, right, is_joint=True)


def test_what_a_round_promoted_is_watched_beside_its_job_and_others_decide(decoder, joint_watch):
    trainer = Trainer([make_round_job(decoder)], ManualClock())
    trainer.watch("a", joint_watch)
    assert trainer.joint_watches()["a"].capital == 1.0
    trainer.add_samples("a", lessons(40, ANSWER, seed=33))
    assert not regressions(all_that_is_due(trainer))
    found = trainer.joint_watches()["a"]
    assert (found.active, found.previous) == ("a@2", "a@1")
    assert found.capital > 1e6, "beyond what it would take here alone"
    assert found.active_loss > found.previous_loss + 1.0
    trainer.unwatch("a")
    assert trainer.joint_watches() == {}


def test_a_joint_watch_goes_on_whatever_becomes_of_the_job(decoder, joint_watch):
    trainer = Trainer([], ManualClock())
    trainer.watch("a", joint_watch)
    for number, change in enumerate(
        (
            lambda: trainer.add(make_round_job(decoder)),
            lambda: trainer.pause("a"),
            lambda: trainer.resume("a"),
            lambda: trainer.remove("a"),
        ),
        start=1,
    ):
        change()
        trainer.add_samples("a", lessons(1, ANSWER, seed=number))
        all_that_is_due(trainer)
        assert trainer.joint_watches()["a"].num_samples == number


def test_a_watch_of_its_own_ends_where_rounds_decide_what_is_served(decoder, right, wrong):
    one, two = VersionId("a@1"), VersionId("a@2")
    trainer = Trainer([], ManualClock())
    trainer.watch("a", make_watches(decoder).over("a", two, wrong, one, right, is_joint=False))
    trainer.add(make_round_job(decoder))
    trainer.add_samples("a", lessons(40, ANSWER, seed=33))
    assert not regressions(all_that_is_due(trainer))
    assert trainer.joint_watches() == {}


def test_a_joint_watch_is_not_the_business_of_a_job_that_learns_alone(decoder, joint_watch):
    job = make_job(decoder, start=fresh_state("a", layout(decoder)))
    trainer = Trainer([job], TickingClock())
    trainer.watch("a", joint_watch)
    trainer.pause("a")
    trainer.resume("a")
    trainer.add_samples("a", lessons(30, ANSWER, seed=33))
    events = run_until(trainer, lambda _: trainer.joint_watches()["a"].num_samples == 30)
    assert not regressions(events)
