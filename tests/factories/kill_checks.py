"""What must hold of a server that was killed: of its folder at once, and of itself once restarted.

What a kill left open is settled here, for the next life.
"""

from pathlib import Path

import torch

from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.model.tokenizer import Tokenizer
from collm.model.weights import load_weights
from collm.pacing.cost import QuantumCostModel
from collm.replica.courtesy import Courtesy
from collm.replica.job_builder import JobBuilder
from collm.replica.library import Library
from collm.store.data_folder import DataFolder
from collm.training.config import TrainingConfig
from factories.kill_clients import APPRENTICE, LEARNER, LIFE, STEADY, Client, ask, ask_by_stream
from factories.kill_ledger import Course, Ledger, Refused
from factories.replicas import BASE_MODEL, SAMPLES

MAX_VERSIONS = 100_000
"""More than there will be, so that whatever was served can be looked at."""
MAX_MODEL_LEN = 256
_NUM_ASKED = 3
"""Files and feedback that a restarted server is asked about, of each kind."""


class DiskCheck:
    """Looks at the data folder of a server that is dead, with the parts that it has itself.

    Args:
        checkpoint: The base model.
        data_dir: The server's data folder.
        training: What the server learns.
    """

    def __init__(self, checkpoint: Path, data_dir: Path, training: TrainingConfig) -> None:
        base = Checkpoint(checkpoint)
        self._base, self._data_dir, self._training = base, data_dir, training
        weights = load_weights(base, base.spec, torch.float32, torch.device("cpu"))
        self._decoder = Decoder(base.spec, weights, MAX_MODEL_LEN)
        self._tokenizer = Tokenizer(base.folder, base.spec.eos_token_ids)

    def check(self, ledger: Ledger) -> int:
        """Check everything; return the step that training goes on from."""
        _check_forgotten(ledger, self._data_dir)
        with DataFolder(self._data_dir, max_versions=MAX_VERSIONS, now_s=lambda: 0.0) as data:
            assert not list(self._data_dir.rglob(".new-*"))
            library = Library(data.versions, self._base.spec, BASE_MODEL, self._base.digest)
            _check_versions(ledger, data, library)
            _check_decisions(ledger, data)
            _check_files(ledger, data)
            _check_feedback(ledger, data)
            return self._check_training(ledger, data, library)

    def _check_training(self, ledger: Ledger, data: DataFolder, library: Library) -> int:
        """Build the jobs as a restart does: from all the feedback there is and nothing else."""
        builder = JobBuilder(
            decoder=self._decoder,
            tokenizer=self._tokenizer,
            data=data,
            library=library,
            datasets={job.data: SAMPLES for job in self._training.jobs},
            general=(),
            training=self._training,
            replica="replica",
            sizes=QuantumCostModel(),
            max_quantum_s=0.04,
        )
        steps = {}
        for record in data.jobs.unfinished():
            built = builder.build(record, Courtesy(is_busy=lambda: False))
            steps[record.adapter] = built.job.num_steps
            if record.adapter == LEARNER:
                texts = ledger.feedback.certain
                known = {key for key, text in texts.items() if text is not None}
                assert known <= built.feedback_ids
                assert not built.feedback_ids & (ledger.forgotten.keys() - known)
        return steps[LEARNER]


def _check_versions(ledger: Ledger, data: DataFolder, library: Library) -> None:
    """Whatever is published is whole, and whatever was served or brought is published."""
    published = {item.version: item.digest for item in data.versions.published()}
    for version in published:
        library.load(version)  # raises unless the factors have the digest
    assert ledger.served - {"base"} <= published.keys()
    assert ledger.digests.items() <= published.items()


