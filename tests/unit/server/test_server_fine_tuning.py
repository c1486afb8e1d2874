import asyncio
import time

import httpx
import openai
import pytest
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint

from collm.server.app import make_app
from collm.server.config import ServerConfig
from collm.store.jobs import JobStatus
from factories.fake_backends import fake_backends
from factories.fake_learning import FakeFineTuning, FakeUploads
from factories.fake_replica import BASE_MODEL, VERSION, FakeReplica
from factories.server_thread import running_server
from factories.waiting import WAIT_S

LINE = (
    b'{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}'
)
JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture(scope="module")
def uploads():
    return FakeUploads()


@pytest.fixture
def jobs(uploads, served):
    served.__init__(uploads)
    return served


@pytest.fixture(scope="module")
def served(uploads):
    return FakeFineTuning(uploads)


@pytest.fixture(scope="module")
def replica():
    return FakeReplica()


@pytest.fixture(scope="module")
def server(uploads, served, replica):
    backends = fake_backends(replica, uploads=uploads, fine_tuning=served)
    with running_server(backends) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=WAIT_S) as client:
        yield client


@pytest.fixture(scope="module")
def file_id(client):
    return client.files.create(file=LINE, purpose="fine-tune").id


def create(client, file_id, **given):
    return client.fine_tuning.jobs.create(model=BASE_MODEL, training_file=file_id, **given)


def test_job_is_created_as_asked(client, jobs, file_id):
    other = client.files.create(file=LINE, purpose="fine-tune").id
    job = create(
        client,
        file_id,
        validation_file=other,
        suffix="support",
        seed=7,
        metadata={"team": "a"},
        method={
            "type": "supervised",
            "supervised": {"hyperparameters": {"n_epochs": 3, "batch_size": "auto"}},
        },
    )
    FineTuningJob.model_validate(job.model_dump(), strict=True)
    (request,) = jobs.requests
    assert (request.adapter, request.base_model, request.seed) == ("support", BASE_MODEL, 7)
    assert (request.training_file, request.validation_file) == (file_id, other)
    assert (request.hyperparameters, request.metadata) == ({"n_epochs": 3}, {"team": "a"})
    assert not request.is_continuous
    assert (job.model, job.status, job.seed) == (BASE_MODEL, "running", 7)
    assert (job.training_file, job.validation_file) == (file_id, other)
    assert (job.fine_tuned_model, job.finished_at, job.error) == (None, None, None)
    assert job.hyperparameters.n_epochs == 3
    assert job.hyperparameters.batch_size == "auto"
    assert job.method.supervised.hyperparameters.n_epochs == 3
    assert job.metadata == {"team": "a"}
    assert client.fine_tuning.jobs.retrieve(job.id) == job


def test_job_under_way_says_how_far_it_is_and_when_it_may_end(http, jobs, replica, monkeypatch):
    job = jobs.add_job(adapter="support", started_at_s=time.time() - 100.0)
    live = {"job": job.job_id, "done_share": 0.25}
    monkeypatch.setattr(replica, "snapshot", lambda: {"adapters": {"support": live}})
    shown = http.get(f"{JOBS}/{job.job_id}").json()
    assert shown["progress"] == 0.25
    assert shown["estimated_finish"] == pytest.approx(time.time() + 300.0, abs=60.0)
    live["done_share"] = 0.01  # too early to tell
    shown = http.get(f"{JOBS}/{job.job_id}").json()
    assert (shown["progress"], shown["estimated_finish"]) == (0.01, None)
    live["job"] = "another"
    assert http.get(f"{JOBS}/{job.job_id}").json()["progress"] is None


def test_only_a_job_that_succeeded_is_done(http, jobs):
    shown = [
        http.get(f"{JOBS}/{jobs.add_job(adapter='a', status=status).job_id}").json()
        for status in (JobStatus.SUCCEEDED, JobStatus.CANCELLED)
    ]
    assert [job["progress"] for job in shown] == [1.0, None]
    assert [job["estimated_finish"] for job in shown] == [None, None]


