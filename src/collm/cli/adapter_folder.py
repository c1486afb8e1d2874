"""PEFT folders on this side of the HTTP API."""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO

from collm.cli.api_client import ApiClient
from collm.errors import AdapterError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"


def check_target(folder: Path, *, is_forced: bool) -> None:
    """Raise ``AdapterError`` unless an adapter may be written to ``folder``."""
    if folder.exists() and not folder.is_dir():
        raise AdapterError(f"{folder} is not a folder")
    if not is_forced and folder.exists() and any(folder.iterdir()):
        raise AdapterError(f"{folder} is not empty; --force replaces the adapter in it")


def export_to(client: ApiClient, version: str, folder: Path) -> None:
    """Fetch a version's PEFT folder; ``folder`` changes only once everything has arrived.

    Raises:
        AdapterError: The server sent no adapter, or ``folder`` cannot be written.
        ServerError: The server refuses, or breaks off.
    """
    try:
        with TemporaryFile() as archive:
            client.download("/adapters/export", {"version": version}, archive)
            folder.mkdir(parents=True, exist_ok=True)
            # Inside the target, so that the files get to their place by renaming.
            with TemporaryDirectory(dir=folder, prefix=".export-") as arrived:
                _unpack(archive, Path(arrived))
                for name in (WEIGHTS, CONFIG):
                    (Path(arrived) / name).replace(folder / name)
    except OSError as error:
        raise AdapterError(f"{folder} cannot be written: {error}") from error


@contextmanager
def opened(folder: Path) -> Iterator[Mapping[str, tuple[str, IO[bytes]]]]:
    """Open a PEFT folder's two files, for the time of an upload.

    Raises:
        AdapterError: One of them is missing or cannot be read.
    """
    if not (folder / WEIGHTS).exists() and (folder / _PICKLE).exists():
        raise AdapterError(
            f"{folder / _PICKLE} is a pickle file, which can run code; save the adapter with "
            f"safe_serialization=True to get {WEIGHTS}"
        )
    with ExitStack() as stack:
        try:
            files = {
                name: (name, stack.enter_context((folder / name).open("rb")))
                for name in (CONFIG, WEIGHTS)
            }
        except OSError as error:
            raise AdapterError(
                f"{folder} is no PEFT adapter folder: {error.strerror}: {error.filename}"
            ) from error
        yield files


def _unpack(archive: IO[bytes], folder: Path) -> None:
    """Take the two files out of a zip archive, whatever else it may hold."""
    try:
        with zipfile.ZipFile(archive) as zipped:
            for name in (CONFIG, WEIGHTS):
                zipped.extract(name, folder)
    except (zipfile.BadZipFile, KeyError) as error:
        raise AdapterError(f"the server's answer is no exported adapter: {error}") from error
