"""A real engine on a small checkpoint: scheduler, runner and adapter store, wired as a replica's.

``build_engine`` gives the parts, ``generate`` runs requests to their end. For logits at every
position, without a scheduler, there is ``teacher_forced_logits``.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from collm.engine.batch import BatchBuilder, row_order
from collm.engine.blocks import BlockManager
from collm.engine.config import SchedulerConfig
from collm.engine.memory import MemoryPlan, allocate_caches
from collm.engine.plan import scheduled
from collm.engine.runner import ModelRunner
from collm.engine.scheduler import Scheduler
from collm.engine.sequence import Sequence as EngineSequence
from collm.lora.bank import AdapterBank
from collm.lora.layout import lora_layout
from collm.lora.state import AdapterState, initial_state
from collm.lora.store import AdapterStore, version_id
from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.model.fused import Forward
from collm.model.spec import ModelSpec
from collm.model.weights import load_weights
from collm.types import (
    Binding,
    Request,
    RequestId,
    SamplingParams,
    TokenEvent,
    VersionId,
)
from factories.engine import FixedPrefillLimit

BASE_MODEL = "base"
CPU = torch.device("cpu")


@dataclass
class Engine:
    """The parts of one replica's engine, and every event that came out of it."""

    spec: ModelSpec
    memory: MemoryPlan
    decoder: Decoder
    caches: tuple[Tensor, ...]
    bank: AdapterBank
    blocks: BlockManager
    store: AdapterStore
    prefill_limit: FixedPrefillLimit
    scheduler: Scheduler
    runner: ModelRunner
    now_s: float = 0.0
    events: dict[tuple[str, int], list[TokenEvent]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By (request id, choice), in order."""

    def add(self, *requests: Request) -> None:
        for request in requests:
            self._record(self.scheduler.add(request))

    def step(self) -> list[TokenEvent]:
        """Run one step of a second; every step checks the scheduler's invariants."""
        plan = self.scheduler.schedule(self.now_s)
        output = self.runner.launch(plan).result()
        self.now_s += 1.0
        events = self.scheduler.update(plan, output, self.now_s)
        self.scheduler.check()
        self._record(events)
        return events

    def drain(self, max_steps: int = 5_000) -> None:
        """Step until nothing is left; all blocks and pins must be back then."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                self.assert_idle()
                return
            self.step()
        raise AssertionError(f"still busy after {max_steps} steps")

    def assert_idle(self) -> None:
        assert self.blocks.num_free == self.memory.num_blocks
        assert not any(info.num_pins for info in self.store.infos())

    def publish(self, adapter: str, label: str, state: AdapterState) -> VersionId:
        """Stage and promote; fails the test when no slot is free."""
        version = version_id(adapter, label)
        assert self.store.try_stage(adapter, version, state), "no free slot"
        self.store.promote(version)
        return version

    def tokens(self, request_id: str, choice: int = 0) -> list[int]:
        events = self.events[request_id, choice]
        return [event.token_id for event in events if event.token_id is not None]

    def last(self, request_id: str, choice: int = 0) -> TokenEvent:
        return self.events[request_id, choice][-1]

    def _record(self, events: Iterable[TokenEvent]) -> None:
        for event in events:
            self.events[event.request_id, event.choice].append(event)


def build_engine(
    checkpoint_folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    num_blocks: int = 128,
    block_size: int = 4,
    num_slots: int = 4,
    max_rank: int = 8,
    config: SchedulerConfig | None = None,
    max_prefill: int = 10_000,
    max_model_len: int = 256,
    device: torch.device = CPU,
) -> Engine:
    """Load a checkpoint and wire an engine around it; the base model is called ``base``."""
    config = config or SchedulerConfig()
    checkpoint = Checkpoint(checkpoint_folder)
    spec = checkpoint.spec
    decoder = Decoder(spec, load_weights(checkpoint, spec, dtype, device), max_model_len)
    memory = MemoryPlan(num_blocks=num_blocks, block_size=block_size, max_model_len=max_model_len)
    caches = allocate_caches(memory, spec, dtype, device)
    bank = AdapterBank(lora_layout(spec, max_rank), num_slots, dtype, device)
    blocks = BlockManager(num_blocks, block_size, enable_prefix_cache=config.enable_prefix_cache)
    store = AdapterStore(bank, BASE_MODEL, blocks.evict_version)
    eos_token_ids = frozenset(spec.eos_token_ids)
    prefill_limit = FixedPrefillLimit(max_prefill)
    return Engine(
        spec=spec,
        memory=memory,
        decoder=decoder,
        caches=caches,
        bank=bank,
        blocks=blocks,
        store=store,
        prefill_limit=prefill_limit,
        scheduler=Scheduler(config, blocks, store, prefill_limit, eos_token_ids, max_model_len),
        runner=ModelRunner(decoder, caches, bank, eos_token_ids),
    )


def generate(engine: Engine, requests: Iterable[Request]) -> dict[str, list[int]]:
    """Add all requests, run to the end, and return the tokens of each one's first choice."""
    requests = tuple(requests)
    engine.add(*requests)
    engine.drain()
    return {request.request_id: engine.tokens(request.request_id) for request in requests}


def random_tokens(num_tokens: int, seed: int, vocab_size: int = 512) -> list[int]:
    """Token ids without the special ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab_size, (num_tokens,), generator=generator).tolist()


def random_adapter(
    spec: ModelSpec, rank: int = 4, seed: int = 0, scale: float = 0.3
) -> AdapterState:
    """An adapter whose A and B both matter: it changes logits by about ``scale``."""
    state = initial_state(lora_layout(spec, rank), seed)
    generator = torch.Generator().manual_seed(seed + 1)
    flat = state.flat.clone()
    for factors in state.layout.views(flat):
        factors.b.normal_(0.0, scale, generator=generator)
    return AdapterState(state.layout, flat)


def teacher_forced_logits(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    *,
    chunk: int = 10_000,
    models: Sequence[str] | None = None,
    forward: Forward | None = None,
) -> list[Tensor]:
    """Return logits [num_tokens, vocab_size] of each prompt, computed side by side.

    Every step takes up to ``chunk`` tokens of each: 1 is decoding, a large one whole prefill.
    Blocks are handed out interleaved, so that no sequence lies in one piece. Steps are computed by
    ``forward``, by default operation by operation.
    """
    forward = forward or partial(engine.decoder.forward, caches=engine.caches, adapters=engine.bank)
    bindings = [engine.store.pin(model) for model in models or [BASE_MODEL] * len(prompts)]
    sequences = [
        _placed_sequence(engine.memory, list(prompt), index, len(prompts), binding)
        for index, (prompt, binding) in enumerate(zip(prompts, bindings, strict=True))
    ]
    builder = BatchBuilder(engine.caches[0], engine.spec.sliding_windows)
    logits: list[list[Tensor]] = [[] for _ in prompts]
    while any(sequence.num_remaining for sequence in sequences):
        items = sorted(
            (
                scheduled(sequence, min(chunk, sequence.num_remaining))
                for sequence in sequences
                if sequence.num_remaining
            ),
            key=row_order,
        )
        num_rows = sum(item.num_new_tokens for item in items)
        all_rows = torch.arange(num_rows, device=engine.caches[0].device)
        batch = replace(builder.build(items), sample_rows=all_rows)
        rows = forward(batch).float()
        for item, part in zip(
            items, rows.split([item.num_new_tokens for item in items]), strict=True
        ):
            item.sequence.num_computed_tokens += item.num_new_tokens
            logits[item.sequence.choice].append(part)
    for binding in bindings:
        engine.store.unpin(binding)
    return [torch.cat(parts) for parts in logits]


def _placed_sequence(
    memory: MemoryPlan, prompt: list[int], index: int, num_sequences: int, binding: Binding
) -> EngineSequence:
    request = Request(
        request_id=RequestId(f"teacher-forced-{index}"),
        model=BASE_MODEL,
        prompt=tuple(prompt),
        sampling=SamplingParams(),
        arrived_at_s=0.0,
    )
    num_blocks = -(-len(prompt) // memory.block_size)
    assert num_blocks * num_sequences <= memory.num_blocks, "the engine has too few blocks"
    sequence = EngineSequence(request, index)
    sequence.block_table = [position * num_sequences + index for position in range(num_blocks)]
    sequence.binding = binding
    return sequence
