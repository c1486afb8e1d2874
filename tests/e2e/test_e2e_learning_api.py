"""A job, feedback and versions over HTTP, by the usual clients, with a restart in between."""

import io
import json
import zipfile

import httpx
import openai
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from collm.cli.replica_process import backends_of
from collm.replica.config import ReplicaConfig
from factories.checkpoints import tiny_checkpoint
from factories.replicas import BASE_MODEL, CHATS, open_tiny_replica
from factories.server_thread import running_server
from factories.waiting import wait_until

QUESTION = [{"role": "user", "content": "Number 7?"}]
HYPERPARAMETERS = {
    "rank": 4,
    "learning_rate": 3e-3,
    "tokens_per_step": 200,
}


def jsonl(chats):
    return "".join(json.dumps({"messages": chat}) + "\n" for chat in chats).encode()


class Served:
    """A replica with its server and both clients."""

    def __init__(self, replica, server):
        self.replica, self.url = replica, server.url
        self.openai = openai.OpenAI(
            base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120
        )
        self.http = httpx.Client(base_url=server.url, timeout=120)

    def post(self, path, status=200, **body):
        response = self.http.post(path, json=body)
        assert response.status_code == status, response.text
        return response

    def chat(self, model="tutor"):
        return self.openai.chat.completions.create(
            model=model, messages=QUESTION, temperature=0, max_tokens=12
        )

    def active(self, adapter="tutor"):
        rows = self.http.get("/adapters").json()["data"]
        return {row["version"] for row in rows if row["adapter"] == adapter and row["is_active"]}

    def checkpoints(self, job_id):
        return self.openai.fine_tuning.jobs.checkpoints.list(job_id).data

    def close(self):
        self.openai.close()
        self.http.close()


@pytest.fixture
def folders(tmp_path):
    """The checkpoint, the data folder, and the folder that adapters may be loaded from."""
    imports = tmp_path / "imports"
    imports.mkdir()
    return tiny_checkpoint(tmp_path / "model", "llama"), tmp_path / "data", imports


@pytest.fixture
def serve(folders):
    """Call ``serve(use)`` to serve the folders, do something, and close everything."""
    checkpoint, data_dir, imports = folders
    config = ReplicaConfig(
        data_dir=str(data_dir),
        threads=1,
        min_promotion_interval_s=0.0,
        import_root=str(imports),
        max_versions=500,
    )

    def run(use):
        replica = open_tiny_replica(checkpoint, data_dir, replica=config)
        try:
            with running_server(backends_of(replica)) as server:
                served = Served(replica, server)
                try:
                    return use(served)
                finally:
                    served.close()
        finally:
            replica.close()

    return run


