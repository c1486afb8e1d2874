"""The replicas of a demo with several: each has some groups of the task, and nobody else's."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collm.chats import Sample
from collm.cli.demo_settings import ADAPTER, TASK, DemoSettings, common_settings, job_settings
from collm.cli.demo_traffic import OUT_OF_SCOPE
from collm.errors import ConfigError
from collm.workload.samples import group_split, load_samples

MAX_SITES = 5
RANK = 16
"""Of what the sites learn, each and together."""
_TOKENS_PER_ROUND = 12_288
"""About 245 questions a replica, and 45 seconds. Rounds of half as many took 28 s: 8 s of them went
by without training, and three of eight steps warmed up."""
_GATE_SAMPLES = 64
"""Of each replica: what a round teaches shows on few, and comparing takes time from learning."""
_SAMPLES_FILE = "samples.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One replica: its name, and what only it can learn from."""

    name: str
    domains: frozenset[str]
    """Its groups of the task. Questions that fit no intent are every site's, and count apart."""
    samples: tuple[Sample, ...]


def deal_sites(number: int) -> tuple[Site, ...]:
    """Deal the task's training samples to so many sites."""
    parts = group_split(load_samples(TASK, "train"), number, everywhere=(OUT_OF_SCOPE,))
    return tuple(
        Site(
            name=f"r{index}",
            domains=frozenset(sample.group for sample in samples) - {OUT_OF_SCOPE},
            samples=samples,
        )
        for index, samples in enumerate(parts)
    )


def cluster_settings(settings: DemoSettings, sites: Sequence[Site]) -> dict[str, Any]:
    """Return the configuration file of the demo's cluster as plain values."""
    common = common_settings(settings)
    return {
        **common,
        # A core for each; what is left over is the front's and the client's.
        "replica": {**common["replica"], "threads": 1},
        "cluster": {
            "replicas": [
                {"name": site.name, "jobs": [job_settings(str(_samples_path(settings, site)))]}
                for site in sites
            ],
            "rounds": [
                {
                    "adapter": ADAPTER,
                    "strategy": "svd",
                    "rank": RANK,
                    "tokens_per_round": _TOKENS_PER_ROUND,
                    "interval_s": 0.0,
                    "gate": {"max_samples": _GATE_SAMPLES},
                }
            ],
        },
    }


def write_samples(settings: DemoSettings, sites: Sequence[Site]) -> None:
    """Put each site's training text into its replica's own data folder, and nowhere else.

    Raises:
        ConfigError: A folder cannot be written.
    """
    for site in sites:
        path = _samples_path(settings, site)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                file.writelines(_line(sample) for sample in site.samples)
        except OSError as error:
            raise ConfigError(f"--out {settings.out} cannot be used: {error}") from error


def _samples_path(settings: DemoSettings, site: Site) -> Path:
    return settings.data_dir / site.name / _SAMPLES_FILE


def _line(sample: Sample) -> str:
    messages = [{"role": turn.role, "content": turn.content} for turn in sample.messages]
    return json.dumps({"messages": messages, "group": sample.group}, ensure_ascii=False) + "\n"
