"""What serves: weights, memory, and everything that decides and computes a step."""

import logging
from dataclasses import dataclass

from collm.clock import Clock
from collm.engine.blocks import BlockManager
from collm.engine.memory import MemoryPlan, allocate_caches, plan_memory
from collm.engine.runner import ModelRunner
from collm.engine.scheduler import Scheduler
from collm.lora.bank import AdapterBank
from collm.lora.layout import lora_layout
from collm.lora.store import AdapterStore
from collm.lora.terms import Terms
from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.model.tokenizer import Tokenizer
from collm.model.weights import load_weights
from collm.ops.native.library import explain
from collm.pacing.budgets import Budget, make_budget
from collm.pacing.chunking import make_prefill_limit
from collm.pacing.cost import QuantumCostModel, StepCostModel
from collm.pacing.credit import Credit
from collm.replica.device import find_device
from collm.replica.process_memory import machine_bytes
from collm.replica.settings import ReplicaSettings
from collm.types import Request, RequestId, SamplingParams

_log = logging.getLogger(__name__)

_WARM_UP_LENGTHS = (24, 200, 48, 12)
"""Prompt lengths of the requests of a warm-up round: one in the first, one more in each."""
_WARM_UP_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PacingParts:
    """What is learned of times, and what may run when."""

    step_cost: StepCostModel
    quantum_cost: QuantumCostModel
    credit: Credit
    budget: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """The parts of a replica that know nothing of its data folder."""

    tokenizer: Tokenizer
    decoder: Decoder
    memory: MemoryPlan
    terms: Terms
    adapters: AdapterStore
    blocks: BlockManager
    scheduler: Scheduler
    runner: ModelRunner
    pacing: PacingParts


def build_engine(checkpoint: Checkpoint, settings: ReplicaSettings) -> EngineParts:
    """Load a checkpoint and make everything that serves it.

    Raises:
        ModelError: The checkpoint cannot be served.
        ConfigError: A setting does not fit the model or the machine.
    """
    spec, device = checkpoint.spec, find_device(settings.replica.device)
    memory = plan_memory(settings.memory, spec, settings.dtype, machine_bytes())
    tokenizer = Tokenizer(checkpoint.folder, spec.eos_token_ids)
    weights = load_weights(checkpoint, spec, settings.dtype, device, settings.quantization)
    kind = settings.quantization or settings.dtype
    _log.info("weights: %d MiB as %s; %s", weights.num_bytes >> 20, kind, explain())
    decoder = Decoder(spec, weights, memory.max_model_len)
    layout = lora_layout(spec, settings.lora.max_rank)
    bank = AdapterBank(layout, settings.lora.num_slots, settings.dtype, device)
    blocks = BlockManager(
        memory.num_blocks,
        memory.block_size,
        enable_prefix_cache=settings.scheduler.enable_prefix_cache,
    )
    adapters = AdapterStore(bank, settings.base_model, blocks.evict_version)
    step_cost = StepCostModel(quantile=settings.pacing.quantile)
    quantum_cost = QuantumCostModel(quantile=settings.pacing.quantile)
    credit = Credit(settings.pacing.credit_share, settings.pacing.credit_burst_s)
    prefill_limit = make_prefill_limit(settings.pacing, step_cost)
    eos_token_ids = frozenset(tokenizer.eos_token_ids)
    return EngineParts(
        tokenizer=tokenizer,
        decoder=decoder,
        memory=memory,
        terms=Terms(layout, settings.base_model),
        adapters=adapters,
        blocks=blocks,
        scheduler=Scheduler(
            settings.scheduler,
            blocks,
            adapters,
            prefill_limit,
            eos_token_ids,
            memory.max_model_len,
        ),
        runner=ModelRunner(
            decoder,
            allocate_caches(memory, spec, settings.dtype, device),
            bank,
            eos_token_ids,
        ),
        pacing=PacingParts(
            step_cost=step_cost,
            quantum_cost=quantum_cost,
            credit=credit,
            budget=make_budget(settings.pacing, step_cost, quantum_cost, credit, prefill_limit),
        ),
    )


def warm_up_engine(engine: EngineParts, base_model: str, clock: Clock) -> None:
    """Serve a few requests to nobody: the first steps of a process are many times slower.

    The rounds after the first teach the cost model, so that the first users are paced by it.
    """
    scheduler = engine.scheduler
    for number in range(_WARM_UP_ROUNDS):
        for length in _WARM_UP_LENGTHS[: number + 1]:
            request = Request(
                request_id=RequestId(f"warm-up-{number}-{length}"),
                model=base_model,
                # Other tokens each time, or the prefix cache would answer.
                prompt=tuple((number + 2) * position % 97 for position in range(length)),
                sampling=SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True),
                arrived_at_s=clock.now_s(),
            )
            scheduler.add(request)
        while scheduler.has_work:
            started_s = clock.now_s()
            plan = scheduler.schedule(started_s)
            output = engine.runner.launch(plan).result()
            ended_s = clock.now_s()
            if number > 0:
                engine.pacing.step_cost.observe(plan.load(), ended_s - started_s)
            scheduler.update(plan, output, ended_s)
