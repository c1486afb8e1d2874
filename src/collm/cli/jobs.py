"""``collm jobs``: the fine-tuning jobs of a running server."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from collm.cli.api_client import DEFAULT_URL, ApiClient, AsJson, ServerError, Url, connect, segment
from collm.cli.exit_codes import ExitCode
from collm.cli.files import upload
from collm.cli.job_tables import events_table, job_rows, jobs_table
from collm.cli.job_watch import follow, latest_open, outcome
from collm.cli.listing import print_json, print_object, print_table, say
from collm.errors import ConfigError
from collm.workload.samples import SHIPPED_SETS

app = typer.Typer(
    help="Start fine-tuning jobs on a running server, and steer them.",
    epilog=(
        "Examples: `collm jobs create --name support --train support.jsonl`, "
        "`collm jobs create --name support --continuous`, `collm jobs list`, "
        "`collm jobs watch`."
    ),
    no_args_is_help=True,
    add_completion=False,
)

JobId = Annotated[str, typer.Argument(metavar="ID", help="An id from `collm jobs list`.")]
Limit = Annotated[int, typer.Option(min=1, help="Most rows shown, newest first.")]

AsJsonLines = Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")]

_JOBS = "/v1/fine_tuning/jobs"
_MAX_LOOKED_AT = 100
"""Jobs among which the newest open one is looked for."""


@app.command(name="list", epilog="Example: `collm jobs list --json`.")
def list_(limit: Limit = 20, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the jobs, those of the configuration included."""
    with connect(url) as client:
        rows, has_more = client.list_objects(_JOBS, limit=limit)
    if as_json:
        print_json(rows)
        return
    empty = "No jobs yet: `collm jobs create --help` shows how to start one."
    print_table(jobs_table(rows), empty=empty, has_more=has_more)


@app.command(epilog="Example: `collm jobs show ftjob-0123456789abcdef01234567`.")
def show(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show everything about one job."""
    with connect(url) as client:
        job = client.get(f"{_JOBS}/{segment(job_id)}")
    if as_json:
        print_json(job)
    else:
        print_object(job_rows(job))


@app.command(
    epilog=(
        "Examples: `collm jobs create --name support --train support.jsonl --set n_epochs=3`, "
        "`collm jobs create --name support --train support.jsonl --continuous`."
    )
)
def create(
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Adapter to train; the server makes up a missing one."),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A JSONL file, which is uploaded, or the id of an uploaded one."
        ),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Likewise; without it a share of the training file is held out."
        ),
    ] = None,
    continuous: Annotated[
        bool,
        typer.Option(
            "--continuous",
            help="Never end, and learn from feedback as it comes; needs no training file.",
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A hyperparameter: n_epochs, batch_size, learning_rate_multiplier, learning_rate, "
            "rank, alpha, tokens_per_step, weight, replay_share; may be given several times.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the order of samples repeatable.")] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A note kept with the job; may be given several times."
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Start a fine-tuning job; prints its id."""
    if train is None and not continuous:
        raise ConfigError("--train is missing; only a job with --continuous goes without")
    options: dict[str, Any] = {
        "adapter": name,
        "hyperparameters": {key: _number(text) for key, text in _split("--set", settings)},
        "seed": seed,
        "metadata": dict(_split("--metadata", metadata)),
        "continuous": continuous,
    }
    with connect(url) as client:
        model = _base_model(client)
        files = {
            "training_file": _file_id(client, train),
            "validation_file": _file_id(client, validation),
        }
        body = {"model": model, **files, **options}
        job = client.post(_JOBS, {key: value for key, value in body.items() if _is_given(value)})
    say(job, job["id"], as_json=as_json)


@app.command(epilog="Example: `collm jobs cancel ftjob-0123456789abcdef01234567`.")
def cancel(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """End a job; the versions that it published stay."""
    _act(url, job_id, "cancel", as_json=as_json)


@app.command(epilog="Example: `collm jobs pause ftjob-0123456789abcdef01234567`.")
def pause(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Let a job rest, so that others and serving get its time."""
    _act(url, job_id, "pause", as_json=as_json)


@app.command(epilog="Example: `collm jobs resume ftjob-0123456789abcdef01234567`.")
def resume(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Let a paused job go on where it was."""
    _act(url, job_id, "resume", as_json=as_json)


@app.command(epilog="Example: `collm jobs events ftjob-0123456789abcdef01234567 --limit 5`.")
def events(
    job_id: JobId, limit: Limit = 20, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Show what happened to a job: its losses, what the gate decided, and why it ended."""
    with connect(url) as client:
        rows, has_more = client.list_objects(f"{_JOBS}/{segment(job_id)}/events", limit=limit)
    if as_json:
        print_json(rows)
        return
    print_table(events_table(rows), empty="Nothing happened to it yet.", has_more=has_more)


@app.command(epilog="Examples: `collm jobs watch`, `collm jobs watch ID --json`.")
def watch(
    job_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="A job's id; without it, the newest job that has not ended."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Most earlier events shown first.")] = 10,
    url: Url = DEFAULT_URL,
    as_json: AsJsonLines = False,
) -> None:
    """Show what happens to a job as it happens, until it ends; Ctrl-C leaves it alone.

    Ends with 0 if the job succeeded, with 1 if it failed or was cancelled.
    """
    with connect(url) as client:
        found = job_id or latest_open(client.list_objects(_JOBS, limit=_MAX_LOOKED_AT)[0])
        path = f"{_JOBS}/{segment(found)}"
        job = follow(client, path, num_before=limit, as_json=as_json)
    typer.echo(outcome(job), err=True)
    if job["status"] != "succeeded":
        raise typer.Exit(ExitCode.FAILED)


def _act(url: str, job_id: str, verb: str, *, as_json: bool) -> None:
    with connect(url) as client:
        job = client.post(f"{_JOBS}/{segment(job_id)}/{verb}")
    say(job, f"{job['id']} is {job['status']}", as_json=as_json)


def _base_model(client: ApiClient) -> str:
    """Return the name of the model that the server's adapters are for."""
    for card in client.get("/v1/models")["data"]:
        if card.get("parent") is None:
            return str(card["id"])
    raise ServerError("the server lists no base model to fine-tune")


def _file_id(client: ApiClient, given: str | None) -> str | None:
    """Return the id of a file that is uploaded already, or upload it now."""
    if given is None or (given.startswith("file-") and not Path(given).exists()):
        return given
    if given in SHIPPED_SETS and not Path(given).exists():
        raise ConfigError(
            f"{given!r} is a set that ships with collm, for `collm serve --train NAME={given}`; "
            "a job needs a file"
        )
    return str(upload(client, Path(given))["id"])


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value != {}


def _split(option: str, texts: list[str] | None) -> list[tuple[str, str]]:
    """Return the keys and values of ``KEY=VALUE`` texts."""
    found = [text.partition("=") for text in texts or []]
    for key, sign, value in found:
        if not (key and sign and value):
            raise ConfigError(f"{option} is {key + sign + value!r}; it must be KEY=VALUE")
    return [(key, value) for key, _, value in found]


def _number(text: str) -> float | int | str:
    """Return a number where ``text`` is one; the API knows texts such as ``auto`` too."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
