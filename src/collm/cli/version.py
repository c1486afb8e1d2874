"""``collm version``."""

import platform
from importlib.metadata import version as installed_version

import typer

from collm.cli.api_client import AsJson
from collm.cli.listing import print_json

app = typer.Typer(add_completion=False)


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version of collm; as JSON, those of Python and torch too."""
    if as_json:
        versions = {name: installed_version(name) for name in ("collm", "torch")}
        print_json({**versions, "python": platform.python_version()})
        return
    typer.echo(installed_version("collm"))
