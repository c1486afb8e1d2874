from collm.engine.plan import StepPlan, scheduled
from collm.engine.sequence import Sequence
from collm.types import BASE, BASE_SLOT, Binding, StepLoad, VersionId
from factories.engine import Loop, request


def sequence_of(num_known: int, num_computed: int, binding: Binding) -> Sequence:
    sequence = Sequence(request("r", list(range(num_known))), 0)
    sequence.num_computed_tokens = num_computed
    sequence.binding = binding
    return sequence


def test_only_a_chunk_that_catches_up_samples():
    sequence = sequence_of(10, 4, Binding(BASE, BASE_SLOT))
    assert not scheduled(sequence, 5).samples
    assert scheduled(sequence, 6).samples


def test_load_counts_decodes_prefill_context_and_adapters():
    base, v1 = Binding(BASE, BASE_SLOT), Binding(VersionId("a@1"), 0)
    plan = StepPlan(
        (
            scheduled(sequence_of(8, 7, base), 1),
            scheduled(sequence_of(5, 4, v1), 1),
            scheduled(sequence_of(20, 6, v1), 9),
        )
    )
    assert plan.num_tokens == 11
    assert plan.load() == StepLoad(
        num_decode_tokens=2, num_prefill_tokens=9, num_context_tokens=8 + 5 + 15, num_adapters=1
    )


def test_a_plan_says_the_same_after_its_step_was_taken_in():
    loop = Loop()
    loop.add(request("a", [1, 2, 3]))
    plan = loop.scheduler.schedule(0.0)
    before = plan.load(), [item.samples for item in plan.items]
    loop.finish(plan)
    assert (plan.load(), [item.samples for item in plan.items]) == before


def test_an_empty_plan_has_no_load():
    assert StepPlan().is_empty
    assert StepPlan().load() == StepLoad()
