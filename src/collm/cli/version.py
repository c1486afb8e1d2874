"""``collm version``."""

from importlib.metadata import version as installed_version

import typer

app = typer.Typer(add_completion=False)


@app.command()
def version() -> None:
    """Print the version of collm."""
    typer.echo(installed_version("collm"))
