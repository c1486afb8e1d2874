"""The processes that ``memory.py`` looks at besides the replica.

As a script: begins the work of one subject, says so, and goes on with it until it is ended. A
subject imports only what its user would.
"""

import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

_NUM_SEQUENCES = 4
_NUM_CHATS = 16

Work = Callable[[], Any]
"""One more piece of a subject's work."""


def main() -> None:
    """Do one subject's work for ever; ``memory.py`` ends the process."""
    subject, folder, dtype, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    work = SUBJECTS[subject](Path(folder), getattr(torch, dtype))
    for _ in range(2):
        work()
    print("ready", flush=True)
    while True:
        work()


def _imports(folder: Path, dtype: torch.dtype) -> Work:
    return lambda: time.sleep(0.1)


def _serving(folder: Path, dtype: torch.dtype) -> Work:
    """Generate for as many sequences at once as the replica is asked for."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [f"{index} is a number that" for index in range(_NUM_SEQUENCES)]
    batch = tokenizer(prompts, return_tensors="pt", padding=True)
    return lambda: model.generate(**batch, max_new_tokens=32, cache_implementation="static")


def _training(folder: Path, dtype: torch.dtype) -> Work:
    """Train at the rank and about the tokens per step of the replica's job."""
    sides, training = import_module("training_sides"), import_module("training")
    samples = training.chats(folder)[:_NUM_CHATS]
    rank = import_module("collm.training.config").JobConfig(adapter="a", data="a").rank
    side = sides.PeftSide(folder, dtype, samples, are_adapters_float32=True, rank=rank)
    step: Work = side.step
    return step


SUBJECTS: dict[str, Callable[[Path, torch.dtype], Work]] = {
    "imports alone": _imports,
    "transformers, serving": _serving,
    "peft, training": _training,
}


if __name__ == "__main__":
    main()
