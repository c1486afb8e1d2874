"""Checks of the places that a server uses: its port, its folders, the model's."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from rich.filesize import decimal

from collm.cli.cache import cache_dir
from collm.cli.doctor_report import Finding, Status
from collm.cluster.config import FRONT
from collm.config import CollmConfig
from collm.errors import ConfigError
from collm.model.catalog import CATALOG, list_models
from collm.model.hub_id import parse_hub_id
from collm.server.run import bind

_LEAST_FREE_BYTES = 256 * 2**20
"""Of a small model's checkpoints and versions; below it, writes will soon fail."""
_GOOD_FREE_BYTES = 2 * 2**30


def check_places(config: CollmConfig) -> Iterator[Finding]:
    """Look at the port, the folders and the model."""
    yield check_port(config)
    for folder in data_folders(config):
        yield check_data_folder(folder)
    yield check_disk(existing_part(Path(config.replica.data_dir)))
    yield check_cache(cache_dir())
    yield check_model(config.model.source, cache_dir())


def data_folders(config: CollmConfig) -> list[Path]:
    """Return the data folder of each process."""
    root = Path(config.replica.data_dir)
    entries = config.cluster.replicas
    if not entries:
        return [root]
    return [root / FRONT, *(Path(entry.data_dir or root / entry.name) for entry in entries)]


def check_port(config: CollmConfig) -> Finding:
    """Try to listen where the server will."""
    address = f"{config.server.host}:{config.server.port}"
    try:
        bind(config.server).close()
    except ConfigError as error:
        advice = "end what listens there (a collm that runs already?), or set server.port"
        return Finding(check="port", status=Status.FIX, found=str(error), advice=advice)
    return Finding(check="port", status=Status.OK, found=f"{address} is free")


def check_data_folder(folder: Path) -> Finding:
    """Look whether a data folder can be written and no other process holds it."""
    check = "data folder"
    writable = existing_part(folder)
    if not (writable.is_dir() and os.access(writable, os.W_OK | os.X_OK)):
        found = f"{folder} cannot be written"
        advice = f"make {writable} a folder that this user may write, or set replica.data_dir"
        return Finding(check=check, status=Status.FIX, found=found, advice=advice)
    lock = folder / "collm.lock"
    if lock.exists():
        try:
            with FileLock(lock, timeout=0):
                pass
        except Timeout:
            found = f"{folder} is in use by another process"
            advice = "end it, or set replica.data_dir: each replica needs a folder of its own"
            return Finding(check=check, status=Status.FIX, found=found, advice=advice)
    state = "is free" if folder.exists() else "will be made"
    return Finding(check=check, status=Status.OK, found=f"{folder} {state}")


def check_disk(folder: Path) -> Finding:
    """Look whether checkpoints and versions have room."""
    free = shutil.disk_usage(folder).free
    found = f"{decimal(free)} free at {folder}"
    advice = "free some, or set replica.data_dir to another disk; lower replica.max_versions"
    if free < _LEAST_FREE_BYTES:
        return Finding(check="disk", status=Status.FIX, found=found, advice=advice)
    if free < _GOOD_FREE_BYTES:
        return Finding(check="disk", status=Status.NOTE, found=found, advice=advice)
    return Finding(check="disk", status=Status.OK, found=found)


def check_cache(folder: Path) -> Finding:
    """Look whether models can be fetched and converted."""
    if not os.access(existing_part(folder), os.W_OK | os.X_OK):
        found = f"{folder} cannot be written"
        advice = "set COLLM_HOME to a folder that this user may write"
        return Finding(check="model cache", status=Status.FIX, found=found, advice=advice)
    return Finding(check="model cache", status=Status.OK, found=str(folder))


def check_model(source: str, cache: Path) -> Finding:
    """Look whether the base model is here already; nothing is fetched."""
    if Path(source).exists():
        return Finding(check="model", status=Status.OK, found=f"{source} is here")
    if source in CATALOG:
        listing = next(one for one in list_models(cache) if one.name == source)
        if listing.is_present:
            return Finding(check="model", status=Status.OK, found=f"{source} is in the cache")
        found = f"{source} is not here yet ({decimal(listing.size_bytes)})"
        advice = f"`collm models pull {source}`, or let `collm serve` do it; needs a network"
        return Finding(check="model", status=Status.NOTE, found=found, advice=advice)
    if parse_hub_id(source) is not None:
        found = f"{source} is a hub id"
        advice = "fetched at the first start unless the hub's cache has it; needs a network"
        return Finding(check="model", status=Status.NOTE, found=found, advice=advice)
    found = f"{source} does not exist"
    advice = "set model.source to a checkpoint folder, a .gguf file or a name that exists"
    return Finding(check="model", status=Status.FIX, found=found, advice=advice)


def existing_part(folder: Path) -> Path:
    """Return the longest part of a path that exists."""
    absolute = folder.expanduser().absolute()
    return next(path for path in (absolute, *absolute.parents) if path.exists())
