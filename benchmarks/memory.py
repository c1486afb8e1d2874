"""Resident memory of a replica with and without training, beside ``transformers`` and ``peft``.

Each subject is a process of its own, looked at from outside through /proc while it works; the look
with the most anonymous memory counts. The replicas are ``collm serve`` as users start it; all
answer the same requests, and two of them train meanwhile. What training holds is counted one by
one; of what it adds to the process, the rest is room for quanta in work and what torch's allocator
keeps of it. The base is no part of it: both read the same packed weights. Needs Linux.

Run as: python benchmarks/memory.py
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from common import Report, checkpoint_folder, make_parser, progress

# isort: split
import torch
from torch import Tensor

from collm.engine.config import MemoryConfig
from collm.engine.memory import allocate_caches, plan_memory
from collm.lora.bank import AdapterBank
from collm.lora.config import LoraConfig
from collm.lora.layout import lora_layout
from collm.lora.shadow import Shadow
from collm.lora.state import initial_state
from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.model.weights import load_weights
from collm.pacing.quanta import QuantumKind
from collm.training.config import JobConfig
from collm.training.corpus import open_corpus
from collm.training.passes import Pass
from collm.training.stream import SampleStream
from memory_subjects import SUBJECTS
from training import chats

_MIB = 2**20
_TIMEOUT_S = 600.0
_LOOK_EVERY_S = 0.2
_NUM_CONCURRENT = 4
_TRAIN = ["--train", "learned=clinc150"]
_SERVING, _TRAINING, _RECOMPUTING = (
    "collm serve",
    "collm serve, training",
    "collm serve, training, activations recomputed",
)
_REPLICAS: dict[str, list[str]] = {
    _SERVING: [],
    _TRAINING: _TRAIN,
    _RECOMPUTING: [*_TRAIN, "--set", "training.activations=recompute"],
}
"""Options of each replica."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What /proc says about one process, in bytes."""

    rss: int
    pss: int
    uss: int
    anonymous: int
    """The process's own pages; what is left of ``rss`` is backed by files."""
    weights_file: int
    """Resident pages that map safetensors files: droppable, and shared with other processes."""
    peak_rss: int

    @classmethod
    def of(cls, pid: int) -> "Memory":
        """Look at a running process."""
        rollup = _sizes(_proc(pid, "smaps_rollup"))
        return cls(
            rss=rollup["Rss"],
            pss=rollup["Pss"],
            uss=rollup["Private_Clean"] + rollup["Private_Dirty"],
            anonymous=rollup["Anonymous"],
            weights_file=_mapped_weights(_proc(pid, "smaps")),
            peak_rss=_sizes(_proc(pid, "status"))["VmHWM"],
        )

    def row(self, subject: str) -> dict[str, str]:
        """Return a table row in MiB."""
        columns = {
            "RSS": self.rss,
            "PSS": self.pss,
            "USS": self.uss,
            "anonymous": self.anonymous,
            "file-backed": self.rss - self.anonymous,
            "of it weights": self.weights_file,
            "peak RSS": self.peak_rss,
        }
        return {"process": subject} | {name: _mib(value) for name, value in columns.items()}


def main() -> None:
    """Start each subject, look at it, report."""
    parser = make_parser(__doc__ or "", rounds=1)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kv-mib", type=int, default=256, help="the replica's memory.kv_cache_mib")
    parser.add_argument("--requests", type=int, default=16, help="answered while looking")
    # By default past an evaluation, and a promotion if it was better.
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps while looking")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.requests, arguments.steps = _NUM_CONCURRENT, 2
    report = Report("Resident memory", arguments)
    folder = checkpoint_folder(arguments)
    seen = {name: _look_at_script(name, folder, arguments) for name in SUBJECTS}
    for name, options in _REPLICAS.items():
        seen[name] = _look_at_replica(name, folder, options, arguments)
    states = _state_bytes(folder, getattr(torch, arguments.dtype), arguments.kv_mib)
    report.table("Resident memory, MiB", [memory.row(name) for name, memory in seen.items()])
    report.table(
        "What a replica holds, MiB",
        [{"state": name, "MiB": _mib(value)} for name, value in states.items()],
    )
    _conclude(report, seen, states)
    report.raw["memory"] = {name: asdict(memory) for name, memory in seen.items()}
    report.raw["states"] = states
    report.finish()


