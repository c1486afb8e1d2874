"""What each replica of a demo learned alone: its update of the first round, kept and served."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import httpx

from collm.cli.demo_rounds import Round
from collm.cli.demo_settings import ADAPTER
from collm.cli.demo_sites import RANK
from collm.cluster.config import FRONT

ALONE = "alone"
"""Adapter that a replica's own update is served as."""
_FIRST_ROUND = 1
_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_TIMEOUT_S = 60.0


class OwnUpdates:
    """Updates of the first round, copied to the run's folder: the front soon removes its own.

    Args:
        data_dir: The cluster's data folder.
        folder: Where to copy them; what an earlier run left there is removed.
    """

    def __init__(self, data_dir: Path, folder: Path) -> None:
        self._received = data_dir / FRONT / "rounds" / ADAPTER / str(_FIRST_ROUND)
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)

    def keep(self, rounds: Iterable[Round]) -> None:
        """Copy what has come in by now and was not copied yet."""
        for found in rounds:
            if found.number == _FIRST_ROUND:
                for part in found.parts:
                    self._keep(part.member)

    def has(self, name: str) -> bool:
        """Return whether a replica's update was kept."""
        return self._path(name).exists()

    async def serve(self, client: httpx.AsyncClient, name: str, url: str) -> None:
        """Have a replica serve its own update as ``ALONE``; nobody else gets it.

        Raises:
            httpx.HTTPError: It did not take it.
        """
        # An update has its scale folded into B, so alpha equals the rank.
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK}
        reply = await client.post(
            url + "/adapters/import",
            data={"name": ALONE, "promote": "true"},
            files={
                _CONFIG: (_CONFIG, json.dumps(config).encode()),
                _WEIGHTS: (_WEIGHTS, self._path(name).read_bytes()),
            },
            timeout=_TIMEOUT_S,
        )
        reply.raise_for_status()

    def _keep(self, name: str) -> None:
        received = self._received / f"{name}.safetensors"
        if received.exists() and not self.has(name):
            self._folder.mkdir(exist_ok=True)
            shutil.copyfile(received, self._path(name))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"
