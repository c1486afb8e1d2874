"""Who learns and who answers in ``federated.py``: a replica's round job and its engine."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from collm.chats import Sample
from collm.clock import MonotonicClock
from collm.engine.blocks import BlockManager
from collm.engine.config import MemoryConfig, SchedulerConfig
from collm.engine.memory import allocate_caches, plan_memory
from collm.engine.runner import ModelRunner
from collm.engine.scheduler import Scheduler
from collm.federated.aggregate import aggregate
from collm.federated.aggregate_plan import AggregatePlan, StrategyName, UpdateFile
from collm.gate.config import GateConfig
from collm.lora.bank import AdapterBank
from collm.lora.layout import lora_layout
from collm.lora.peft_folder import PEFT_WEIGHTS, load_peft, weights_file
from collm.lora.state import AdapterState
from collm.lora.store import AdapterStore, version_id
from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.model.tokenizer import Tokenizer
from collm.model.weights import load_weights
from collm.ops.quantized import Quantization
from collm.pacing.quanta import QuantumKind
from collm.replica.job_builder import conversation_of
from collm.training.base_version import BaseVersion, fresh_state
from collm.training.config import JobConfig
from collm.training.corpus import open_corpus
from collm.training.events import RoundTrained
from collm.training.measuring import Limits
from collm.training.round_job import RoundJob
from collm.training.samples import TokenSample, prepare_general, prepare_samples
from collm.training.trainer import Trainer
from collm.types import Request, RequestId, SamplingParams, SequenceProgress
from collm.workload.score import exact_match

_BASE = "base"
_MAX_GENERAL = 512
_MAX_ANSWER_TOKENS = 16
_MAX_PREFILL_TOKENS = 512


class Model:
    """A base model, loaded once for all who learn and answer.

    Args:
        folder: Its checkpoint.
        dtype: Of its weights.
        quantization: What its linears are rounded to.
    """

    def __init__(
        self, folder: Path, dtype: torch.dtype, quantization: Quantization | None = None
    ) -> None:
        checkpoint = Checkpoint(folder)
        self.spec = checkpoint.spec
        self.dtype = dtype
        self.memory = plan_memory(MemoryConfig(), self.spec, dtype)
        device = torch.device("cpu")
        weights = load_weights(checkpoint, self.spec, dtype, device, quantization)
        self.decoder = Decoder(self.spec, weights, self.memory.max_model_len)
        self.tokenizer = Tokenizer(folder, self.spec.eos_token_ids)

    def prepare_general(self, samples: Sequence[Sample]) -> tuple[TokenSample, ...]:
        """Encode general text as replicas do."""
        conversations = [conversation_of(sample) for sample in samples]
        return prepare_general(conversations, self.tokenizer, max_samples=_MAX_GENERAL)


class Learner:
    """One member, or all of them as one: trains an adapter from its own samples.

    Args:
        name: The member's.
        model: What it adapts.
        samples: Its own.
        general: General text, against forgetting.
        config: How it learns.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        samples: Sequence[Sample],
        general: Sequence[TokenSample],
        config: JobConfig,
    ) -> None:
        prepared = prepare_samples(
            map(conversation_of, samples), model.tokenizer, max_tokens=config.micro_batch_tokens
        )
        fresh = fresh_state(config.adapter, lora_layout(model.spec, config.rank))
        job = RoundJob(
            config,
            model.decoder,
            BaseVersion(version=None, state=fresh),
            open_corpus(config, prepared.samples, general=general),
            GateConfig(),
            Limits(_WholeBatches(), 1.0, config.micro_batch_tokens),
            "keep",
            name,
        )
        self.name = name
        self._adapter = config.adapter
        self._trainer = Trainer([job], MonotonicClock())

    def train(self, number: int, max_tokens: int, base: BaseVersion | None) -> RoundTrained:
        """Train for a round, from ``base`` or a fresh adapter, until its tokens are used up."""
        events = self._trainer.begin_round(self._adapter, number, max_tokens, base)
        while True:
            for event in events:
                if isinstance(event, RoundTrained) and event.number == number:
                    return event
            quantum = self._trainer.peek()
            assert quantum is not None, "a round ends with its report"
            events = self._trainer.run(quantum)