def _conclude(report: Report, seen: dict[str, Memory], states: dict[str, int]) -> None:
    base = next(iter(states.values()))
    for name in (_TRAINING, _RECOMPUTING):
        added = seen[name].anonymous - seen[_SERVING].anonymous
        report.note(
            f"{name}: adds {_mib(added)} MiB of anonymous memory to the replica;"
            f" a second copy of the base would be {_mib(base)}"
        )
    together = sum(seen[name].anonymous for name in ("transformers, serving", "peft, training"))
    report.note(
        f"anonymous memory of transformers serving and peft training, two processes:"
        f" {_mib(together)} MiB; of one replica that does both: {_mib(seen[_TRAINING].anonymous)}"
    )


def _state_bytes(folder: Path, dtype: torch.dtype, kv_mib: int) -> dict[str, int]:
    """Return what a replica allocates for each kind of state, the base first."""
    checkpoint, device = Checkpoint(folder), torch.device("cpu")
    spec = checkpoint.spec
    weights = load_weights(checkpoint, spec, dtype, device)
    plan = plan_memory(MemoryConfig(kv_cache_mib=kv_mib), spec, dtype)
    lora = LoraConfig()
    bank = AdapterBank(lora_layout(spec, lora.max_rank), lora.num_slots, dtype, device)
    layout = lora_layout(spec, JobConfig(adapter="a", data="a").rank)
    compute_copies = AdapterBank(layout, 1, dtype, device).num_bytes
    parameters = layout.num_parameters * torch.float32.itemsize
    embedding = weights.embedding.numel() * weights.embedding.element_size()
    caches = allocate_caches(plan, spec, dtype, device)
    return {
        "base: linears and vocabulary projection": weights.num_bytes,
        "base: embedding table (file-backed if it has this dtype)": embedding,
        "keys and values": sum(cache.numel() * cache.element_size() for cache in caches),
        f"{lora.num_slots} adapter slots of rank {lora.max_rank}": bank.num_bytes,
        f"training: shadow of rank {layout.rank}, parameters and gradient": 2 * parameters,
        "training: shadow, copies in the serving dtype": compute_copies,
        "training: optimizer moments": 2 * parameters,
        **_activation_bytes(folder, Decoder(spec, weights, plan.max_model_len)),
    }


def _activation_bytes(folder: Path, decoder: Decoder) -> dict[str, int]:
    """Return what is kept for backward by one micro-batch of the default size."""
    config = JobConfig(adapter="a", data="clinc150")
    corpus = open_corpus(config, chats(folder))
    stream = SampleStream(corpus, config.seed, replay_share=config.replay_share)
    batch = stream.next(config.micro_batch_tokens)
    start = initial_state(lora_layout(decoder.spec, config.rank), config.seed)
    table = decoder.weights.embedding
    shadow = Shadow(start, config.alpha, table.dtype, table.device)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for quantum in Pass(decoder, batch, "a", max_loss_rows=64).learn(shadow, "keep"):
            if quantum.kind is QuantumKind.BACKWARD:  # everything is kept by now
                break
    name = (
        f"training: activations kept, {batch.num_sample_tokens} tokens in {batch.num_tokens} rows"
    )
    return {name: sum(kept.values())}


def _look_at_script(subject: str, folder: Path, arguments: argparse.Namespace) -> Memory:
    script = Path(__file__).parent / "memory_subjects.py"
    options = [subject, str(folder), arguments.dtype, str(arguments.threads)]
    with _process([sys.executable, "-u", str(script), *options]) as process:
        _wait_for_line(process, "ready")
        ends_s = time.monotonic() + (1.0 if arguments.quick else 10.0)
        memory = _watch(process, lambda: time.monotonic() >= ends_s)
    progress(f"{subject}: {_mib(memory.rss)} MiB")
    return memory


