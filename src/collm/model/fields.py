"""Typed reading of a JSON object whose errors name the field, the value and what is allowed."""

import sys
from collections.abc import Collection, Mapping
from typing import Any

from collm.errors import ModelError


class Fields:
    """One JSON object from a checkpoint's configuration; a field that is null counts as absent.

    Args:
        values: The parsed JSON object.
        where: How messages call the object, such as ``config.json``.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def get(self, key: str) -> Any:
        """Return the raw value, ``None`` when absent."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer; raises ``ModelError`` for anything else."""
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(key, "a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive, finite number; raises ``ModelError`` for anything else."""
        value = self._present(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= sys.float_info.max:
            raise self.error(key, "a positive, finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean; raises ``ModelError`` for anything else."""
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def choice(self, key: str, allowed: Collection[str], default: str | None = None) -> str:
        """Return one of ``allowed``; raises ``ModelError`` for anything else."""
        value = self._present(key, default)
        if not isinstance(value, str) or value not in allowed:
            raise self.error(key, f"one of {', '.join(sorted(allowed))}")
        return value

    def child(self, key: str) -> "Fields | None":
        """Return a nested object, ``None`` when absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, "an object")
        return Fields(value, f"{self.where}: {key}")

    def error(self, key: str, allowed: str) -> ModelError:
        """Build the error for a field whose value is not understood."""
        return ModelError(
            f"{self.where}: {key} = {self.get(key)!r} is not supported; need {allowed}"
        )

    def _present(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is not None:
            return value
        if default is None:
            raise ModelError(f"{self.where}: {key} is missing")
        return default
