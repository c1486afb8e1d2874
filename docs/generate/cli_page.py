"""The commands of ``collm``, as their own help says it."""

import inspect
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from collm.cli.main import app
from pieces import cell, code, page, prose, table

_INTRO = """\
`collm COMMAND --help` prints the same in a terminal. Commands that talk to a running server find it
by `--url` or `COLLM_URL`; `COLLM_HOME` is the cache of models. What each exit code means: [errors
and exit codes](../operating.md#errors-and-exit-codes)."""


def cli_page() -> str:
    """Return the page."""
    group = get_command(app)
    context = group.make_context("collm", [], resilient_parsing=True)
    parts = [_INTRO, *_commands(group, context, ("collm",))]
    return page("Command line", "the commands in `src/collm/cli/`", *parts)


def _commands(group: Any, context: Any, path: tuple[str, ...]) -> Iterator[str]:
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        words = (*path, name)
        yield f"{'#' * len(words)} {' '.join(words)}"
        yield prose(inspect.cleandoc(command.help or ""))
        if hasattr(command, "list_commands"):
            inner = command.make_context(name, [], parent=context, resilient_parsing=True)
            yield from _commands(command, inner, words)
        else:
            yield from _command(command, context, words)


def _command(command: Any, context: Any, words: tuple[str, ...]) -> Iterator[str]:
    records = [(one, one.get_help_record(context)) for one in command.params]
    arguments = [record for one, record in records if record and one.param_type_name == "argument"]
    options = [record for one, record in records if record and one.param_type_name == "option"]
    usage = [*words, *(name for name, _ in arguments), *(["[OPTIONS]"] if options else [])]
    yield code(" ".join(usage))
    yield table(
        ("argument or option", "what"), [(code(name), what) for name, what in arguments + options]
    )
    if command.epilog:
        yield cell(command.epilog)
