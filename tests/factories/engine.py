"""A scheduler's surroundings without a model: versions, a runner with checkable KV, a loop."""

from collections import Counter, defaultdict
from collections.abc import Sequence as Row
from dataclasses import dataclass, field
from zlib import crc32

from collm.engine.blocks import BlockManager
from collm.engine.config import SchedulerConfig
from collm.engine.plan import SampledToken, StepOutput, StepPlan
from collm.engine.scheduler import Scheduler
from collm.engine.sequence import Sequence
from collm.errors import UnknownAdapterError
from collm.types import (
    BASE,
    BASE_SLOT,
    Binding,
    Request,
    RequestId,
    SamplingParams,
    SequenceProgress,
    TokenEvent,
    VersionId,
)

EOS = 0
VOCAB_SIZE = 13
MAX_MODEL_LEN = 64


def request(request_id: str, prompt: list[int], **kwargs: object) -> Request:
    """Build a request; keywords of ``Request`` go there, all others are sampling parameters."""
    own = {name: kwargs.pop(name) for name in ("model", "n", "arrived_at_s") if name in kwargs}
    own = {"model": "base", "arrived_at_s": 0.0, **own}
    kwargs = {"max_tokens": 8, "ignore_eos": True, **kwargs}
    return Request(
        request_id=RequestId(request_id),
        prompt=tuple(prompt),
        sampling=SamplingParams(**kwargs),
        **own,
    )


def _extend(state: int, token_id: int) -> int:
    return (state * 1_000_003 + token_id + 1) % (2**61 - 1)


def _choose(state: int, choice: int, sampling: SamplingParams, num_output: int) -> int:
    token_id = (state + choice) % VOCAB_SIZE
    is_early = num_output < sampling.min_tokens
    return token_id + 1 if is_early and token_id == EOS else token_id


def expected_tokens(
    request: Request, choice: int, version: VersionId, max_len: int = MAX_MODEL_LEN
) -> list[int]:
    """Return a choice's output when it runs alone, without blocks, chunks or scheduling."""
    sampling = request.sampling
    state = crc32(version.encode())
    for token_id in request.prompt:
        state = _extend(state, token_id)
    output: list[int] = []
    while True:
        token_id = _choose(state, choice, sampling, len(output))
        output.append(token_id)
        state = _extend(state, token_id)
        is_stop = token_id in sampling.stop_token_ids
        is_stop |= token_id == EOS and not sampling.ignore_eos
        if is_stop and len(output) >= sampling.min_tokens:
            return output
        if len(output) >= sampling.max_tokens or len(request.prompt) + len(output) >= max_len:
            return output


class FakePins:
    """Named versions that can be swapped and removed, with a count of who holds them."""

    def __init__(self) -> None:
        self.active: dict[str, VersionId] = {}
        self.slots: dict[VersionId, int] = {BASE: BASE_SLOT}
        self.pins: Counter[VersionId] = Counter()
        self.num_pinned = 0

    def publish(self, name: str, label: str) -> VersionId:
        version = VersionId(f"{name}@{label}")
        self.slots[version] = len(self.slots)
        self.active[name] = version
        return version

    def remove(self, version: VersionId) -> None:
        assert self.pins[version] == 0
        del self.slots[version]

    def is_version(self, model: str) -> bool:
        return model in self.slots

    def pin(self, model: str) -> Binding:
        version = self.active.get(model, VersionId(model))
        if version not in self.slots:
            raise UnknownAdapterError(f"{model} is not served; there is {sorted(self.slots)}")
        self.pins[version] += 1
        self.num_pinned += 1
        return Binding(version, self.slots[version])

    def unpin(self, binding: Binding) -> None:
        assert self.pins[binding.version] > 0, f"{binding} unpinned too often"
        self.pins[binding.version] -= 1


class FixedPrefillLimit:
    """The same limit in every step."""

    def __init__(self, num_tokens: int = 10_000) -> None:
        self.num_tokens = num_tokens

    def prefill_tokens(self, progress: Row[SequenceProgress], now_s: float) -> int:
        return self.num_tokens


