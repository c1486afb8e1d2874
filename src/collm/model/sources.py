"""Finds the checkpoint folder that a user means."""

import hashlib
from functools import partial
from pathlib import Path

from huggingface_hub import snapshot_download

from collm.errors import ModelError
from collm.model.catalog import CATALOG, pull
from collm.model.gguf_import import Progress, ignore_progress, import_gguf
from collm.model.hub_id import HubId, parse_hub_id
from collm.model.new_folder import create_once

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
_HUB_OTHER_FILES = ["*/*", "consolidated*"]
"""The same weights again, in other formats or by other names: twice the download."""


def find_checkpoint(
    source: str | Path, *, cache_dir: Path, progress: Progress = ignore_progress
) -> Path:
    """Return the local checkpoint folder for a model, fetched or converted if need be.

    Args:
        source: A checkpoint folder, a ``.gguf`` file, a name in the catalog, or a hub id
            (``organisation/model``, or ``organisation/model@revision`` for a branch, tag or
            commit); tried in this order.
        cache_dir: Where collm keeps converted models. Hub downloads go to the hub's own cache.
        progress: Told about download and conversion.

    Raises:
        ModelError: Nothing is found, or it cannot be fetched.
    """
    path = Path(source)
    if path.is_dir():
        return path
    if path.is_file():
        return _convert_file(path, cache_dir, progress)
    name = str(source)
    if name in CATALOG:
        return pull(name, cache_dir, progress)
    if (hub_id := parse_hub_id(name)) is not None:
        return _download_from_hub(hub_id)
    raise ModelError(
        f"no model at {name!r}: need a checkpoint folder, a .gguf file, a hub id such as "
        f"organisation/model, or one of {', '.join(CATALOG)}"
    )


def _convert_file(path: Path, cache_dir: Path, progress: Progress) -> Path:
    if path.suffix != ".gguf":
        raise ModelError(f"{path} is a file, but no .gguf file")
    # Hashing the content would take longer than converting; a file that changed differs here too.
    status = path.stat()
    identity = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:12]
    folder = cache_dir / "models" / f"{path.stem}-{key}"
    return create_once(folder, partial(import_gguf, path, progress=progress))


def _download_from_hub(hub_id: HubId) -> Path:
    try:
        folder = snapshot_download(
            hub_id.model_id,
            revision=hub_id.revision,
            allow_patterns=_HUB_FILES,
            ignore_patterns=_HUB_OTHER_FILES,
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"cannot get {hub_id.model_id!r} from the hub{_at(hub_id)}: {reason} (it is no local "
            "folder either; without a network, give a checkpoint folder or a .gguf file)"
        ) from error
    return Path(folder)


def _at(hub_id: HubId) -> str:
    return "" if hub_id.revision is None else f" at revision {hub_id.revision!r}"
