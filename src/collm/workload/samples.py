"""Sample sets: chat conversations with a known answer, shipped or in a file of the user's."""

import gzip
from collections.abc import Collection, Sequence
from importlib.resources import files
from pathlib import Path
from typing import IO, Literal

from collm.chats import Sample, parse_samples
from collm.errors import DataError
from collm.workload.own_files import blaming

SHIPPED_SETS = ("clinc150", "medquad", "snips")


def load_samples(
    name_or_path: str | Path, split: Literal["train", "test"] = "train"
) -> tuple[Sample, ...]:
    """Read a shipped set by name and split, or a ``.jsonl`` or ``.jsonl.gz`` file by path.

    A path names one file, so ``split`` says nothing about it.

    Raises:
        DataError: No such set, a file that cannot be read, or a line that is no sample; it names
            the line and the field.
    """
    name = str(name_or_path)
    if name in SHIPPED_SETS:
        place = files(__package__).joinpath(f"data/sft/{name}/{split}.jsonl.gz")
        with place.open("rb") as packed:
            return _read_packed(packed, f"{name}/{split}")
    path = Path(name_or_path)
    if not path.is_file():
        raise DataError(f"no sample set {name!r}: give a file or one of {', '.join(SHIPPED_SETS)}")
    with blaming(name), path.open("rb") as lines:
        return _read_packed(lines, name) if path.suffix == ".gz" else _read_lines(lines, name)


def by_group(samples: Sequence[Sample]) -> dict[str, tuple[Sample, ...]]:
    """Sort samples into their groups, groups by name, samples in their order."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    return {group: tuple(groups[group]) for group in sorted(groups)}


def group_split(
    samples: Sequence[Sample], num_sites: int, everywhere: Collection[str] = ()
) -> tuple[tuple[Sample, ...], ...]:
    """Deal whole groups to sites, in order of their names, so that no two sites share one.

    Args:
        samples: What there is.
        num_sites: At most as many as there are groups to deal.
        everywhere: Groups whose samples the sites get in turn instead.

    Raises:
        ValueError: There are fewer groups than sites.
    """
    groups = by_group(samples)
    dealt = [group for group in groups if group not in everywhere]
    if not 1 <= num_sites <= len(dealt):
        raise ValueError(f"{len(dealt)} groups cannot be dealt to {num_sites} sites")
    sites: list[list[Sample]] = [[] for _ in range(num_sites)]
    for index, group in enumerate(dealt):
        sites[index * num_sites // len(dealt)] += groups[group]
    for group in everywhere:
        for index, sample in enumerate(groups.get(group, ())):
            sites[index % num_sites].append(sample)
    return tuple(tuple(site) for site in sites)


def _read_packed(packed: IO[bytes], name: str) -> tuple[Sample, ...]:
    with gzip.open(packed, "rb") as lines:
        return _read_lines(lines, name)


def _read_lines(lines: IO[bytes] | gzip.GzipFile, name: str) -> tuple[Sample, ...]:
    try:
        return tuple(parse_samples(lines))
    except DataError as error:
        raise DataError(f"{name}, {error}") from error
