"""The engines that ``engine.py`` compares: each generates greedily from lists of token ids."""

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from collm.engine.blocks import BlockManager
from collm.engine.config import MemoryConfig, SchedulerConfig
from collm.engine.memory import allocate_caches, plan_memory
from collm.engine.runner import ModelRunner
from collm.engine.scheduler import Scheduler
from collm.lora.bank import AdapterBank
from collm.lora.config import LoraConfig
from collm.lora.layout import lora_layout
from collm.lora.peft_folder import load_peft
from collm.lora.store import AdapterStore, version_id
from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.model.weights import load_weights
from collm.ops.quantized import Quantization
from collm.pacing.config import PacingConfig
from collm.types import Request, RequestId, SamplingParams, SequenceProgress

BASE = "base"
Prompts = Sequence[Sequence[int]]


class Side(Protocol):
    """One engine under test. ``models`` names, per prompt, the base or an adapter."""

    def decode(self, prompts: Prompts, models: Sequence[str], num_new: int) -> float:
        """Return output tokens per second while all prompts decode together."""
        ...

    def prefill(self, prompts: Prompts) -> float:
        """Return prompt tokens per second until every prompt has its first output token."""
        ...

    def generate(self, prompt: Sequence[int], model: str, num_new: int) -> list[int]:
        """Return ``num_new`` output tokens of one prompt."""
        ...


class CollmSide:
    """Scheduler and runner, wired as a replica wires them, without training beside them."""

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        adapters: dict[str, Path],
        quantization: Quantization | None = None,
    ) -> None:
        device = torch.device("cpu")
        checkpoint = Checkpoint(folder)
        spec = checkpoint.spec
        memory = plan_memory(MemoryConfig(), spec, dtype)
        weights = load_weights(checkpoint, spec, dtype, device, quantization)
        self.weight_bytes = weights.num_bytes
        decoder = Decoder(spec, weights, memory.max_model_len)
        lora = LoraConfig()
        bank = AdapterBank(lora_layout(spec, lora.max_rank), lora.num_slots, dtype, device)
        blocks = BlockManager(memory.num_blocks, memory.block_size)
        store = AdapterStore(bank, BASE, blocks.evict_version)
        for name, path in adapters.items():
            assert store.try_stage(name, version_id(name, "1"), load_peft(path, spec))
            store.promote(version_id(name, "1"))
        eos = frozenset(spec.eos_token_ids)
        self._scheduler = Scheduler(
            SchedulerConfig(), blocks, store, _IdlePrefill(), eos, memory.max_model_len
        )
        self._runner = ModelRunner(decoder, allocate_caches(memory, spec, dtype, device), bank, eos)
        self._num_requests = 0
        self.sampling: dict[str, Any] = {"temperature": 0.0}
        """How the next requests' tokens are chosen."""

    def decode(self, prompts: Prompts, models: Sequence[str], num_new: int) -> float:
        """See ``Side``; counts the steps in which all prompts decode and none prefills."""
        self._add(prompts, models, num_new)
        num_steps, spent_s = 0, 0.0
        while self._scheduler.has_work:
            started_s = time.perf_counter()
            num_decodes, num_prefill = self._step()
            if num_decodes == len(prompts) and not num_prefill:
                num_steps += 1
                spent_s += time.perf_counter() - started_s
        return len(prompts) * num_steps / spent_s

    def prefill(self, prompts: Prompts) -> float:
        """See ``Side``."""
        self._add(prompts, [BASE] * len(prompts), 1)
        started_s = time.perf_counter()
        while self._scheduler.has_work:
            self._step()
        return sum(map(len, prompts)) / (time.perf_counter() - started_s)

    def generate(self, prompt: Sequence[int], model: str, num_new: int) -> list[int]:
        """See ``Side``."""
        (request_id,) = self._add([prompt], [model], num_new)
        self._tokens: dict[RequestId, list[int]] = defaultdict(list)
        while self._scheduler.has_work:
            self._step()
        return self._tokens[request_id]

    def _add(self, prompts: Prompts, models: Sequence[str], num_new: int) -> list[RequestId]:
        self._tokens = defaultdict(list)
        sampling = SamplingParams(max_tokens=num_new, ignore_eos=True, **self.sampling)
        requests = []
        for prompt, model in zip(prompts, models, strict=True):
            self._num_requests += 1
            request = Request(
                request_id=RequestId(str(self._num_requests)),
                model=model,
                prompt=tuple(prompt),
                sampling=sampling,
                arrived_at_s=0.0,
            )
            events = self._scheduler.add(request)
            assert not events, events
            requests.append(request.request_id)
        return requests

    def _step(self) -> tuple[int, int]:
        """Run a step; return how many decode and prefill tokens it had."""
        plan = self._scheduler.schedule(time.monotonic())
        output = self._runner.launch(plan).result()
        for event in self._scheduler.update(plan, output, time.monotonic()):
            if event.token_id is None:
                raise RuntimeError(f"request {event.request_id} failed: {event}")
            self._tokens[event.request_id].append(event.token_id)
        load = plan.load()
        return load.num_decode_tokens, load.num_prefill_tokens


