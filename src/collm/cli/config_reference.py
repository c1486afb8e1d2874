"""The configuration as text: the commented reference, and one run's resolved values."""

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import yaml

from collm.cli.config_fields import choices, entry_config, field_docs, field_types, nested_config
from collm.config import CollmConfig

_WIDTH = 96


def config_reference() -> str:
    """Return a YAML file of all defaults, each explained by the docstring under its field."""
    title = _comment(CollmConfig.__doc__ or "", "")
    lines = [*title, "", *_settings(CollmConfig, CollmConfig(), "")]
    return "\n".join(lines) + "\n"


def resolved_config(config: CollmConfig) -> str:
    """Return a run's configuration as YAML, without comments."""
    return yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True)


def _settings(kind: type, values: Any, indent: str) -> Iterator[str]:
    docs = field_docs(kind)
    for name, annotation in field_types(kind).items():
        value = getattr(values, name)
        nested = nested_config(annotation)
        if nested is not None and value is not None:
            yield ""
            yield from _comment(docs.get(name) or nested.__doc__ or "", indent)
            yield f"{indent}{name}:"
            yield from _settings(nested, value, indent + "  ")
            continue
        yield from _comment(_described(docs.get(name, ""), annotation), indent)
        yield f"{indent}{name}: {_scalar(value)}"
        entry = entry_config(annotation) or nested
        if entry is not None:
            yield from _entry(entry, indent + "  ")


def _entry(kind: type, indent: str) -> Iterator[str]:
    """Show the keys of a dataclass that no default holds, as comments."""
    yield from _comment(f"Keys: {kind.__doc__ or ''}", indent)
    docs = field_docs(kind)
    types = field_types(kind)
    for item in fields(kind):
        default = _default_text(item)
        text = _described(docs.get(item.name, ""), types[item.name])
        yield from _comment(f"  {item.name} ({default}): {text}", indent)


def _default_text(item: Any) -> str:
    if item.default is not MISSING:
        return _scalar(item.default)
    if item.default_factory is not MISSING:
        return _scalar(item.default_factory())
    return "required"


def _described(doc: str, annotation: Any) -> str:
    allowed = choices(annotation)
    return f"{doc} One of: {', '.join(map(_scalar, allowed))}.".strip() if allowed else doc


def _comment(text: str, indent: str) -> list[str]:
    prefix = f"{indent}# "
    text = text.replace("``", "`").rstrip()
    return textwrap.wrap(text, _WIDTH, initial_indent=prefix, subsequent_indent=prefix)


def _scalar(value: Any) -> str:
    plain = _plain(value)
    text = yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _plain(value: Any) -> Any:
    """Return a value as YAML's own types."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, PurePath) else value