def _look_at_replica(
    name: str, folder: Path, options: list[str], arguments: argparse.Namespace
) -> Memory:
    with (
        tempfile.TemporaryDirectory() as data_dir,
        _process([*_serve_command(folder, data_dir, arguments), *options]) as process,
        ThreadPoolExecutor(_NUM_CONCURRENT) as pool,
    ):
        url = _wait_for_line(process, "collm is ready at").split()[-1]
        answers = [pool.submit(_ask, url, index) for index in range(arguments.requests)]
        memory = _watch(
            process,
            lambda: _are_done(answers) and (not options or _num_steps(url) >= arguments.steps),
        )
    progress(f"{name}: {_mib(memory.rss)} MiB")
    return memory


def _serve_command(folder: Path, data_dir: str, arguments: argparse.Namespace) -> list[str]:
    settings = {
        "model.name": "base",
        "model.dtype": arguments.dtype,
        "replica.data_dir": data_dir,
        "replica.threads": arguments.threads,
        "memory.kv_cache_mib": arguments.kv_mib,
    }
    command = [sys.executable, "-u", "-c", "from collm.cli.main import main; main()", "serve"]
    command += ["--port", "0", "--model", str(folder)]
    return [*command, *(f"--set={name}={value}" for name, value in settings.items())]


def _ask(url: str, index: int) -> None:
    body = {"model": "base", "prompt": f"{index} is a number that", "max_tokens": 32}
    httpx.post(f"{url}/v1/completions", json=body, timeout=_TIMEOUT_S).raise_for_status()


def _are_done(answers: list[Future[None]]) -> bool:
    """Return whether all answers are there; raises what went wrong with one."""
    done = [answer for answer in answers if answer.done()]
    for answer in done:
        answer.result()
    return len(done) == len(answers)


def _num_steps(url: str) -> int:
    snapshot = httpx.get(f"{url}/control/snapshot", timeout=_TIMEOUT_S).json()
    return int(snapshot["adapters"]["learned"]["step"])


def _watch(process: subprocess.Popen[str], is_done: Callable[[], bool]) -> Memory:
    """Look again and again until ``is_done``; return the look with the most anonymous memory."""
    most, ends_s = Memory.of(process.pid), time.monotonic() + _TIMEOUT_S
    while not is_done():
        if time.monotonic() > ends_s:
            raise SystemExit(f"not done after {_TIMEOUT_S:g} s")
        time.sleep(_LOOK_EVERY_S)
        most = max(most, Memory.of(process.pid), key=lambda memory: memory.anonymous)
    return most


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a process until the block ends; if that fails, show what the process said last."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            yield process
        except BaseException:
            errors.seek(0)
            progress(errors.read()[-2_000:])
            raise
        finally:
            process.kill()


def _wait_for_line(process: subprocess.Popen[str], start: str) -> str:
    """Return the first line of output that begins so; a process that is silent is ended."""
    assert process.stdout is not None
    timer = threading.Timer(_TIMEOUT_S, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            if line.startswith(start):
                return line
    finally:
        timer.cancel()
    raise SystemExit(f"the process ended before it said {start!r}")


def _proc(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8").splitlines()


def _sizes(lines: list[str]) -> dict[str, int]:
    """Return the lines of the form ``Name: 123 kB``, in bytes."""
    parts = [line.split() for line in lines if line.endswith(" kB")]
    return {name.rstrip(":"): int(kib) * 1024 for name, kib, _ in parts}


def _mapped_weights(smaps: list[str]) -> int:
    """Sum the resident bytes of mapped safetensors files."""
    total, is_weights = 0, False
    for line in smaps:
        name, _, rest = line.partition(":")
        if "-" in name.partition(" ")[0]:  # the header of a mapping begins with its addresses
            is_weights = line.endswith(".safetensors")
        elif name == "Rss" and is_weights:
            total += int(rest.split()[0]) * 1024
    return total


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:.0f}"


if __name__ == "__main__":
    main()
