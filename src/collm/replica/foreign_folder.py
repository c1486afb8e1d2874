"""Adapter folders from outside: copied out of a stranger's reach before anything reads them."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from collm.errors import AdapterError, RequestError, UnknownAdapterError
from collm.lora.layout import LoraLayout
from collm.lora.peft_folder import PEFT_CONFIG, PEFT_WEIGHTS, load_peft
from collm.lora.state import AdapterState
from collm.lora.terms import Terms
from collm.model.spec import ModelSpec

MAX_CONFIG_BYTES = 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_HEADER_BYTES = 16 * 1024 * 1024
"""Room for the names and shapes in a weights file."""


def max_weights_bytes(layout: LoraLayout) -> int:
    """Return the size of the largest weights file that could fit the slots' layout."""
    return 4 * layout.num_parameters + _HEADER_BYTES


def find_folder(root: str | None, path: str) -> Path:
    """Return the folder that ``path``, below or relative to ``root``, leads to.

    Raises:
        RequestError: No folder is allowed, or it is not below the allowed one.
        UnknownAdapterError: There is no such folder.
    """
    if root is None:
        raise _not_allowed("adapters can be loaded from no folder; set replica.import_root to one")
    base = Path(root).resolve()
    try:
        # Links are followed first, so that none leads out.
        folder = (base / path).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        folder = None
    if folder is not None and not folder.is_relative_to(base):
        raise _not_allowed(f"{path!r} is not below replica.import_root")
    if folder is None or not folder.is_dir():
        raise UnknownAdapterError(f"there is no adapter folder {path!r} below replica.import_root")
    return folder


def copy_folder(source: Path, target: Path, max_bytes: int) -> None:
    """Copy the two files of a PEFT folder, of which the weights may have ``max_bytes``.

    Raises:
        AdapterError: A file is missing, too large, or not a plain file.
    """
    try:
        folder = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise AdapterError(f"the folder cannot be read: {error.strerror}") from error
    try:
        _copy(folder, PEFT_CONFIG, target, MAX_CONFIG_BYTES)
        _copy(folder, PEFT_WEIGHTS, target, max_bytes)
    finally:
        os.close(folder)


def read_files(
    name: str,
    config: bytes,
    weights_path: Path,
    terms: Terms,
    spec: ModelSpec,
    base_digest: str,
) -> AdapterState:
    """Return the checked content of an adapter's two files; raises ``AdapterError``.

    Args:
        name: The adapter.
        config: Content of ``adapter_config.json``.
        weights_path: A safetensors file of ours.
        terms: What can be served here.
        spec: The base model's shapes.
        base_digest: The base model's digest.
    """

    def fill(folder: Path) -> None:
        if len(config) > MAX_CONFIG_BYTES:
            raise AdapterError(f"{PEFT_CONFIG} is too large")
        check_size(weights_path, max_weights_bytes(terms.layout))
        (folder / PEFT_CONFIG).write_bytes(config)
        (folder / PEFT_WEIGHTS).symlink_to(weights_path.resolve())

    return read_filled(name, fill, terms, spec, base_digest)


def read_filled(
    name: str,
    fill: Callable[[Path], None],
    terms: Terms,
    spec: ModelSpec,
    base_digest: str,
) -> AdapterState:
    """Return the checked content of the two files that ``fill`` puts into a folder of ours."""
    with TemporaryDirectory(prefix="collm-adapter-") as folder:
        fill(Path(folder))
        try:
            state = load_peft(Path(folder), spec, base_digest)
        except AdapterError as error:
            # Where we copied it to is nobody's business.
            raise AdapterError(str(error).replace(f"{folder}/", "")) from None
    terms.check(name, state)
    state.check_bounded()
    return state


def check_size(path: Path, max_bytes: int) -> None:
    """Raise ``AdapterError`` when a weights file is larger than any that could fit."""
    num_bytes = path.stat().st_size
    if num_bytes > max_bytes:
        raise AdapterError(
            f"{PEFT_WEIGHTS} has {num_bytes} bytes; with this model and lora.max_rank at most "
            f"{max_bytes} can be right"
        )


def _copy(folder: int, name: str, target: Path, max_bytes: int) -> None:
    num_left = max_bytes
    with _open_plain(folder, name) as reader, (target / name).open("wb") as writer:
        # By what is read and not by what it says of itself: it may grow meanwhile.
        while chunk := reader.read(_CHUNK_BYTES):
            num_left -= len(chunk)
            if num_left < 0:
                raise AdapterError(f"{name} is too large; allowed are {max_bytes} bytes")
            writer.write(chunk)


def _open_plain(folder: int, name: str) -> IO[bytes]:
    """Open a plain file: no link, and no pipe, which would never end."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise AdapterError(f"{name} is missing; expected a PEFT LoRA folder") from None
    except OSError as error:
        raise AdapterError(f"{name} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise AdapterError(f"{name} is not a plain file")
    return os.fdopen(descriptor, "rb")


def _not_allowed(reason: str) -> RequestError:
    return RequestError(reason, param="lora_path", code="path_not_allowed")
