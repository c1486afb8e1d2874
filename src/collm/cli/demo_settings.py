"""What one run of ``collm demo`` is made of, and the configuration of its server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collm.model.config import ModelConfig
from collm.pacing.config import BudgetName, Objectives

ADAPTER = "clinc"
"""The adapter that learns; every request asks for it by this name."""
TASK = "clinc150"
_REPLAY_SHARE = 0.05
"""Questions are short: at the usual share, general text would take a fifth of the compute."""
_LEARNING = {
    "learning_rate": 2e-3,
    "schedule": "inverse_sqrt",
    "tokens_per_step": 512,
}
"""Fast while everything is new, and finer later: docs/tuning.md has the comparison."""
_MAX_VERSIONS = 3
_DRAIN_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """One run."""

    minutes: float
    """How long requests arrive."""
    requests_per_s: float
    """Mean rate of arrivals."""
    seed: int
    """Chooses requests, their texts, and the order of training samples."""
    out: Path
    """Folder of everything that the run writes."""
    port: int
    """TCP port of the server; 0 takes a free one."""
    model: str
    budget: BudgetName
    num_replicas: int = 1
    """More than one share the groups of the task, and learn together."""
    objectives: Objectives = Objectives()

    @property
    def duration_s(self) -> float:
        """Seconds in which requests arrive."""
        return 60.0 * self.minutes

    @property
    def served_name(self) -> str:
        """The base model's name."""
        return ModelConfig(source=self.model).served_name

    @property
    def data_dir(self) -> Path:
        """The data folder of the replica or the cluster, made anew by each run."""
        return self.out / "data"

    @property
    def log_path(self) -> Path:
        """Where the server's output goes."""
        return self.out / "server.log"


def server_settings(settings: DemoSettings) -> dict[str, Any]:
    """Return the configuration file of the demo's one replica as plain values."""
    return {**common_settings(settings), "training": {"jobs": [job_settings(TASK)]}}


def common_settings(settings: DemoSettings) -> dict[str, Any]:
    """Return what the server's configuration has whatever the number of replicas."""
    return {
        "seed": settings.seed,
        "model": {"source": settings.model},
        "replica": {"data_dir": str(settings.data_dir), "max_versions": _MAX_VERSIONS},
        "pacing": {
            "budget": settings.budget,
            "ttft_s": settings.objectives.ttft_s,
            "tpot_s": settings.objectives.tpot_s,
        },
        "server": {
            "host": "127.0.0.1",
            "port": settings.port,
            "drain_timeout_s": _DRAIN_TIMEOUT_S,
        },
    }


def job_settings(data: str) -> dict[str, Any]:
    """Return the training job that learns the task from ``data``."""
    return {"adapter": ADAPTER, "data": data, "replay_share": _REPLAY_SHARE, **_LEARNING}
