"""Any mix of add, step, preempt, abort, swap: nothing is lost, mixed, or held for ever."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from collm.engine.config import SchedulerConfig
from collm.errors import UnknownAdapterError
from collm.types import BASE, FinishReason, Request
from factories.engine import Loop, expected_tokens, request

PROMPTS = st.builds(
    # Few beginnings and few tokens, so that prefixes are often shared.
    lambda head, tail: [1, 2, 3, 4, 5, 6, 7, 8, 9][:head] + tail,
    st.integers(0, 9),
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
)
MODELS = st.sampled_from(["base", "a", "a", "b", "a@1", "gone@1"])
REQUESTS = st.fixed_dictionaries(
    {
        "prompt": PROMPTS,
        "model": MODELS,
        "n": st.sampled_from([1, 1, 1, 2, 3]),
        "max_tokens": st.sampled_from([1, 4, 16, 24]),
        "min_tokens": st.sampled_from([0, 0, 5]),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.sampled_from([(), (), (7,)]),
        "delay_s": st.sampled_from([0.0, 0.5, 1.0]),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(6, 16),
        block_size=st.sampled_from([2, 3, 4]),
        max_running=st.integers(2, 8),
        max_step_tokens=st.sampled_from([1, 5, 16, 32]),
        enable_prefix_cache=st.booleans(),
    )
    def start(self, num_blocks, block_size, **limits):
        config = SchedulerConfig(**limits, max_waiting=24)
        self.loop = Loop(num_blocks, block_size, config)
        self.requests: dict[str, Request] = {}
        self.touched: set[str] = set()  # aborted or failed: these need not reach their end
        self.num_versions = 0
        for name in ("a", "b"):
            self.swap(name)

    @rule(news=st.lists(REQUESTS, min_size=1, max_size=6))
    def add(self, news):
        for fields in news:
            request_id = f"r{len(self.requests)}"
            delay_s = fields.pop("delay_s")
            new = request(request_id, arrived_at_s=self.loop.now_s - delay_s, **fields)
            self.requests[request_id] = new
            self.loop.add(new)

    @rule(num_steps=st.integers(1, 20))
    def step(self, num_steps):
        for _ in range(num_steps):
            self.loop.step()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data):
        self._abort_any(data)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort_in_flight(self, data):
        plan = self.loop.scheduler.schedule(self.loop.now_s)
        self._abort_any(data)
        self.loop.scheduler.check()
        self.loop.finish(plan)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def fail_a_step(self, data):
        plan = self.loop.scheduler.schedule(self.loop.now_s)
        self._abort_any(data)
        self.touched |= {item.sequence.request.request_id for item in plan.items}
        self.loop.record(self.loop.scheduler.fail(plan, RuntimeError("device lost")))

    @rule(name=st.sampled_from(["a", "b"]))
    def swap(self, name):
        self.num_versions += 1
        self.loop.pins.publish(name, str(self.num_versions))

    @rule()
    def free_unused_versions(self):
        pins = self.loop.pins
        for version in list(pins.slots):
            is_active = version in pins.active.values()
            if version != BASE and not is_active and not pins.pins[version]:
                self.loop.blocks.evict_version(version)
                pins.remove(version)

    @rule(num_tokens=st.sampled_from([1, 5, 100]))
    def limit_prefill(self, num_tokens):
        self.loop.prefill_limit.num_tokens = num_tokens

    @invariant()
    def nothing_is_lost(self):
        self.loop.scheduler.check()
        scheduler = self.loop.scheduler
        assert len(scheduler.progress()) == scheduler.num_running + scheduler.num_waiting

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        self.loop.drain()
        self.loop.scheduler.check()
        for request_id, new in self.requests.items():
            for choice in range(new.n):
                self._check_choice(request_id, new, choice)
            events = [e for c in range(new.n) for e in self.loop.events[request_id, c]]
            assert len({e.version for e in events if e.token_id is not None}) <= 1

    def _abort_any(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        self.touched.add(request_id)
        self.loop.abort(request_id)

    def _check_choice(self, request_id, new, choice):
        events = self.loop.events[request_id, choice]
        assert [e.finish_reason is not None for e in events] == [False] * (len(events) - 1) + [True]
        last = events[-1]
        if last.finish_reason == FinishReason.ABORT:
            assert request_id in self.touched
        if isinstance(last.error, UnknownAdapterError):
            assert new.model in ("gone@1", "a@1")
        if isinstance(last.error, RuntimeError):
            assert request_id in self.touched
        tokens = self.loop.tokens(request_id, choice)
        if tokens:
            max_len = min(64, self.loop.num_blocks * self.loop.block_size)
            expected = expected_tokens(new, choice, last.version, max_len)
            assert tokens == (expected if last.token_id is not None else expected[: len(tokens)])


def test_any_mix_of_operations_loses_mixes_and_holds_nothing():
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=200,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
