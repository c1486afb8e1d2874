"""The requests that ``slo.py`` replays: rows of the trace with texts of their length."""

import argparse
from random import Random

from collm.model.checkpoint import Checkpoint
from collm.model.tokenizer import Tokenizer
from collm.workload.config import WorkloadConfig
from collm.workload.requests import build_requests, filler_text
from collm.workload.samples import load_samples
from collm.workload.traces import Trace, load_trace
from slo_arms import Prompt
from slo_plan import (
    MAX_OUTPUT_TOKENS,
    MAX_PROMPT_TOKENS,
    OUTPUT_DIVISOR,
    PROMPT_DIVISOR,
    QUICK_MAX_OUTPUT_TOKENS,
    TRACE,
    cut_block,
    scale_lengths,
)

_FILLER = "medquad"


class Traffic:
    """Blocks of requests from the trace, with texts for their prompts."""

    def __init__(self, checkpoint: Checkpoint, arguments: argparse.Namespace) -> None:
        self._max_output = QUICK_MAX_OUTPUT_TOKENS if arguments.quick else MAX_OUTPUT_TOKENS
        self._rows: Trace = scale_lengths(load_trace(TRACE), self._max_output)
        self._tokenizer = Tokenizer(checkpoint.folder, checkpoint.spec.eos_token_ids)
        self._filler = filler_text(load_samples(_FILLER, "test"))
        self._seed: int = arguments.seed

    @property
    def description(self) -> str:
        """Say what is replayed."""
        num_prompt = sum(row.prompt_tokens for row in self._rows) / len(self._rows)
        num_output = sum(row.output_tokens for row in self._rows) / len(self._rows)
        return (
            f"Trace {TRACE} (Microsoft Azure, CC BY 4.0; lengths and times changed): runs of its"
            " neighbouring requests, times stretched to each block's rate; prompt lengths divided"
            f" by {PROMPT_DIVISOR:g} and cut to {MAX_PROMPT_TOKENS} tokens, outputs divided by"
            f" {OUTPUT_DIVISOR:g} and cut to {self._max_output}; then prompts have about"
            f" {num_prompt:.0f} tokens on average, outputs {num_output:.0f}, each generated in"
            f" full. Prompts are pieces of {_FILLER}."
        )

    def block(
        self, load: float, name: str, num_requests: int, duration_s: float
    ) -> tuple[Prompt, ...]:
        """Return the requests of a block; the same arguments give the same ones."""
        # The same rows at every load, but other texts: nothing may come from a prefix cache.
        first = Random(f"{self._seed}/{name}").randint(1, len(self._rows) // 2)
        rows = cut_block(self._rows, first, num_requests, duration_s)
        seed = Random(f"{self._seed}/{name}/{load}").randrange(2**32)
        config = WorkloadConfig(scored_share=0.0)
        requests = build_requests(rows, (), self._filler, config, seed)
        return tuple(
            Prompt(
                at_s=request.at_s,
                token_ids=tuple(
                    self._tokenizer.encode_chat(
                        [{"role": one.role, "content": one.content} for one in request.messages]
                    )
                ),
                num_output_tokens=request.max_tokens,
            )
            for request in requests
        )