def test_hyperparameters_may_stand_in_their_older_place(client, jobs, file_id):
    chosen = {"n_epochs": 2, "batch_size": 8, "learning_rate_multiplier": 1.5}
    job = create(client, file_id, hyperparameters=chosen)
    assert jobs.requests[0].hyperparameters == chosen
    assert job.hyperparameters.model_dump() == chosen


def test_own_hyperparameters_are_passed_on(client, jobs, file_id):
    chosen = {
        "rank": 4,
        "alpha": 8,
        "learning_rate": 1e-3,
        "tokens_per_step": 512,
        "weight": 2,
        "replay_share": 0,
    }
    job = create(client, file_id, hyperparameters=chosen)
    assert jobs.requests[0].hyperparameters == chosen
    assert job.hyperparameters.model_extra == chosen


def test_name_is_made_up_when_none_is_given(client, jobs, file_id):
    create(client, file_id)
    create(client, file_id)
    names = [request.adapter for request in jobs.requests]
    assert all(name.startswith("ft-") and len(name) == 11 for name in names)
    assert names[0] != names[1]


def test_continuous_job_needs_no_file(client, jobs):
    given = {"continuous": True, "adapter": "support"}
    job = client.fine_tuning.jobs.create(
        model=BASE_MODEL, training_file=openai.omit, extra_body=given
    )
    FineTuningJob.model_validate(job.model_dump(), strict=True)
    (request,) = jobs.requests
    assert (request.is_continuous, request.adapter, request.training_file) == (
        True,
        "support",
        None,
    )
    assert (job.training_file, job.model_extra["continuous"]) == ("", True)


def test_second_job_of_an_adapter_is_409(client, jobs, file_id):
    job = create(client, file_id, suffix="support")
    with pytest.raises(openai.ConflictError, match=job.id) as caught:
        create(client, file_id, suffix="support")
    assert caught.value.code == "job_exists"


def test_unknown_file_is_400_and_named(client, jobs):
    with pytest.raises(openai.BadRequestError, match="file-x") as caught:
        create(client, "file-x")
    assert caught.value.param == "training_file"


def test_job_is_paused_resumed_and_cancelled(client, jobs, file_id):
    job = create(client, file_id)
    assert client.fine_tuning.jobs.pause(job.id).status == "paused"
    assert client.fine_tuning.jobs.resume(job.id).status == "running"
    cancelled = client.fine_tuning.jobs.cancel(job.id)
    assert (cancelled.status, cancelled.finished_at) == ("cancelled", 1_700_000_004)
    for call in ("cancel", "pause", "resume"):
        with pytest.raises(openai.ConflictError, match=job.id):
            getattr(client.fine_tuning.jobs, call)(job.id)


def test_job_that_ended_names_the_model_to_ask_for(client, jobs):
    made = jobs.add_job(
        adapter="helper",
        status=JobStatus.SUCCEEDED,
        result=VERSION,
        num_trained_tokens=900,
        finished_at_s=1_700_000_009.5,
    )
    job = client.fine_tuning.jobs.retrieve(made.job_id)
    FineTuningJob.model_validate(job.model_dump(), strict=True)
    assert (job.fine_tuned_model, job.model_extra["version"]) == ("helper", VERSION)
    assert job.fine_tuned_model in [model.id for model in client.models.list()]
    assert (job.trained_tokens, job.finished_at) == (900, 1_700_000_009)


def test_job_that_published_nothing_names_no_model(client, jobs):
    made = jobs.add_job(adapter="helper", status=JobStatus.SUCCEEDED, finished_at_s=5.0)
    assert client.fine_tuning.jobs.retrieve(made.job_id).fine_tuned_model is None


def test_failed_job_says_why(client, jobs):
    error = {"code": "no_samples", "message": "none fits", "param": "training_file"}
    made = jobs.add_job(adapter="helper", status=JobStatus.FAILED, error=error, finished_at_s=5.0)
    job = client.fine_tuning.jobs.retrieve(made.job_id)
    assert job.error.model_dump() == error


