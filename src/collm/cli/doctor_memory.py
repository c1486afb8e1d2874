"""Whether the memory that the configuration asks for is there."""

from pathlib import Path

import torch
from rich.filesize import decimal

from collm.cli.doctor_report import Finding, Status
from collm.config import CollmConfig
from collm.engine.memory import plan_memory
from collm.errors import ConfigError, ModelError
from collm.lora.bank import AdapterBank
from collm.lora.layout import lora_layout
from collm.model.catalog import CATALOG, list_models
from collm.model.checkpoint import Checkpoint

_PROCESS_BYTES = 600 * 2**20
"""Python with torch, and the activations of a small model's micro-batch; larger ones take more."""
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MEMINFO = Path("/proc/meminfo")


def check_memory(config: CollmConfig, cache: Path, available_bytes: int | None) -> Finding:
    """Compare what all replicas will take with what there is.

    Args:
        config: Of the server.
        cache: Where fetched models are.
        available_bytes: Memory that can be had; ``None`` is unknown.
    """
    checkpoint = _checkpoint(config.model.source, cache)
    if checkpoint is None:
        found = "cannot be judged before the model is here"
        advice = "fetch the model, then ask again"
        return Finding(check="memory", status=Status.NOTE, found=found, advice=advice)
    try:
        per_replica = replica_bytes(config, checkpoint)
    except (ConfigError, ModelError) as error:
        advice = "change the setting that it names"
        return Finding(check="memory", status=Status.FIX, found=str(error), advice=advice)
    return judge_memory(per_replica, max(1, len(config.cluster.replicas)), available_bytes)


def replica_bytes(config: CollmConfig, checkpoint: Checkpoint) -> dict[str, int]:
    """Return the bytes that one replica takes, by what takes them.

    Raises:
        ConfigError: The model and the settings do not fit each other.
        ModelError: The checkpoint cannot be read.
    """
    spec, dtype = checkpoint.spec, getattr(torch, config.model.dtype)
    plan_memory(config.memory, spec, dtype)
    layout = lora_layout(spec, config.lora.max_rank)
    # Counted by the bank itself, on a device without memory.
    bank = AdapterBank(layout, config.lora.num_slots, dtype, torch.device("meta"))
    stored = sum(path.stat().st_size for path in checkpoint.folder.glob("*.safetensors"))
    return {
        "weights": stored * dtype.itemsize // torch.bfloat16.itemsize,
        "keys and values": config.memory.kv_cache_mib * 2**20,
        "adapter slots": bank.num_bytes,
        "process": _PROCESS_BYTES,
    }


def judge_memory(
    per_replica: dict[str, int], num_replicas: int, available_bytes: int | None
) -> Finding:
    """Judge what ``num_replicas`` of them take."""
    needed = num_replicas * sum(per_replica.values())
    parts = ", ".join(f"{name} {decimal(number)}" for name, number in per_replica.items())
    times = f"{num_replicas} replicas, each " if num_replicas > 1 else ""
    found = f"about {decimal(needed)} ({times}{parts})"
    if available_bytes is None:
        return Finding(check="memory", status=Status.OK, found=found)
    found += f" of {decimal(available_bytes)} available"
    if needed > available_bytes:
        advice = "lower memory.kv_cache_mib or lora.num_slots, run fewer replicas, or end others"
        return Finding(check="memory", status=Status.FIX, found=found, advice=advice)
    return Finding(check="memory", status=Status.OK, found=found)


def available_bytes(meminfo: Path = _MEMINFO, cgroup_limit: Path = _CGROUP_LIMIT) -> int | None:
    """Return the memory that a new process can have; ``None`` where the system hides it."""
    try:
        rows = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        free = int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        return min(free, int(cgroup_limit.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no limit says "max"
        return free


def _checkpoint(source: str, cache: Path) -> Checkpoint | None:
    """Return the model if it is here as a folder; nothing is fetched or converted."""
    folder = Path(source)
    if source in CATALOG and not folder.is_dir():
        folder = next(one.path for one in list_models(cache) if one.name == source)
    return Checkpoint(folder) if folder.is_dir() else None
