"""Chat-format JSONL: one conversation a line, with the answer to be learned or expected."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from collm.errors import DataError

Role = Literal["system", "user", "assistant"]
ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",  # today's name of the system role, read as when serving
    "user": "user",
    "assistant": "assistant",
}

MAX_LINE_BYTES = 1024 * 1024
"""Far above what a micro-batch could hold; spares the memory that a broken file would take."""

_BOM = b"\xef\xbb\xbf"
_TOOL_FIELDS = ("tools", "functions", "parallel_tool_calls")
_TOOL_TURN_FIELDS = ("tool_calls", "function_call", "tool_call_id")
_TURN_FIELDS = {"role", "content", "name", "weight"}


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str
    is_learned: bool = True
    """Whether it is to be learned if the assistant says it."""


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


def parse_samples(lines: Iterable[bytes]) -> Iterator[Sample]:
    """Read the lines of a file; blank ones and a byte order mark at its start are skipped.

    Raises:
        DataError: A line is no sample; the message names the line and the field.
    """
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(_BOM) if number == 1 else line
        if not text.strip():
            continue
        try:
            yield parse_sample(text)
        except DataError as error:
            raise DataError(f"line {number}: {error}") from error


def parse_sample(line: str | bytes) -> Sample:
    """Read one line, in the form of OpenAI's fine-tuning files without tools.

    ``name`` of a turn is ignored, as when serving. A turn of the assistant with ``weight`` 0 is not
    learned; the last one must be.

    Raises:
        DataError: The line is no sample; the message names the field.
    """
    record = _parse_object(line)
    for name in _TOOL_FIELDS:
        if record.pop(name, None):
            raise DataError(f"{name}: tools cannot be learned; leave it out")
    messages = _parse_messages(record.pop("messages", None))
    group = record.pop("group", "")
    if not isinstance(group, str) or not _is_unicode(group):
        raise DataError(f"group: must be a string, not {_shown(group)}")
    return Sample(messages=messages, group=group, extra=record)


def _parse_object(line: str | bytes) -> dict[str, object]:
    if len(line) > MAX_LINE_BYTES:
        raise DataError(f"longer than {MAX_LINE_BYTES} bytes")
    try:
        record = json.loads(line.decode() if isinstance(line, bytes) else line)
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise DataError("must be a JSON object with a list 'messages'")
    return record


def _parse_messages(turns: object) -> tuple[Message, ...]:
    if not isinstance(turns, list) or len(turns) < 2:
        raise DataError("messages: must be a list of at least two turns")
    messages = tuple(_parse_message(turn, f"messages[{i}]") for i, turn in enumerate(turns))
    if messages[-1].role != "assistant":
        raise DataError(f"messages[{len(messages) - 1}].role: the last turn must be 'assistant'")
    if not messages[-1].is_learned:
        raise DataError(
            f"messages[{len(messages) - 1}].weight: 0 on the last turn, which is the answer to be"
            " learned; leave out what follows the last turn of weight 1"
        )
    if not messages[-1].content:
        raise DataError(f"messages[{len(messages) - 1}].content: the answer is empty")
    return messages


def _parse_message(turn: object, where: str) -> Message:
    if not isinstance(turn, dict):
        raise DataError(f"{where}: must be an object with 'role' and 'content'")
    _check_names(turn, where)
    role, content = turn.get("role"), turn.get("content")
    if not isinstance(role, str) or role not in ROLES:
        raise DataError(f"{where}.role: must be one of {', '.join(ROLES)}, not {_shown(role)}")
    if not isinstance(content, str):
        raise DataError(f"{where}.content: must be a string")
    if not _is_unicode(content):
        raise DataError(f"{where}.content: has half a character (a lone surrogate)")
    weight = turn.get("weight")
    _check_weight(weight, ROLES[role], where)
    return Message(ROLES[role], content, is_learned=weight != 0)


def _check_names(turn: Mapping[str, object], where: str) -> None:
    for name in _TOOL_TURN_FIELDS:
        if turn.get(name):
            raise DataError(f"{where}.{name}: tools cannot be learned; leave it out")
    unknown = sorted(turn.keys() - _TURN_FIELDS - set(_TOOL_TURN_FIELDS))
    if unknown:
        name = unknown[0][:60] if unknown[0].isprintable() else _shown(unknown[0])
        raise DataError(f"{where}.{name}: unknown field; allowed are 'role' and 'content'")


def _check_weight(weight: object, role: Role, where: str) -> None:
    if weight is None:
        return
    if role != "assistant":
        raise DataError(f"{where}.weight: allowed for the role 'assistant' alone")
    if type(weight) is not int or weight not in (0, 1):
        raise DataError(f"{where}.weight: must be 0 or 1, not {_shown(weight)}")


def _is_unicode(text: str) -> bool:
    # JSON can escape lone surrogates, which no tokenizer takes.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    return repr(value)[:60]