def test_configured_job_shows_how_it_learns_and_no_path(client, jobs):
    made = jobs.add_job(
        adapter="helper",
        is_configured=True,
        is_continuous=True,
        settings={"data": "/private/chats.jsonl", "rank": 16, "seed": 3, "learning_rate": 1e-3},
    )
    job = client.fine_tuning.jobs.retrieve(made.job_id)
    assert "private" not in job.model_dump_json()
    assert job.hyperparameters.model_extra == {"rank": 16, "learning_rate": 1e-3}
    assert (job.seed, job.model_extra["configured"]) == (3, True)


def test_jobs_are_listed_page_by_page(client, jobs):
    made = [jobs.add_job(adapter=f"a{i}").job_id for i in range(5)]
    newest = client.fine_tuning.jobs.list(limit=2)
    assert [job.id for job in newest.data] == made[:2:-1]
    assert newest.has_more
    assert [job.id for job in newest] == made[::-1]


def test_jobs_are_found_by_metadata(client, jobs):
    wanted = jobs.add_job(adapter="a", metadata={"team": "a b", "run": ""}).job_id
    jobs.add_job(adapter="b", metadata={"team": "x"})
    found = client.fine_tuning.jobs.list(metadata={"team": "a b", "run": ""})
    assert [job.id for job in found] == [wanted]


def test_events_are_listed_page_by_page(client, jobs):
    job_id = jobs.add_job(adapter="a").job_id
    for step in range(25):
        jobs.add_event(job_id, f"step {step}", train_loss=float(step))
    first = client.fine_tuning.jobs.list_events(job_id)
    assert len(first.data) == 20
    events = list(first)
    FineTuningJobEvent.model_validate(events[0].model_dump(), strict=True)
    assert [event.message for event in events] == [f"step {step}" for step in range(24, -1, -1)]
    assert (events[0].type, events[0].level, events[0].data) == (
        "metrics",
        "info",
        {"train_loss": 24.0},
    )


def test_checkpoints_are_listed_page_by_page(client, jobs):
    job_id = jobs.add_job(adapter="helper").job_id
    for number in range(12):
        jobs.add_checkpoint(job_id, f"helper@{number}", number * 10, valid_loss=0.5)
    first = client.fine_tuning.jobs.checkpoints.list(job_id)
    assert len(first.data) == 10
    checkpoints = list(first)
    FineTuningJobCheckpoint.model_validate(checkpoints[0].model_dump(), strict=True)
    assert [item.step_number for item in checkpoints] == [n * 10 for n in range(11, -1, -1)]
    assert checkpoints[0].fine_tuned_model_checkpoint == "helper@11"
    assert checkpoints[0].metrics.valid_loss == 0.5
    assert {item.fine_tuning_job_id for item in checkpoints} == {job_id}


def test_unknown_job_is_404_everywhere(client, jobs):
    routes = client.fine_tuning.jobs
    for call in (
        routes.retrieve,
        routes.cancel,
        routes.pause,
        routes.resume,
        routes.list_events,
        routes.checkpoints.list,
    ):
        with pytest.raises(openai.NotFoundError, match="ftjob-x"):
            call("ftjob-x")


def test_unknown_model_is_404(client, jobs, file_id):
    with pytest.raises(openai.NotFoundError, match=BASE_MODEL) as caught:
        client.fine_tuning.jobs.create(model="gpt-4o-mini", training_file=file_id)
    assert caught.value.code == "model_not_found"


def test_adapter_as_model_is_refused_with_the_way_to_do_it(client, jobs, file_id):
    with pytest.raises(openai.BadRequestError, match="'adapter'") as caught:
        client.fine_tuning.jobs.create(model=VERSION, training_file=file_id)
    assert caught.value.param == "model"


BASE = {"model": BASE_MODEL, "training_file": "file-1"}
PARAMS = "hyperparameters"

