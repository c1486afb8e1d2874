"""JSON as the database keeps it."""

import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(value: Any) -> str:
    """Return ``value`` as JSON; NaN and infinities become ``"nan"``, ``"inf"``, ``"-inf"``.

    Raises:
        TypeError: It holds something that JSON cannot.
    """
    return json.dumps(_writable(value), allow_nan=False)


def _writable(value: Any) -> Any:
    """Return ``value`` with texts for the floats that JSON cannot write."""
    if isinstance(value, Mapping):
        return {key: _writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
