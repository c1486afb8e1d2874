"""``collm doctor``: whether this machine can run collm as it is configured."""

from importlib import import_module
from typing import Annotated

import typer

from collm.cli.api_client import AsJson
from collm.cli.cluster_settings import with_replicas
from collm.cli.config_file import load_config
from collm.cli.config_options import ConfigFile, Overrides
from collm.cli.doctor_report import Finding, findings_json, findings_table, is_fit
from collm.cli.exit_codes import ExitCode
from collm.cli.listing import print_json, print_table
from collm.cli.waiting import waiting
from collm.config import CollmConfig

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Examples: `collm doctor`, `collm doctor --config my.yaml --replicas 2 --json`."
)
def doctor(
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Replicas, as for `collm serve`.")
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Look for Ray too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check this machine: what is installed, memory, port, folders, model; say what to fix.

    Takes the settings that `collm serve` will be given. Nothing is fetched, made or changed. The
    exit code is 1 when something has to be fixed.
    """
    config = with_replicas(load_config(config_file, overrides or []), replicas)
    with waiting("looking"):
        findings = _look(config, wants_ray=ray)
    if as_json:
        print_json(findings_json(findings))
    else:
        print_table(findings_table(findings), empty="")
    raise typer.Exit(ExitCode.DONE if is_fit(findings) else ExitCode.FAILED)


def _look(config: CollmConfig, *, wants_ray: bool) -> list[Finding]:
    # Loaded only now: torch takes its seconds.
    software = import_module("collm.cli.doctor_software")
    memory = import_module("collm.cli.doctor_memory")
    places = import_module("collm.cli.doctor_places")
    return [
        *software.check_software(config, wants_ray=wants_ray),
        memory.check_memory(config, places.cache_dir(), memory.available_bytes()),
        *places.check_places(config),
    ]
