"""A stretch names steps that are sure, and catching up leaves what stepping would have left."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collm.engine.blocks import BlockManager
from collm.engine.config import SchedulerConfig
from collm.engine.plan import SampledToken, StepOutput
from collm.engine.scheduler import Scheduler
from collm.types import BASE, BASE_SLOT, Binding, Request, RequestId, SamplingParams
from factories.engine import FixedPrefillLimit

BLOCK_SIZE, TOKEN = 4, 0


class NoPins:
    def is_version(self, model: str) -> bool:
        return False

    def pin(self, model: str) -> Binding:
        return Binding(BASE, BASE_SLOT)

    def unpin(self, binding: Binding) -> None:
        pass


class Bench:
    """A scheduler whose steps take a second and whose tokens are all the same."""

    def __init__(self, num_blocks: int = 100, max_model_len: int = 200) -> None:
        self.blocks = BlockManager(num_blocks, BLOCK_SIZE)
        self.scheduler = Scheduler(
            SchedulerConfig(max_running=4),
            self.blocks,
            NoPins(),
            FixedPrefillLimit(10),
            frozenset(),
            max_model_len,
        )
        self.now_s = 0.0

    def add(self, number: int, num_prompt: int, num_output: int) -> None:
        self.scheduler.add(
            Request(
                request_id=RequestId(f"r{number}"),
                model="base",
                prompt=(-number - 1,) * num_prompt,
                sampling=SamplingParams(max_tokens=num_output, ignore_eos=True),
                arrived_at_s=float(number),
            )
        )

    def step(self) -> int:
        plan = self.scheduler.schedule(self.now_s)
        self.now_s += 1.0
        num_tokens = sum(item.samples for item in plan.items)
        output = StepOutput((SampledToken(TOKEN),) * num_tokens)
        events = self.scheduler.update(plan, output, self.now_s)
        self.scheduler.check()
        return sum(event.finish_reason is not None for event in events)

    def state(self):
        running = self.scheduler._running
        return [
            (one.order, one.token_ids, one.num_computed_tokens, len(one.block_table),
             one.last_token_at_s, one.num_committed_blocks)
            for one in running
        ], self.blocks.num_free, self.blocks.num_cached  # fmt: skip


def test_nothing_is_sure_before_all_decode_or_while_something_waits() -> None:
    bench = Bench()
    assert bench.scheduler.stretch() is None
    bench.add(0, 25, 20)
    assert bench.scheduler.stretch() is None
    bench.step()
    assert bench.scheduler.stretch() is None  # it prefills in chunks of ten
    bench.step()
    bench.step()
    assert bench.scheduler.stretch() is not None
    bench.add(1, 5, 20)
    assert bench.scheduler.stretch() is None


def test_row_ends_with_the_step_that_ends_the_first_answers() -> None:
    bench = Bench()
    for number, num_output in enumerate((20, 8, 9, 8)):
        bench.add(number, 2, num_output)
    bench.step()
    stretch = bench.scheduler.stretch()
    assert stretch is not None
    assert stretch.num_steps == 7  # of 8 tokens one is there
    assert [one.request.request_id for one in stretch.ending] == ["r1", "r3"]
    assert [bench.step() for _ in range(8)] == [0, 0, 0, 0, 0, 0, 2, 1]


def test_row_ends_before_blocks_run_short() -> None:
    bench = Bench(num_blocks=6)
    bench.add(0, 4, 60)
    bench.add(1, 4, 60)
    bench.step()
    stretch = bench.scheduler.stretch()
    assert stretch is not None
    assert stretch.num_lacking(stretch.num_steps) <= bench.blocks.num_free
    assert stretch.ending == ()


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(3, 40)), min_size=1, max_size=4),
    num_blocks=st.integers(20, 60),
    cuts=st.lists(st.integers(0, 10), min_size=1, max_size=4),
    has_begun_next=st.booleans(),
)
def test_skipped_steps_leave_what_steps_leave(lengths, num_blocks, cuts, has_begun_next) -> None:
    plain, quick = Bench(num_blocks), Bench(num_blocks)
    for bench in (plain, quick):
        for number, (num_prompt, num_output) in enumerate(lengths):
            bench.add(number, num_prompt, num_output)
    for _ in range(30):
        stretch = quick.scheduler.stretch()
        if stretch is not None:
            break
        if not quick.scheduler.has_work:
            return
        plain.step()
        quick.step()
    else:
        return
    num_done, started_s = 0, quick.now_s
    for cut in cuts:
        num_done = min(num_done + cut, stretch.num_steps)
        quick.now_s = started_s + num_done
        stretch.skip(num_done, TOKEN, quick.now_s, has_begun_next=False)
        while plain.now_s < quick.now_s:
            is_last = plain.now_s + 1.0 == started_s + stretch.num_steps
            assert plain.step() == (len(stretch.ending) if is_last else 0)
        if num_done == stretch.num_steps:
            assert len(quick.scheduler.end_stretch(stretch)) == len(stretch.ending)
            assert quick.state() == plain.state()
            return
        assert quick.state() == plain.state()
        assert quick.scheduler.backlog() == plain.scheduler.backlog()
    if has_begun_next:
        num_lacking = stretch.num_lacking(num_done + 1)
        num_free = quick.blocks.num_free
        stretch.skip(num_done, TOKEN, quick.now_s, has_begun_next=True)
        plain.scheduler.schedule(plain.now_s)
        assert quick.blocks.num_free == plain.blocks.num_free == num_free - num_lacking


def test_backlog_counts_prefill_of_all_and_context_of_those_that_run() -> None:
    bench = Bench()
    for number in range(5):
        bench.add(number, 8, 4)
    assert bench.scheduler.backlog().num_prefill_tokens == 40
    bench.step()
    backlog = bench.scheduler.backlog()
    assert backlog.num_context_tokens == 10
    assert backlog.num_prefill_tokens == 30
    while bench.scheduler.has_work:
        bench.step()
    assert bench.scheduler.backlog().num_prefill_tokens == 0
    assert bench.scheduler.backlog().num_context_tokens == 0


def test_skipping_beyond_free_blocks_is_a_bug_that_is_noticed() -> None:
    bench = Bench(num_blocks=6)
    bench.add(0, 4, 60)
    bench.step()
    stretch = bench.scheduler.stretch()
    assert stretch is not None
    with pytest.raises(AssertionError):
        stretch.skip(100, TOKEN, 200.0, has_begun_next=False)
