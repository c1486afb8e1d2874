"""``collm serve``: one replica, or several behind one address, that serve and learn."""

import json
import logging
from importlib import import_module
from typing import Annotated

import typer

from collm.cli.cluster_settings import with_replicas
from collm.cli.config_file import load_config
from collm.cli.config_options import ConfigFile, Overrides
from collm.cli.config_reference import config_reference, resolved_config
from collm.cli.training_jobs import with_jobs

app = typer.Typer(add_completion=False)


@app.command(
    epilog=(
        "Examples: `collm serve --port 8001`, or "
        "`collm serve --config my.yaml --set pacing.tpot_s=0.2`."
    )
)
def serve(
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    model: Annotated[
        str | None,
        typer.Option(help="Base model: a folder, a .gguf file, a known name or a hub id."),
    ] = None,
    quantization: Annotated[
        str | None,
        typer.Option(metavar="int8|int4", help="Round the base weights to 8 or to 4 bits."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes a free one.")] = None,
    train: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DATA",
            help="Fine-tune adapter NAME on DATA, a chat-format JSONL file or a shipped set "
            "(clinc150, medquad, snips), while serving; may be given several times.",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Replicas behind one address, each a process of its own; names, folders and "
            "training data of their own are set in cluster.replicas.",
        ),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print every setting with its explanation, and exit."),
    ] = False,
) -> None:
    """Serve a model over the OpenAI API, and fine-tune it in the time its objectives leave over.

    Settings come from --config, then --set, then the options named here. When the server is ready
    it prints its address; any OpenAI client can use it. Ctrl-C or SIGTERM lets open answers end
    first; a second one ends them at once.
    """
    if print_config:
        typer.echo(config_reference(), nl=False)
        return
    named = {
        "model.source": model,
        "model.quantization": quantization,
        "server.host": host,
        "server.port": port,
    }
    chosen = [f"{key}={json.dumps(value)}" for key, value in named.items() if value is not None]
    config = with_replicas(load_config(config_file, [*(overrides or []), *chosen]), replicas)
    # In a cluster each replica gets its jobs from here, seeded as its own.
    resolved = config if config.cluster.replicas else with_jobs(config, train or [])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    typer.echo(
        f"# resolved configuration (seed {config.seed})\n{resolved_config(resolved)}", err=True
    )
    # Loaded only now, so that a wrong setting is answered before torch takes its seconds.
    if config.cluster.replicas:
        import_module("collm.cli.parent_process").run_parent(config, train or [])
    else:
        import_module("collm.cli.replica_process").run_replica(resolved)