def aggregate_updates(
    updates: Sequence[tuple[str, RoundTrained]],
    base: Path | None,
    rank: int,
    server_rate: float,
    folder: Path,
) -> Path:
    """Aggregate as a front's child process does, by ``svd``; return the result's weights file.

    Args:
        updates: Each with its member.
        base: The weights file that they were trained from; ``None`` for a fresh adapter.
        rank: Of the result.
        server_rate: How far the result goes from the base.
        folder: Where the files go; must exist.
    """
    files = []
    for member, trained in updates:
        content = weights_file(trained.state)
        path = folder / f"{member}-{trained.number}.safetensors"
        path.write_bytes(content)
        files.append(
            UpdateFile(
                member=member,
                path=path,
                digest=hashlib.sha256(content).hexdigest(),
                num_examples=trained.num_examples,
            )
        )
    output = folder / f"aggregate-{updates[0][1].number}"
    plan = AggregatePlan(
        strategy=StrategyName.SVD,
        rank=rank,
        min_updates=len(updates),
        base_model=_BASE,
        base=base,
        updates=tuple(files),
        output=output,
        server_rate=server_rate,
    )
    if not aggregate(plan):
        raise RuntimeError(f"an update was refused; see {output}")
    return output / PEFT_WEIGHTS


def read_version(
    weights: Path, model: Model, adapter: str, number: int, members: Sequence[str]
) -> BaseVersion:
    """Return an aggregate as members receive it."""
    return BaseVersion(
        version=version_id(adapter, str(number)),
        state=load_peft(weights.parent, model.spec),
        members=frozenset(members),
    )


class Examinee:
    """Answers questions greedily, with an adapter or none.

    Args:
        model: What answers.
        rank: Largest rank of an adapter.
    """

    def __init__(self, model: Model, rank: int) -> None:
        device, eos = torch.device("cpu"), frozenset(model.spec.eos_token_ids)
        bank = AdapterBank(lora_layout(model.spec, rank), 3, model.dtype, device)
        blocks = BlockManager(model.memory.num_blocks, model.memory.block_size)
        self._tokenizer = model.tokenizer
        self._store = AdapterStore(bank, _BASE, blocks.evict_version)
        self._scheduler = Scheduler(
            SchedulerConfig(), blocks, self._store, _SteadyPrefill(), eos,
            model.memory.max_model_len,
        )  # fmt: skip
        caches = allocate_caches(model.memory, model.spec, model.dtype, device)
        self._runner = ModelRunner(model.decoder, caches, bank, eos)
        self._clock = MonotonicClock()
        self._num_versions = 0

    def answer(self, questions: Sequence[Sample], state: AdapterState) -> list[tuple[str, bool]]:
        """Return each question's domain, and whether it was answered exactly."""
        self._num_versions += 1
        version = version_id("examined", str(self._num_versions))
        if not self._store.try_stage("examined", version, state):
            raise RuntimeError("no adapter slot is free")
        self._store.promote(version)
        texts = self._generate(questions, version)
        return [
            (question.group, exact_match(text, question.answer))
            for question, text in zip(questions, texts, strict=True)
        ]

    def _generate(self, questions: Sequence[Sample], version: str) -> list[str]:
        sampling = SamplingParams(max_tokens=_MAX_ANSWER_TOKENS, temperature=0.0)
        for number, question in enumerate(questions):
            messages = [{"role": m.role, "content": m.content} for m in question.prompt]
            request = Request(
                request_id=RequestId(str(number)),
                model=version,
                prompt=tuple(self._tokenizer.encode_chat(messages)),
                sampling=sampling,
                arrived_at_s=self._clock.now_s(),
            )
            self._scheduler.add(request)
        tokens: dict[str, list[int]] = defaultdict(list)
        while self._scheduler.has_work:
            plan = self._scheduler.schedule(self._clock.now_s())
            output = self._runner.launch(plan).result()
            for event in self._scheduler.update(plan, output, self._clock.now_s()):
                if event.error is not None:
                    raise event.error
                if event.token_id is not None:
                    tokens[event.request_id].append(event.token_id)
        return [self._tokenizer.decode(tokens[str(n)]) for n in range(len(questions))]


class _WholeBatches:
    """Bounds no micro-batch, and loss quanta at a length that suits the benchmarked model."""

    def max_size(self, kind: QuantumKind, limit_s: float) -> int:
        is_loss = kind in (QuantumKind.LOSS, QuantumKind.EVALUATE_LOSS)
        return 64 if is_loss else 1_000_000


class _SteadyPrefill:
    """Lets each step carry as many prefill tokens as a replica's may at most."""

    def prefill_tokens(self, progress: Sequence[SequenceProgress], now_s: float) -> int:
        return _MAX_PREFILL_TOKENS