def start_job(served):
    upload = served.openai.files.create
    training = upload(file=("chats.jsonl", jsonl(CHATS)), purpose="fine-tune")
    held_out = [
        [
            {"role": "user", "content": f"Number {number}?"},
            {"role": "assistant", "content": f"It is {'odd' if number % 2 else 'even'}."},
        ]
        for number in range(200, 230)
    ]
    validation = upload(file=("held-out.jsonl", jsonl(held_out)), purpose="fine-tune")
    return served.openai.fine_tuning.jobs.create(
        model=BASE_MODEL,
        training_file=training.id,
        validation_file=validation.id,
        extra_body={
            "adapter": "tutor",
            "continuous": True,
            "hyperparameters": HYPERPARAMETERS,
        },
    )


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapter_is_learned_corrected_moved_and_survives_a_restart(serve, folders):
    seen = {}

    def learn(served):
        job = start_job(served)
        jobs = served.openai.fine_tuning.jobs
        wait_until(lambda: len(served.checkpoints(job.id)) >= 2)
        assert jobs.retrieve(job.id).status == "running"
        with pytest.raises(openai.ConflictError, match=job.id):
            start_job(served)
        with pytest.raises(openai.ConflictError, match=job.id):
            served.openai.files.delete(job.training_file)
        messages = [event.message for event in jobs.list_events(job.id, limit=100).data]
        assert any("better" in message for message in messages)

        jobs.pause(job.id)
        assert jobs.retrieve(job.id).status == "paused"
        give_feedback(served, seen)
        rolled_back = served.post("/adapters/rollback", adapter="tutor").json()["version"]
        assert served.active() == {rolled_back}
        row = served.http.get("/adapters/tutor/history").json()["data"][-1]
        assert (row["kind"], row["version"]) == ("rollback", rolled_back)
        assert row["previous"] != rolled_back
        seen.update(job=job.id, active=rolled_back)
        move(served, folders, seen)

    def go_on(served):
        job = served.openai.fine_tuning.jobs.retrieve(seen["job"])
        assert (job.status, job.model_extra["adapter"]) == ("paused", "tutor")
        assert served.active() == {seen["active"]}
        assert served.chat().choices[0].message.content == seen["answer"]
        assert served.active("twin") == set()
        with pytest.raises(openai.NotFoundError):
            served.chat("twin")
        feedback = served.http.get(f"/v1/feedback/{seen['deleted']}").json()
        assert feedback["is_deleted"]
        served.post("/v1/feedback", 409, **seen["body"])
        history = served.http.get("/adapters/tutor/history").json()["data"]
        assert history[-1]["kind"] == "rollback"
        served.openai.fine_tuning.jobs.resume(seen["job"])
        wait_until(lambda: served.active() != {seen["active"]})
        cancelled = served.openai.fine_tuning.jobs.cancel(seen["job"])
        assert (cancelled.status, cancelled.fine_tuned_model) == ("cancelled", "tutor")

    serve(learn)
    serve(go_on)


def give_feedback(served, seen):
    answer = served.chat()
    body = {"response_id": answer.id, "answer": "It is odd, as 1 is."}
    feedback = served.post("/v1/feedback", **body).json()
    assert (feedback["adapter"], feedback["weight"]) == ("tutor", 1.0)
    assert served.post("/v1/feedback", 409, **body).json()["error"]["code"] == "duplicate"
    deleted = served.http.delete(f"/v1/feedback/{feedback['id']}").json()
    assert deleted["deleted"]
    refused = served.post("/v1/feedback", 409, **body).json()["error"]["message"]
    assert "was deleted" in refused
    base = served.openai.chat.completions.create(model=BASE_MODEL, messages=QUESTION, max_tokens=4)
    message = served.post("/v1/feedback", 404, response_id=base.id, rating=1).json()
    assert "none by the base model, which does not learn" in message["error"]["message"]
    seen.update(deleted=feedback["id"], body=body)


def move(served, folders, seen):
    """Export the active version, use it in ``peft``, and bring it back under other names."""
    checkpoint, _, imports = folders
    seen["answer"] = served.chat().choices[0].message.content
    content = served.http.get("/adapters/export", params={"version": seen["active"]}).content
    zipfile.ZipFile(io.BytesIO(content)).extractall(imports / "copy")
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tuned = PeftModel.from_pretrained(model, imports / "copy").eval()
    prompt = served.replica.client.tokenizer.encode_chat(QUESTION)
    output = tuned.generate(
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0
    )
    expected = served.replica.client.tokenizer.decode(output[0, len(prompt) :].tolist())
    assert seen["answer"] == expected

    names = ("adapter_config.json", "adapter_model.safetensors")
    files = {name: (name, (imports / "copy" / name).read_bytes()) for name in names}
    form = {"name": "twin", "promote": "true"}
    imported = served.http.post("/adapters/import", data=form, files=files)
    assert imported.status_code == 200, imported.text
    assert imported.json()["version"] == "twin@1"
    assert served.chat("twin").choices[0].message.content == seen["answer"]
    load = {"lora_name": "twin", "lora_path": str(imports / "copy")}
    served.post("/v1/load_lora_adapter", 400, **load)
    served.post("/v1/load_lora_adapter", load_inplace=True, **load)
    assert served.active("twin") == {"twin@1"}
    served.post("/v1/unload_lora_adapter", lora_name="twin")
    with pytest.raises(openai.NotFoundError):
        served.chat("twin")
    assert "twin@1" not in {info.version for info in served.replica.client.versions()}
    served.post("/v1/unload_lora_adapter", 409, lora_name="tutor")
