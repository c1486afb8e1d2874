"""Options of a command as one value: a dataclass whose fields are typer's annotated options."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def takes(kind: Callable[..., T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Have typer ask for every field of a dataclass, and call the command with one value of it.

    A command with many options is else one long signature, and says them again wherever it passes
    them on.

    Args:
        kind: A dataclass; each field is ``Annotated`` with its ``typer.Option`` and has a default.
    """

    def decorate(command: Callable[[T], None]) -> Callable[..., None]:
        def called(**options: Any) -> None:
            command(kind(**options))

        hints = get_type_hints(kind, include_extras=True)
        parameters = [
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=one.default,
                annotation=hints[one.name],
            )
            for one in fields(kind)  # type: ignore[arg-type]
        ]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        return called

    return decorate