class _IdlePrefill:
    """Lets each step carry as many prefill tokens as a replica's do when nothing decodes."""

    def prefill_tokens(self, progress: Sequence[SequenceProgress], now_s: float) -> int:
        return PacingConfig().max_prefill_tokens


class TransformersSide:
    """``generate`` with a static cache; with adapters, those of ``peft``, unmerged."""

    def __init__(self, folder: Path, dtype: torch.dtype, adapters: dict[str, Path]) -> None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        # All sides generate a fixed number of tokens.
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        self._inner = self._model = model
        for name, path in adapters.items():
            if self._model is self._inner:
                self._model = PeftModel.from_pretrained(
                    self._inner, path, adapter_name=name, autocast_adapter_dtype=False
                ).eval()
            else:
                self._model.load_adapter(path, adapter_name=name, autocast_adapter_dtype=False)

    def decode(self, prompts: Prompts, models: Sequence[str], num_new: int) -> float:
        """See ``Side``; the time from the first new token to the last."""
        times = _Times()
        self._generate(prompts, models, num_new, times)
        return len(prompts) * (num_new - 1) / (times.at_s[-1] - times.at_s[0])

    def prefill(self, prompts: Prompts) -> float:
        """See ``Side``."""
        times = _Times()
        started_s = time.perf_counter()
        self._generate(prompts, [BASE] * len(prompts), 1, times)
        return sum(map(len, prompts)) / (times.at_s[0] - started_s)

    def generate(self, prompt: Sequence[int], model: str, num_new: int) -> list[int]:
        """See ``Side``."""
        output = self._generate([prompt], [model], num_new, _Times())
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens

    @torch.inference_mode()
    def gap_of_best_two(self, tokens: Sequence[int], model: str) -> float:
        """Return by how much the likeliest next token's logit exceeds the second one's."""
        names = {} if model == BASE else {"adapter_names": [model]}
        logits = self._model(input_ids=torch.tensor([list(tokens)]), **names).logits[0, -1]
        best = logits.float().topk(2).values
        return float(best[0] - best[1])

    def _generate(
        self, prompts: Prompts, models: Sequence[str], num_new: int, times: "_Times"
    ) -> torch.Tensor:
        # A static cache is never made shorter than the longest before it, and all of it is read.
        self._inner._previous_max_cache_length = -1
        names: dict[str, Any] = {} if set(models) == {BASE} else {"adapter_names": list(models)}
        input_ids = torch.tensor([list(prompt) for prompt in prompts])
        output: torch.Tensor = self._model.generate(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=num_new,
            do_sample=False,
            cache_implementation="static",
            stopping_criteria=StoppingCriteriaList([times]),
            **names,
        )
        return output


class _Times(StoppingCriteria):
    """Notes when each token is there; stops nothing."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.at_s.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)