class FakeRunner:
    """Keep, for each KV slot, a digest of version and tokens; sampling checks all it reads."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._kv: dict[tuple[int, int], int] = {}
        self.broken: set[VersionId] = set()
        """Versions whose logits are no numbers."""

    def run(self, plan: StepPlan) -> StepOutput:
        written = [self._compute(item.sequence, item.num_new_tokens) for item in plan.items]
        slots = [slot for chunk in written for slot in chunk]
        assert len(slots) == len(set(slots)), "two sequences write the same slot"
        return StepOutput(tuple(self._sample(i.sequence) for i in plan.items if i.samples))

    def _slot(self, sequence: Sequence, position: int) -> tuple[int, int]:
        return sequence.block_table[position // self._block_size], position % self._block_size

    def _compute(self, sequence: Sequence, num_new_tokens: int) -> list[tuple[int, int]]:
        start = sequence.num_computed_tokens
        slots = [self._slot(sequence, start + i) for i in range(num_new_tokens)]
        assert sequence.binding is not None
        state = crc32(sequence.binding.version.encode())
        if start:
            state = self._kv[self._slot(sequence, start - 1)]
        for slot, token_id in zip(slots, sequence.token_ids[start:], strict=False):
            state = _extend(state, token_id)
            self._kv[slot] = state
        return slots

    def _sample(self, sequence: Sequence) -> SampledToken:
        assert sequence.binding is not None
        state = crc32(sequence.binding.version.encode())
        for position, token_id in enumerate(sequence.token_ids):
            state = _extend(state, token_id)
            assert self._kv[self._slot(sequence, position)] == state, "wrong keys and values"
        if sequence.binding.version in self.broken:
            return SampledToken(None)
        sampling, num_output = sequence.request.sampling, sequence.num_output_tokens
        return SampledToken(_choose(state, sequence.choice, sampling, num_output))


@dataclass
class Loop:
    """A scheduler, what it needs, and everything that came out of it."""

    num_blocks: int = 64
    block_size: int = 4
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    prefill_limit: FixedPrefillLimit = field(default_factory=FixedPrefillLimit)
    max_model_len: int = MAX_MODEL_LEN

    def __post_init__(self) -> None:
        self.pins = FakePins()
        self.blocks = BlockManager(
            self.num_blocks,
            self.block_size,
            enable_prefix_cache=self.config.enable_prefix_cache,
        )
        self.runner = FakeRunner(self.block_size)
        self.scheduler = Scheduler(
            self.config,
            self.blocks,
            self.pins,
            self.prefill_limit,
            frozenset({EOS}),
            self.max_model_len,
        )
        self.now_s = 0.0
        self.events: dict[tuple[str, int], list[TokenEvent]] = defaultdict(list)

    def add(self, *requests: Request) -> None:
        for new in requests:
            self.record(self.scheduler.add(new))

    def add_call(self, *requests: Request) -> None:
        """Add requests that came in one call."""
        self.record(self.scheduler.add(*requests))

    def abort(self, request_id: str) -> None:
        self.record(self.scheduler.abort(RequestId(request_id)))

    def record(self, events: list[TokenEvent]) -> list[TokenEvent]:
        for event in events:
            self.events[event.request_id, event.choice].append(event)
        return events

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule(self.now_s)
        self.scheduler.check()
        self.finish(plan)
        return plan

    def finish(self, plan: StepPlan) -> list[TokenEvent]:
        output = self.runner.run(plan)
        self.now_s += 1.0
        events = self.record(self.scheduler.update(plan, output, self.now_s))
        self.scheduler.check()
        return events

    def drain(self, max_steps: int = 2_000) -> int:
        for num_steps in range(max_steps):
            if not self.scheduler.has_work:
                self.assert_idle()
                return num_steps
            self.step()
        raise AssertionError(f"still busy after {max_steps} steps")

    def assert_idle(self) -> None:
        assert self.blocks.num_free == self.num_blocks
        assert self.scheduler.progress() == ()
        assert not +self.pins.pins, "a version is still held"

    def tokens(self, request_id: str, choice: int = 0) -> list[int]:
        events = self.events[request_id, choice]
        return [event.token_id for event in events if event.token_id is not None]

    def last(self, request_id: str, choice: int = 0) -> TokenEvent:
        return self.events[request_id, choice][-1]
