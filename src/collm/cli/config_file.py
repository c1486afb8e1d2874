"""From a YAML file and ``--set`` overrides to a configuration, with errors that name the field."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from collm.cli.config_fields import entry_config, field_types, nested_config
from collm.config import CollmConfig
from collm.errors import ConfigError

C = TypeVar("C")


class _Loader(yaml.SafeLoader):
    """YAML with 1e-3 as a number, as YAML 1.2 has it, and without repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Read a mapping; raises when a key comes twice, which would drop the first in silence."""
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a plain text", key_node.start_mark
                )
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} comes twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+"), list("-+0123456789")
)


def load_config(path: Path | None = None, overrides: Iterable[str] = ()) -> CollmConfig:
    """Return the configuration of a file with overrides on top; defaults for the rest.

    Args:
        path: YAML file; ``None`` starts from the defaults.
        overrides: ``a.b=value`` each, the value written as in YAML; a number selects from a list.

    Raises:
        ConfigError: The file cannot be read; a key is unknown; a value is wrong.
    """
    data = {} if path is None else _read_file(path)
    for override in overrides:
        _apply(data, override)
    return read_config(CollmConfig, data)


def read_config(kind: type[C], data: Mapping[str, Any], path: str = "") -> C:
    """Build a config dataclass from plain values; raises ``ConfigError`` naming the full path."""
    types = field_types(kind)
    for key in data:
        if key not in types:
            raise ConfigError(_unknown(_join(path, key), str(key), list(types)))
    missing = [f.name for f in fields(kind) if _is_required(f) and f.name not in data]  # type: ignore[arg-type]
    if missing:
        raise ConfigError(f"{_join(path, missing[0])} is required")
    values = {key: _value(types[key], value, _join(path, key)) for key, value in data.items()}
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(_with_path(str(error), path, types)) from error


def _with_path(message: str, path: str, names: Iterable[str]) -> str:
    """Lead a room's own message with the full path of the field that it names."""
    if not path or message.startswith(path):
        return message
    is_field = re.split(r"\W", message, maxsplit=1)[0] in names
    return f"{path}.{message}" if is_field else f"{path}: {message}"


def _is_required(item: Any) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _unknown(path: str, key: str, allowed: list[str]) -> str:
    near = get_close_matches(key, allowed, n=1)
    hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(allowed)}"
    return f"{path} is not a setting; {hint}"


def _value(annotation: Any, value: Any, path: str) -> Any:
    kind = nested_config(annotation)
    if kind is not None and not (value is None and kind is not annotation):
        if not isinstance(value, Mapping):
            allowed = ", ".join(field_types(kind))
            raise ConfigError(f"{path} is {value!r}; it must be a mapping with keys of: {allowed}")
        return read_config(kind, value, path)
    entry = entry_config(annotation)
    if entry is not None:
        if not isinstance(value, list):
            raise ConfigError(f"{path} is {value!r}; it must be a list")
        return tuple(_value(entry, item, f"{path}[{i}]") for i, item in enumerate(value))
    return _leaf(annotation, value, path)


def _leaf(annotation: Any, value: Any, path: str) -> Any:
    # Through JSON, because strict JSON takes a list for a tuple and text for a path, but no text
    # for a number.
    try:
        return TypeAdapter(annotation).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        reasons = dict.fromkeys(item["msg"] for item in error.errors())
        what = "; or: ".join(reason[:1].lower() + reason[1:] for reason in reasons)
    raise ConfigError(f"{path} is {value!r}; {what}")


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error
    data = _parse(text, str(path))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping of settings, not {type(data).__name__}")
    return data


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as a month of 13
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where} is not valid YAML: {reason}") from error


def _apply(data: dict[str, Any], override: str) -> None:
    """Set one value in place, making the mappings on its way."""
    key, equals, text = override.partition("=")
    steps = key.strip().split(".")
    if not equals or not all(steps):
        raise ConfigError(f"--set {override}: must be a.b=value, as in server.port=8001")
    here: Any = data
    for done, step in enumerate(steps[:-1], 1):
        here = _descend(here, step, ".".join(steps[:done]))
    value = _parse(text, f"--set {override}")
    if isinstance(here, list):
        here[_index(here, steps[-1], key)] = value
    else:
        here[steps[-1]] = value


def _descend(here: Any, step: str, path: str) -> Any:
    if isinstance(here, list):
        inner = here[_index(here, step, path)]
    elif here.get(step) is None:
        inner = here[step] = {}
    else:
        inner = here[step]
    if not isinstance(inner, dict | list):
        raise ConfigError(f"{path} is {inner!r}; it has no settings inside")
    return inner


def _index(entries: list[Any], step: str, path: str) -> int:
    if not step.isdecimal() or int(step) >= len(entries):
        raise ConfigError(f"{path}: {step} must be the number of an entry, below {len(entries)}")
    return int(step)
