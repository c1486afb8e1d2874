"""A pool that counts its blocks answers as one that knows them, where no prompts begin alike."""

from hypothesis import given, settings
from hypothesis import strategies as st

from collm.engine.blocks import BlockManager, Blocks
from collm.engine.config import SchedulerConfig
from collm.engine.plan import SampledToken, StepOutput
from collm.engine.scheduler import Scheduler
from collm.sim.blocks import CountedBlocks
from factories.engine import MAX_MODEL_LEN, FakePins, FixedPrefillLimit, request

PLAIN = StepOutput((SampledToken(1),))


class Bench:
    """A scheduler on some pool, and what came of its steps."""

    def __init__(self, blocks: Blocks, max_running: int) -> None:
        self.blocks = blocks
        config = SchedulerConfig(max_running=max_running, max_step_tokens=24)
        self.scheduler = Scheduler(
            config, blocks, FakePins(), FixedPrefillLimit(9), frozenset(), MAX_MODEL_LEN
        )

    def step(self, now_s: float):
        """Return what was planned, what became of it, and how many blocks are left then."""
        plan = self.scheduler.schedule(now_s)
        self.scheduler.check()
        num_tokens = sum(item.samples for item in plan.items)
        events = self.scheduler.update(plan, StepOutput(PLAIN.tokens * num_tokens), now_s)
        self.scheduler.check()
        planned = [(item.sequence.order, *item[1:]) for item in plan.items]
        return planned, events, self.blocks.num_free, self.scheduler.num_preemptions


@settings(max_examples=60, deadline=None)
@given(
    num_blocks=st.integers(6, 24),
    block_size=st.sampled_from([2, 3, 4]),
    max_running=st.integers(2, 8),
    arrivals=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(1, 30)),
        min_size=1,
        max_size=12,
    ),
    aborted=st.sets(st.integers(0, 11), max_size=3),
)
def test_counted_blocks_lead_to_the_same_plans(
    num_blocks, block_size, max_running, arrivals, aborted
) -> None:
    known = BlockManager(num_blocks, block_size, enable_prefix_cache=False)
    benches = [Bench(one, max_running) for one in (known, CountedBlocks(num_blocks, block_size))]
    now_s = 0.0
    for number, (num_steps, num_prompt, num_output) in enumerate(arrivals):
        for bench in benches:
            new = request(f"r{number:02d}", [1] * num_prompt, max_tokens=num_output)
            bench.scheduler.add(new)
        for _ in range(num_steps):
            now_s += 1.0
            assert benches[0].step(now_s) == benches[1].step(now_s)
        if number in aborted:
            for bench in benches:
                bench.scheduler.abort(f"r{number // 2:02d}")
    while benches[0].scheduler.has_work:
        now_s += 1.0
        assert benches[0].step(now_s) == benches[1].step(now_s)
    assert [bench.blocks.num_free for bench in benches] == [num_blocks] * 2
