"""The trainers that ``training.py`` compares: each takes optimizer steps over the same samples."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol
from unittest import mock

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from collm.clock import MonotonicClock
from collm.gate.config import GateConfig
from collm.lora.layout import lora_layout
from collm.lora.state import initial_state
from collm.model.decoder import Decoder
from collm.pacing.quanta import QuantumKind
from collm.training.config import JobConfig
from collm.training.corpus import Corpus
from collm.training.events import TrainReport
from collm.training.job import Job
from collm.training.samples import TokenSample
from collm.training.trainer import Trainer

RANK = 8
_ALPHA = 16.0
_LEARNING_RATE = 1e-4
_LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_IGNORED = -100


class Side(Protocol):
    """One trainer under test."""

    def step(self) -> float:
        """Take one optimizer step over all samples; return the loss before it."""
        ...


class CollmSide:
    """The trainer, quantum after quantum, with one micro-batch of all samples per step."""

    def __init__(self, decoder: Decoder, samples: Sequence[TokenSample]) -> None:
        num_tokens = sum(len(sample.token_ids) for sample in samples)
        config = JobConfig(
            adapter="a",
            data="benchmark",
            rank=RANK,
            alpha=_ALPHA,
            learning_rate=_LEARNING_RATE,
            warmup_steps=0,
            tokens_per_step=num_tokens,
            micro_batch_tokens=num_tokens,
            evaluate_every=1_000_000,
        )
        start = initial_state(lora_layout(decoder.spec, RANK), 0)
        corpus = Corpus(samples, held_out_share=0.0, max_held_out=1)
        job = Job(config, decoder, start, corpus, GateConfig(), _WholeBatches(), 1.0, "keep")
        self._num_tokens = num_tokens
        self._trainer = Trainer([job], MonotonicClock())
        # What comes before the first micro-batch is no part of a step.
        while (first := self._trainer.peek()) and first.kind is not QuantumKind.FORWARD:
            self._trainer.run(first)

    def step(self) -> float:
        """See ``Side``."""
        while True:
            quantum = self._trainer.peek()
            assert quantum is not None
            for event in self._trainer.run(quantum):
                if isinstance(event, TrainReport):
                    assert event.num_tokens == self._num_tokens, event
                    return event.loss


class _WholeBatches:
    """Bounds no micro-batch, and loss quanta at a length that suits the benchmarked model."""

    def max_size(self, kind: QuantumKind, limit_s: float) -> int:
        is_loss = kind in (QuantumKind.LOSS, QuantumKind.EVALUATE_LOSS)
        return 64 if is_loss else 1_000_000


class PeftSide:
    """``peft`` in a plain loop: a right-padded batch, the model's own loss, torch's AdamW."""

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        samples: Sequence[TokenSample],
        *,
        are_adapters_float32: bool,
        rank: int = RANK,
    ) -> None:
        config = LoraConfig(
            r=rank,
            lora_alpha=int(_ALPHA),
            lora_dropout=0.0,
            target_modules=_LINEARS,
            task_type="CAUSAL_LM",
        )
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        base.config.use_cache = False
        self._model = get_peft_model(base, config, autocast_adapter_dtype=are_adapters_float32)
        self._model.train()
        self._trained = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(self._trained, lr=_LEARNING_RATE, weight_decay=0.0)
        length = max(len(sample.token_ids) for sample in samples)
        rows = [_padded(sample, length) for sample in samples]
        ids, mask, labels = (torch.tensor(column) for column in zip(*rows, strict=True))
        self._batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def step(self) -> float:
        """See ``Side``."""
        loss = self._model(**self._batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._trained, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


def max_loss_difference(sides: Sequence[Side]) -> float:
    """Take a first step on each side; return how far apart the losses before it are."""
    losses = [side.step() for side in sides]
    return max(losses) - min(losses)


def without_shared_prefix(step: Callable[[], float]) -> Callable[[], float]:
    """Return ``step`` with the samples' common beginning computed for each sample."""

    def stepped() -> float:
        with mock.patch("collm.training.microbatch.shared_prefix", return_value=0):
            return step()

    return stepped


def _padded(sample: TokenSample, length: int) -> tuple[list[int], list[int], list[int]]:
    """Return token ids, attention mask and labels, right-padded to ``length``."""
    padding = length - len(sample.token_ids)
    labels = [
        token if flag else _IGNORED
        for token, flag in zip(sample.token_ids, sample.is_supervised, strict=True)
    ]
    return (
        [*sample.token_ids, *[0] * padding],
        [1] * len(sample.token_ids) + [0] * padding,
        labels + [_IGNORED] * padding,
    )
