"""Resident memory of a replica with and without training, beside ``transformers`` and ``peft``.

Each subject is a process of its own that does its work and is then looked at from outside through
/proc. The two replicas are ``collm serve`` as users start it; both answer the same requests, and
the second one trains meanwhile. That the base is there once shows in what training adds: the state
of the adapter and the activations of a micro-batch, far less than a second copy of the weights.

Run as: python benchmarks/memory.py
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from common import Report, checkpoint_folder, make_parser, progress

# isort: split
import torch
from memory_subjects import SUBJECTS, state_bytes

_MIB = 2**20
_START_TIMEOUT_S = 180.0
_WORK_TIMEOUT_S = 600.0
_MIN_TRAINING_STEPS = 12
"""Optimizer steps before looking: past an evaluation, and a promotion if it was better."""


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

    @classmethod
    def of(cls, pid: int) -> "Memory":
        """Look at a running process."""
        rollup = _fields(Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8"))
        return cls(
            rss=rollup["Rss"],
            pss=rollup["Pss"],
            uss=rollup["Private_Clean"] + rollup["Private_Dirty"],
            anonymous=rollup["Anonymous"],
            weights_file=_mapped_weights(Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8")),
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
        }
        return {"process": subject} | {name: _mib(value) for name, value in columns.items()}


def main() -> None:
    """Start each subject, look at it, report."""
    parser = make_parser(__doc__ or "", rounds=1)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kv-mib", type=int, default=256, help="the replica's memory.kv_cache_mib")
    parser.add_argument("--requests", type=int, default=16, help="answered before looking")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.requests = 2
    report = Report("Resident memory", arguments)
    folder = checkpoint_folder(arguments)
    seen: dict[str, Memory] = {}
    for subject in SUBJECTS:
        seen[subject] = _look_at_script(subject, folder, arguments)
    seen["collm serve"] = _look_at_replica(folder, arguments, trains=False)
    seen["collm serve, training"] = _look_at_replica(folder, arguments, trains=True)
    report.table("Resident memory, MiB", [memory.row(name) for name, memory in seen.items()])
    states = state_bytes(folder, getattr(torch, arguments.dtype), arguments.kv_mib)
    report.table(
        "What a replica holds, MiB",
        [{"state": name, "MiB": _mib(value)} for name, value in states.items()],
    )
    _conclude(report, seen, states)
    report.raw = {"memory": {name: _as_json(memory) for name, memory in seen.items()}}
    report.raw["states"] = states
    report.finish()


def _conclude(report: Report, seen: dict[str, Memory], states: dict[str, int]) -> None:
    base = next(iter(states.values()))
    added = seen["collm serve, training"].anonymous - seen["collm serve"].anonymous
    state = sum(value for name, value in states.items() if name.startswith("training"))
    report.note(
        f"training adds {_mib(added)} MiB of anonymous memory to the replica, of which"
        f" {_mib(state)} are the adapter's state; a second copy of the base would be {_mib(base)}"
    )
    together = seen["transformers, serving"].uss + seen["peft, training"].uss
    one = seen["collm serve, training"].uss
    report.note(
        f"transformers serving and peft training in two processes: {_mib(together)} MiB of their"
        f" own; one replica that does both: {_mib(one)}"
    )


def _look_at_script(subject: str, folder: Path, arguments: argparse.Namespace) -> Memory:
    script = Path(__file__).parent / "memory_subjects.py"
    options = [subject, str(folder), arguments.dtype, str(arguments.threads)]
    with _process([sys.executable, "-u", str(script), *options], stdin=subprocess.PIPE) as process:
        _wait_for_line(process, "ready")
        memory = Memory.of(process.pid)
    progress(f"{subject}: {_mib(memory.rss)} MiB")
    return memory


def _look_at_replica(folder: Path, arguments: argparse.Namespace, *, trains: bool) -> Memory:
    with tempfile.TemporaryDirectory() as data_dir:
        settings = {
            "model.name": "base",
            "model.dtype": arguments.dtype,
            "replica.data_dir": data_dir,
            "replica.threads": arguments.threads,
            "memory.kv_cache_mib": arguments.kv_mib,
        }
        command = [sys.executable, "-u", "-c", "from collm.cli.main import main; main()", "serve"]
        command += ["--port", "0", "--model", str(folder)]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        if trains:
            command += ["--train", "learned=clinc150"]
        with _process(command) as process:
            url = _wait_for_line(process, "collm is ready at").split()[-1]
            _ask(url, arguments.requests)
            if trains:
                _wait_for_training(url, 2 if arguments.quick else _MIN_TRAINING_STEPS)
            memory = Memory.of(process.pid)
    progress(f"collm serve{', training' if trains else ''}: {_mib(memory.rss)} MiB")
    return memory


def _ask(url: str, num_requests: int) -> None:
    """Have requests answered, four at a time."""

    def ask(first: int) -> None:
        for index in range(first, num_requests, 4):
            body = {"model": "base", "prompt": f"{index} is a number that", "max_tokens": 32}
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=_WORK_TIMEOUT_S)
            answer.raise_for_status()

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _wait_for_training(url: str, num_steps: int) -> None:
    ends_s = time.monotonic() + _WORK_TIMEOUT_S
    while time.monotonic() < ends_s:
        snapshot = httpx.get(f"{url}/control/snapshot", timeout=_WORK_TIMEOUT_S).json()
        if snapshot["adapters"]["learned"]["step"] >= num_steps:
            return
        time.sleep(0.5)
    raise SystemExit(f"no {num_steps} optimizer steps in {_WORK_TIMEOUT_S} s")


@contextlib.contextmanager
def _process(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    ) as process:
        # A full pipe would stop the process.
        said: list[str] = []
        assert process.stderr is not None
        reader = threading.Thread(target=said.extend, args=(process.stderr,), daemon=True)
        reader.start()
        try:
            yield process
        except BaseException:
            process.kill()
            reader.join(5)
            progress("".join(said[-20:]))
            raise
        finally:
            process.terminate()


def _wait_for_line(process: subprocess.Popen[str], start: str) -> str:
    """Return the first line of output that begins so; a silent process is ended in time."""
    assert process.stdout is not None
    timer = threading.Timer(_START_TIMEOUT_S, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            if line.startswith(start):
                return line
    finally:
        timer.cancel()
    raise SystemExit(f"the process ended before it said {start!r}")


def _mapped_weights(smaps: str) -> int:
    """Sum the resident bytes of mapped safetensors files."""
    total, is_weights = 0, False
    for line in smaps.splitlines():
        name, _, rest = line.partition(":")
        if "-" in name.partition(" ")[0]:  # the header of a mapping: its address range
            is_weights = line.endswith(".safetensors")
        elif name == "Rss" and is_weights:
            total += int(rest.split()[0]) * 1024
    return total


def _fields(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines()[1:])
    return {name.rstrip(":"): int(kib) * 1024 for name, kib, _ in pairs}


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:.0f}"


def _as_json(memory: Memory) -> dict[str, int]:
    return {name: getattr(memory, name) for name in Memory.__slots__}


if __name__ == "__main__":
    main()