BAD_BODIES = [
    # (fields beside the model and file, field named, words of the message)
    ({"model": None}, "model", "required"),
    ({"training_file": None}, "training_file", '"continuous" is true'),
    ({"training_file": None, "continuous": True, "validation_file": "f"}, "validation_file",
     "needs a 'training_file'"),
    ({"validation_file": "file-1"}, "validation_file", "another file"),
    ({"suffix": "../up"}, "suffix", "letters, digits"),
    ({"suffix": "a" * 65}, "suffix", "1 to 64"),
    ({"suffix": "a", "adapter": "b"}, "suffix", "differs from 'adapter'"),
    ({"sufix": "a"}, "sufix", "mean 'suffix'"),
    ({"seed": 1.5}, "seed", "integer"),
    ({"seed": -1}, "seed", "greater than or equal to 0"),
    ({"metadata": {"a": 1}}, "metadata.a", "string"),
    ({"metadata": {f"k{i}": "" for i in range(17)}}, "metadata", "at most 16"),
    ({"metadata": {"a": "v" * 513}}, "metadata.a", "at most 512"),
    ({"integrations": [{"type": "wandb"}]}, "integrations", "not supported yet"),
    ({"method": {"type": "dpo"}}, "method.type", 'allowed: "supervised"'),
    ({"method": {"type": "supervised", "dpo": {}}}, "method.dpo", "leave it out"),
    ({"method": {"type": "supervised", "supervised": {PARAMS: {"beta": 1}}}},
     f"method.supervised.{PARAMS}.beta", "allowed: "),
    ({"method": {"type": "supervised"}, PARAMS: {}}, PARAMS, "together with 'method'"),
    ({PARAMS: {"n_epochs": 0}}, f"{PARAMS}.n_epochs", "greater than or equal to 1"),
    ({PARAMS: {"n_epochs": "all"}}, f"{PARAMS}.n_epochs", "integer"),
    ({PARAMS: {"n_epochs": 2}, "continuous": True}, "n_epochs", "no last epoch"),
    ({PARAMS: {"batch_size": True}}, f"{PARAMS}.batch_size", "integer"),
    ({PARAMS: {"batch_size": 4, "tokens_per_step": 9}}, "batch_size", "together"),
    ({PARAMS: {"learning_rate": 1, "learning_rate_multiplier": 1}}, "learning_rate", "together"),
    ({PARAMS: {"learning_rate_multiplier": 0}}, f"{PARAMS}.learning_rate_multiplier", "than 0"),
    ({PARAMS: {"replay_share": 1}}, f"{PARAMS}.replay_share", "less than 1"),
    ({PARAMS: {"rank": 0}}, f"{PARAMS}.rank", "greater than or equal to 1"),
    ({PARAMS: {"n_epoch": 1}}, f"{PARAMS}.n_epoch", "mean 'n_epochs'"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "field", "words"), BAD_BODIES)
def test_bad_body_names_the_field(http, jobs, given, field, words):
    response = http.post(JOBS, json={**BASE, **given})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == field
    assert words in error["message"]
    assert jobs.requests == []


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"metadata": "null"}, "metadata"),
        ({"status": "running"}, "status"),
    ],
)
def test_bad_list_parameter_is_named(http, jobs, params, field):
    response = http.get(JOBS, params=params)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


def test_jobs_can_be_read_but_not_changed_once_the_step_loop_has_ended(uploads):
    replica, jobs = FakeReplica(), FakeFineTuning(uploads)
    replica.is_alive = False
    job_id = jobs.add_job(adapter="a").job_id
    backends = fake_backends(replica, uploads=uploads, fine_tuning=jobs)

    async def statuses():
        # Without a listener, which such a replica's server would soon close.
        transport = httpx.ASGITransport(make_app(backends, ServerConfig()))
        async with httpx.AsyncClient(transport=transport, base_url="http://replica") as http:
            read = (await http.get(f"{JOBS}/{job_id}")).status_code
            changes = [await http.post(JOBS, json=BASE)]
            for verb in ("cancel", "pause", "resume"):
                changes.append(await http.post(f"{JOBS}/{job_id}/{verb}"))
            return read, [change.status_code for change in changes]

    assert asyncio.run(statuses()) == (200, [503] * 4)
    assert jobs.requests == []


def test_routes_and_their_fields_are_documented(http):
    paths = http.get("/openapi.json").json()["paths"]
    assert {"get", "post"} <= paths[JOBS].keys() & paths["/v1/files"].keys()
    listed = {parameter["name"] for parameter in paths[JOBS]["get"]["parameters"]}
    assert listed == {"after", "limit", "metadata"}
    body = paths[JOBS]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "auto" in str(body["properties"]["hyperparameters"])
