"""The processes that ``memory.py`` looks at, besides the replica, and what a replica holds.

As a script: does the work of one subject, prints a line, and waits to be looked at.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from common import Report  # noqa: F401 - sets what torch reads when it is loaded

# isort: split
import torch
from training_sides import PeftSide
from transformers import AutoModelForCausalLM

from collm.engine.config import MemoryConfig
from collm.engine.memory import allocate_caches, plan_memory
from collm.lora.bank import AdapterBank
from collm.lora.config import LoraConfig
from collm.lora.layout import lora_layout
from collm.lora.shadow import Shadow
from collm.lora.state import initial_state
from collm.model.checkpoint import Checkpoint
from collm.model.tokenizer import Tokenizer
from collm.model.weights import load_weights
from collm.training.config import JobConfig
from collm.training.optimizer import FlatAdamW
from collm.training.samples import TokenSample
from collm.workload.samples import load_samples


def main() -> None:
    """Do one subject's work and wait for the end of the input."""
    subject, folder, dtype, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    kept = SUBJECTS[subject](Path(folder), getattr(torch, dtype))
    print("ready", flush=True)
    sys.stdin.read()
    del kept
