"""Reading messages from JSON: every complaint names the message and the field."""

import math
from collections.abc import Collection, Mapping
from typing import TypeVar

from collm.errors import RoundError

_T = TypeVar("_T")
_MAX_INTEGER = 2**63 - 1
"""Largest integer that a database column holds."""


class Fields:
    """One JSON object that a message is read from.

    Args:
        message: What is read, for complaints.
        value: The parsed JSON.
        names: All fields that the message has.

    Raises:
        RoundError: ``value`` is no object, or has a field that the message does not.
    """

    def __init__(self, message: str, value: object, names: Collection[str]) -> None:
        if not isinstance(value, Mapping):
            raise RoundError(f"{message} must be a JSON object, not {_kind(value)}")
        unknown = sorted(str(name) for name in value if name not in names)
        if unknown:
            raise RoundError(f"{message} has no field {unknown[0]!r}; it has {', '.join(names)}")
        self._message = message
        self._value = value

    def text(self, name: str) -> str:
        """Return a string field."""
        return self._checked(name, str, "a string")

    def optional_text(self, name: str) -> str | None:
        """Return a string field, or ``None`` where it is null or missing."""
        return None if self._value.get(name) is None else self.text(name)

    def integer(self, name: str) -> int:
        """Return an integer field of at most 64 bits."""
        integer = self._checked(name, int, "an integer")
        if abs(integer) > _MAX_INTEGER:
            raise RoundError(f"{self._message}.{name} must be at most {_MAX_INTEGER} in size")
        return integer

    def number(self, name: str) -> float:
        """Return a finite number field."""
        if isinstance(self._value.get(name), int):
            return float(self.integer(name))
        number = self._checked(name, float, "a number")
        if not math.isfinite(number):
            raise RoundError(f"{self._message}.{name} must be finite, not {number}")
        return number

    def optional_number(self, name: str) -> float | None:
        """Return a finite number field, or ``None`` where it is null or missing."""
        return None if self._value.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        """Return a boolean field."""
        return self._checked(name, bool, "true or false")

    def items(self, name: str) -> list[object]:
        """Return an array field."""
        return self._checked(name, list, "an array")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return an array field of strings."""
        texts = tuple(item for item in self.items(name) if isinstance(item, str))
        if len(texts) != len(self.items(name)):
            raise RoundError(f"{self._message}.{name} must hold strings only")
        return texts

    def mapping(self, name: str) -> Mapping[str, object]:
        """Return an object field."""
        return self._checked(name, dict, "an object")

    def optional_mapping(self, name: str) -> Mapping[str, object] | None:
        """Return an object field, or ``None`` where it is null or missing."""
        return None if self._value.get(name) is None else self.mapping(name)

    def _checked(self, name: str, kind: type[_T], wanted: str) -> _T:
        if name not in self._value:
            raise RoundError(f"{self._message}.{name} is missing")
        value = self._value[name]
        # True is an int to Python, but no integer to JSON.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise RoundError(f"{self._message}.{name} must be {wanted}, not {_kind(value)}")
        return value


def check_field(message: object, field: str, is_allowed: bool, allowed: str) -> None:
    """Raise ``RoundError`` that names a message's field and its value unless it is allowed."""
    if not is_allowed:
        value = getattr(message, field)
        raise RoundError(f"{type(message).__name__}.{field} is {value!r}; allowed is {allowed}")


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
