"""What one run of ``collm demo`` is made of, and the configuration of its server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collm.model.config import ModelConfig
from collm.pacing.config import BudgetName, Objectives

ADAPTER = "clinc"
"""The adapter that learns; every request asks for it by this name."""
TASK = "clinc150"
# Questions of a dozen words: at the usual share, general text would take a fifth of the compute.
_JOB = {"adapter": ADAPTER, "data": TASK, "replay_share": 0.05}

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
        """The replica's data folder, made anew by each run."""
        return self.out / "data"

    @property
    def log_path(self) -> Path:
        """Where the server's output goes."""
        return self.out / "server.log"


def server_settings(settings: DemoSettings) -> dict[str, Any]:
    """Return the configuration file of the demo's server as plain values."""
    return {
        "seed": settings.seed,
        "model": {"source": settings.model},
        "replica": {"data_dir": str(settings.data_dir), "max_versions": _MAX_VERSIONS},
        "pacing": {
            "budget": settings.budget,
            "ttft_s": settings.objectives.ttft_s,
            "tpot_s": settings.objectives.tpot_s,
        },
        "training": {
            "jobs": [_JOB],
        },
        "server": {
            "host": "127.0.0.1",
            "port": settings.port,
            "drain_timeout_s": _DRAIN_TIMEOUT_S,
        },
    }
