"""Configuration of a cluster: its replicas, and how they share traffic and what they learn."""

import re
from dataclasses import dataclass

from collm.cluster.planning_config import PlanningConfig
from collm.cluster.round_config import RoundConfig
from collm.cluster.routing_config import RegistryConfig, RouterConfig
from collm.errors import ConfigError
from collm.training.config import JobConfig

FRONT = "front"
"""Name of the process that users talk to; no replica may have it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaEntry:
    """One replica of the cluster: what is its own, the rest being as in the other sections."""

    name: str
    """Its name in response ids, metrics and logs: letters, digits, '-' and '_'."""
    data_dir: str | None = None
    """Folder of its own state; null takes the folder of its name in replica.data_dir."""
    device: str | None = None
    """Where it computes, cpu or cuda:N; null takes replica.device."""
    threads: int | None = None
    """Threads that it computes with; null takes replica.threads, or its even share of the cores."""
    jobs: tuple[JobConfig, ...] = ()
    """Adapters that it learns from its own data, besides training.jobs, which every replica has;
    keys as in there."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"name is {self.name!r}; allowed: 1 to 32 letters, digits, '-' or '_', "
                "the first a letter or digit"
            )
        if self.name == FRONT:
            raise ConfigError(f"name is {self.name!r}, which is kept for the front")
        if self.data_dir == "":
            raise ConfigError("data_dir is empty; give a folder, or null")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads is {self.threads}; allowed: 1 or more, or null")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Several replicas behind one address. Without replicas, one process serves by itself."""

    replicas: tuple[ReplicaEntry, ...] = ()
    """Replicas to run, each a process of its own."""
    router: RouterConfig = RouterConfig()
    registry: RegistryConfig = RegistryConfig()
    planning: PlanningConfig = PlanningConfig()
    rounds: tuple[RoundConfig, ...] = ()
    """Adapters that the replicas learn together, each replica from its own data."""

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.replicas]
        folders = [entry.data_dir for entry in self.replicas if entry.data_dir is not None]
        adapters = [entry.adapter for entry in self.rounds]
        for where, what, values in (
            ("replicas", "name", names),
            ("replicas", "data_dir", folders),
            ("rounds", "adapter", adapters),
        ):
            for value in values:
                if values.count(value) > 1:
                    raise ConfigError(f"{where}: {what} {value!r} appears more than once")
