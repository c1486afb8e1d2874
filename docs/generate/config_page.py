"""Every setting, from the configuration's dataclasses and the docstrings under their fields."""

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

import yaml

from collm.cli.config_fields import choices, entry_config, field_docs, field_types, nested_config
from collm.config import CollmConfig
from pieces import code, page, prose, table

_INTRO = """\
`collm serve --config FILE` reads YAML; `--set pacing.tpot_s=0.2` changes one setting, numbers
selecting from lists (`training.jobs.0.rank`). An unknown key is an error that names the nearest
known one. `collm serve --print-config` prints the same as commented YAML, which is
`configs/default.yaml` in the repository."""
_REQUIRED = object()


def config_page() -> str:
    """Return the page."""
    return page("Configuration", "`src/collm/**/config.py`", _INTRO, *_root())


def _root() -> Iterator[str]:
    types, docs = field_types(CollmConfig), field_docs(CollmConfig)
    defaults = CollmConfig()
    plain = [name for name in types if nested_config(types[name]) is None]
    yield table(_HEADER, (_row(name, types[name], getattr(defaults, name), docs) for name in plain))
    for name, kind in types.items():
        section = nested_config(kind)
        if section is not None:
            yield f"## {name}"
            yield prose(docs.get(name) or section.__doc__ or "")
            yield from _section(name, section, getattr(defaults, name))


_HEADER = ("setting", "default", "what")


def _section(path: str, kind: type, values: Any) -> Iterator[str]:
    yield table(_HEADER, _rows(kind, values, ""))
    for name, entry, keys in _entries(path, kind):
        yield f"### {name}"
        yield prose(f"A list. {entry.__doc__ or ''}")
        yield table(_HEADER, keys)


def _rows(kind: type, values: Any, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Name each setting by its path within its section."""
    types, docs = field_types(kind), field_docs(kind)
    for item in fields(kind):  # type: ignore[arg-type]
        nested = nested_config(types[item.name])
        value = _default(item) if values is None else getattr(values, item.name)
        if nested is not None and value is not None:
            yield from _rows(nested, value, f"{prefix}{item.name}.")
        else:
            yield _row(item.name, types[item.name], value, docs, prefix)


def _row(
    name: str, kind: Any, value: Any, docs: dict[str, str], prefix: str = ""
) -> tuple[str, str, str]:
    allowed = choices(kind)
    listed = f" One of {', '.join(code(_text(one)) for one in allowed)}." if allowed else ""
    default = "required" if value is _REQUIRED else code(_text(value))
    return code(prefix + name), default, prose(docs.get(name, "")) + listed


def _default(item: Any) -> Any:
    if item.default is not MISSING:
        return item.default
    return _REQUIRED if item.default_factory is MISSING else item.default_factory()


def _entries(path: str, kind: type) -> Iterator[tuple[str, type, Any]]:
    """Find the lists of a section, wherever they are nested."""
    for name, annotation in field_types(kind).items():
        nested, entry = nested_config(annotation), entry_config(annotation)
        if entry is not None:
            yield f"{path}.{name}", entry, _rows(entry, None, "")
        elif nested is not None:
            yield from _entries(f"{path}.{name}", nested)


def _text(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")
