"""What config dataclasses say about themselves: their fields' types and docstrings."""

import ast
import inspect
import textwrap
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def field_types(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields, in order."""
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


def nested_config(annotation: Any) -> type | None:
    """Return the dataclass that a type is, or that it is the optional of."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation
    if get_origin(annotation) in (Union, UnionType):
        found = [nested_config(option) for option in get_args(annotation)]
        return next((kind for kind in found if kind is not None), None)
    return None


def entry_config(annotation: Any) -> type | None:
    """Return the dataclass of a tuple's entries, ``tuple[Kind, ...]``."""
    return nested_config(get_args(annotation)[0]) if get_origin(annotation) is tuple else None


def choices(annotation: Any) -> tuple[Any, ...]:
    """Return the allowed values of a ``Literal``, also of an optional one; none for other types."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        return tuple(value for option in get_args(annotation) for value in choices(option))
    return ()


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstring under each field of a class, joined to one line."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            docs[field.target.id] = " ".join(after.value.value.split())
    return docs