def _check_decisions(ledger: Ledger, data: DataFolder) -> None:
    """The last decision says what is active, and whatever was served was decided before."""
    active, held, reached = data.decisions.active(), data.decisions.held(), set()
    for adapter in (LEARNER, APPRENTICE, STEADY):
        history = data.decisions.history(adapter)
        rows = [(str(row.kind), str(row.version)) for row in history if row.kind != "refusal"]
        reached |= {version for _, version in rows}
        last = rows[-1][1] if rows else "base"
        assert active.get(adapter, "base") == last
        if adapter == STEADY:
            ledger.courses.settle(STEADY, Course(active[STEADY], held.get(STEADY), tuple(rows)))
        if adapter == LEARNER:
            reasons = [row.reason for row in history if row.kind == "rollback"]
            assert reasons.count("asked for") >= ledger.num_rollbacks
    assert ledger.served - {"base"} <= reached


def _check_files(ledger: Ledger, data: DataFolder) -> None:
    there = {file.file_id for file in data.files.list(limit=MAX_VERSIONS).items}
    for file_id in ledger.files.keys:
        ledger.files.settle(file_id, data.files.read(file_id) if file_id in there else None)


def _check_feedback(ledger: Ledger, data: DataFolder) -> None:
    for feedback_id in ledger.feedback.keys:
        messages = data.feedback.get(feedback_id).messages
        text = None if messages is None else str(messages[-1]["content"])
        ledger.feedback.settle(feedback_id, text)
        assert data.feedback.get(feedback_id).is_deleted == (text is None)


def _check_forgotten(ledger: Ledger, data_dir: Path) -> None:
    """What was deleted is in no byte of the database or of its log."""
    content = b"".join(path.read_bytes() for path in data_dir.glob("collm.db*"))
    for feedback_id, text in ledger.feedback.certain.items():
        if text is None:
            assert ledger.forgotten[feedback_id].encode() not in content


def check_served(client: Client) -> None:
    """Ask a restarted server about what it had acknowledged, and for answers."""
    ledger, random = client.ledger, client.random
    _check_loaded(client)
    _settle_jobs(client)
    files = ledger.files.certain
    for file_id in random.sample(sorted(files), min(_NUM_ASKED, len(files))):
        response = client.http.get(f"/v1/files/{file_id}/content")
        if files[file_id] is None:
            assert response.status_code == 404
        else:
            assert response.content == files[file_id]
    feedback = ledger.feedback.certain
    for feedback_id in random.sample(sorted(feedback), min(_NUM_ASKED, len(feedback))):
        is_deleted = feedback[feedback_id] is None
        row = client.call("GET", f"/v1/feedback/{feedback_id}")
        assert row["is_deleted"] == is_deleted
        body = ledger.posted[feedback_id]
        refusal = _refusal(client, body)
        assert ("was deleted" if is_deleted else "exists already") in refusal
        assert (body["response_id"] if is_deleted else feedback_id) in refusal
    ask(client)
    ask_by_stream(client)


def _check_loaded(client: Client) -> None:
    rows = client.call("GET", "/adapters")["data"]
    assert {row["version"]: row["digest"] for row in rows}.items() >= client.ledger.digests.items()
    # What was published while the answer was made up is seen on disk by the next look.
    late = {row["version"] for row in rows if row["published_at_s"] is None}
    again = client.call("GET", "/adapters")["data"]
    assert late <= {row["version"] for row in again if row["published_at_s"] is not None}
    (active,) = (row["version"] for row in rows if row["adapter"] == STEADY and row["is_active"])
    assert active == client.ledger.courses[STEADY].active
    assert client.chat(STEADY)["system_fingerprint"] == active


def _settle_jobs(client: Client) -> None:
    """Settle every job, and take over one whose acknowledgement was cut off."""
    jobs = client.ledger.jobs
    for job in client.call("GET", "/v1/fine_tuning/jobs", params={"limit": 100})["data"]:
        if job["adapter"] == APPRENTICE and job["id"] not in jobs:
            jobs.note(job["id"], LIFE[job["status"]])
    for job_id in jobs.keys:
        job = client.call("GET", f"/v1/fine_tuning/jobs/{job_id}")
        jobs.settle(job_id, LIFE[job["status"]])


def _refusal(client: Client, body: dict[str, str]) -> str:
    try:
        client.post("/v1/feedback", **body)
    except Refused as refused:
        if refused.status != 409:
            raise
        return str(refused)
    raise AssertionError(f"{body} was taken twice")
