"""A real replica of a tiny model behind its HTTP server, and both kinds of clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai

from collm.cli.replica_process import backends_of
from collm.replica.assembly import Replica
from collm.replica.config import ReplicaConfig
from collm.training.config import JobConfig
from factories.replicas import open_tiny_replica
from factories.server_thread import running_server
from factories.waiting import WAIT_S

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


class ServedReplica:
    """What tests ask of a server, and what they look at behind it."""

    def __init__(self, replica: Replica, url: str) -> None:
        self.replica = replica
        self.openai = openai.OpenAI(
            base_url=url + "/v1", api_key="none", max_retries=0, timeout=WAIT_S
        )
        self.http = httpx.Client(base_url=url, timeout=WAIT_S)

    def post(self, path: str, status: int = 200, **body: Any) -> httpx.Response:
        response = self.http.post(path, json=body)
        assert response.status_code == status, response.text
        return response

    def complete(self, model: str, prompt: str = "What is", **fields: Any) -> Any:
        defaults: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
        extra = {"ignore_eos": True}
        return self.openai.completions.create(
            model=model, prompt=prompt, extra_body=extra, **(defaults | fields)
        )

    def text(self, model: str, prompt: str = "What is", **fields: Any) -> str:
        text: str = self.complete(model, prompt, **fields).choices[0].text
        return text

    def load(self, name: str, path: str | Path, **fields: Any) -> httpx.Response:
        body = {"lora_name": name, "lora_path": str(path), **fields}
        return self.http.post("/v1/load_lora_adapter", json=body)

    def import_files(
        self, name: str, config: bytes, weights: bytes, *, promote: bool = True
    ) -> httpx.Response:
        files = {CONFIG: (CONFIG, config), WEIGHTS: (WEIGHTS, weights)}
        form = {"name": name, "promote": str(promote).lower()}
        return self.http.post("/adapters/import", data=form, files=files)

    def versions(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.http.get("/adapters").json()["data"]
        return rows

    def active(self, adapter: str) -> list[str]:
        rows = self.versions()
        return [row["version"] for row in rows if row["adapter"] == adapter and row["is_active"]]

    def models(self) -> list[str]:
        return sorted(model.id for model in self.openai.models.list().data)

    def used_blocks(self) -> int:
        number: int = self.replica.client.snapshot()["used_blocks"]
        return number

    def close(self) -> None:
        self.openai.close()
        self.http.close()


@contextmanager
def served_replica(
    checkpoint: Path, data_dir: Path, *jobs: JobConfig, import_root: Path | None = None
) -> Iterator[ServedReplica]:
    """Open a replica on a data folder, serve it, and close both."""
    config = ReplicaConfig(
        data_dir=str(data_dir),
        threads=1,
        min_promotion_interval_s=0.0,
        slot_wait_s=0.5,
        import_root=None if import_root is None else str(import_root),
    )
    replica = open_tiny_replica(checkpoint, data_dir, *jobs, replica=config)
    try:
        with running_server(backends_of(replica)) as server:
            served = ServedReplica(replica, server.url)
            try:
                yield served
            finally:
                served.close()
    finally:
        replica.close()
