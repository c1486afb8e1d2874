"""Sample sets: chat conversations with a known answer, read from chat-format JSONL."""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import IO, Literal

from collm.errors import DataError

Role = Literal["system", "user", "assistant"]
ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
SHIPPED_SETS = ("clinc150", "medquad", "snips")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A conversation that ends with the answer to be learned or expected."""

    messages: tuple[Message, ...]
    """At least two, the last one by the assistant."""
    group: str = ""
    """Label for splits that differ by site."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Fields of the set's own."""

    @property
    def prompt(self) -> tuple[Message, ...]:
        """Return all turns but the answer."""
        return self.messages[:-1]

    @property
    def answer(self) -> str:
        """Return the last turn's text."""
        return self.messages[-1].content


def load_samples(
    name_or_path: str | Path, split: Literal["train", "test"] = "train"
) -> tuple[Sample, ...]:
    """Read a shipped set by name and split, or a ``.jsonl`` or ``.jsonl.gz`` file by path.

    A path names one file, so ``split`` says nothing about it.

    Raises:
        DataError: No such set, or a line that is no sample; it names the line and the field.
    """
    name = str(name_or_path)
    if name in SHIPPED_SETS:
        place = files(__package__).joinpath(f"data/sft/{name}/{split}.jsonl.gz")
        with place.open("rb") as packed:
            return _read_packed(packed, f"{name}/{split}")
    path = Path(name_or_path)
    if not path.is_file():
        raise DataError(f"no sample set {name!r}: give a file or one of {', '.join(SHIPPED_SETS)}")
    with path.open("rb") as lines:
        return _read_packed(lines, name) if path.suffix == ".gz" else _read_lines(lines, name)


def by_group(samples: Sequence[Sample]) -> dict[str, tuple[Sample, ...]]:
    """Sort samples into their groups, groups by name, samples in their order."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    return {group: tuple(groups[group]) for group in sorted(groups)}


def dirichlet_split(
    samples: Sequence[Sample], num_sites: int, alpha: float, seed: int
) -> tuple[tuple[Sample, ...], ...]:
    """Deal every sample to one site, each group in proportions drawn from Dirichlet(alpha).

    A small ``alpha`` gives each group to few sites, a large one gives all sites the same mix.

    Raises:
        ValueError: ``num_sites`` is below 1 or ``alpha`` not above 0.
    """
    if num_sites < 1 or alpha <= 0:
        raise ValueError(f"need num_sites >= 1 and alpha > 0, not {num_sites} and {alpha}")
    random = Random(seed)
    sites: list[list[Sample]] = [[] for _ in range(num_sites)]
    for members in by_group(samples).values():
        # Gamma draws divided by their sum are a Dirichlet draw; ``choices`` does the division.
        # A tiny alpha can underflow all of them to 0, where one site gets the group.
        weights = [random.gammavariate(alpha, 1.0) for _ in range(num_sites)]
        if not any(weights):
            weights[random.randrange(num_sites)] = 1.0
        owners = random.choices(sites, weights, k=len(members))
        for owner, sample in zip(owners, members, strict=True):
            owner.append(sample)
    return tuple(tuple(site) for site in sites)


def parse_sample(line: str | bytes) -> Sample:
    """Read one line of chat-format JSONL.

    Raises:
        DataError: The line is no sample; the message names the field.
    """
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise DataError("must be a JSON object with a list 'messages'")
    messages = _parse_messages(record.pop("messages", None))
    group = record.pop("group", "")
    if not isinstance(group, str):
        raise DataError(f"group: must be a string, not {group!r}")
    return Sample(messages=messages, group=group, extra=record)


def _parse_messages(turns: object) -> tuple[Message, ...]:
    if not isinstance(turns, list) or len(turns) < 2:
        raise DataError("messages: must be a list of at least two turns")
    messages = tuple(_parse_message(turn, f"messages[{i}]") for i, turn in enumerate(turns))
    if messages[-1].role != "assistant":
        raise DataError(f"messages[{len(messages) - 1}].role: the last turn must be 'assistant'")
    if not messages[-1].content:
        raise DataError(f"messages[{len(messages) - 1}].content: the answer is empty")
    return messages


def _parse_message(turn: object, where: str) -> Message:
    if not isinstance(turn, dict):
        raise DataError(f"{where}: must be an object with 'role' and 'content'")
    unknown = sorted(turn.keys() - {"role", "content"})
    if unknown:
        raise DataError(f"{where}.{unknown[0]}: unknown field; allowed are 'role' and 'content'")
    role, content = turn.get("role"), turn.get("content")
    if not isinstance(role, str) or role not in ROLES:
        raise DataError(f"{where}.role: must be one of {', '.join(ROLES)}, not {role!r}")
    if not isinstance(content, str):
        raise DataError(f"{where}.content: must be a string")
    return Message(ROLES[role], content)


def _read_packed(packed: IO[bytes], name: str) -> tuple[Sample, ...]:
    with gzip.open(packed, "rb") as lines:
        return _read_lines(lines, name)


def _read_lines(lines: IO[bytes] | gzip.GzipFile, name: str) -> tuple[Sample, ...]:
    return tuple(_parse_lines(lines, name))


def _parse_lines(lines: IO[bytes] | gzip.GzipFile, name: str) -> Iterator[Sample]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield parse_sample(line)
        except DataError as error:
            raise DataError(f"{name}, line {number}: {error}") from error
