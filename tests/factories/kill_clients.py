"""What the clients of a server that gets killed do, without end; each notes what it may rely on."""

import json
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import httpx

from factories.kill_ledger import Ledger, Refused
from factories.replicas import BASE_MODEL, CHATS

LEARNER, APPRENTICE, STEADY, VISITOR = "tutor", "apprentice", "steady", "visitor"
"""Adapters: learns by configuration, by the jobs of a client, only served, only imported."""
JOB = {"rank": 4, "learning_rate": 3e-3, "tokens_per_step": 200}
LIFE = {
    "validating_files": "live",
    "queued": "live",
    "running": "live",
    "paused": "paused",
    "cancelled": "cancelled",
}
"""What a job's status means to its owner."""
_CHAT = "/v1/chat/completions"
_QUESTION = {
    "messages": [{"role": "user", "content": "Number 7?"}],
    "temperature": 0,
    "max_tokens": 12,
    "ignore_eos": True,
}
_LOOK_S = 0.05
"""Time between two looks at the server's live figures."""
_REST_S = 0.5
"""Longest time that a job is left alone."""


def jsonl(chats: list[Any]) -> bytes:
    return "".join(json.dumps({"messages": chat}) + "\n" for chat in chats).encode()


class Client:
    """One user of the server.

    Args:
        url: Where it listens.
        ledger: Takes what is acknowledged.
        random: Draws what to do.
        now_s: Seconds that the server has lived.
        end: Set when nobody shall ask any longer.
    """

    def __init__(
        self,
        url: str,
        ledger: Ledger,
        random: Random,
        now_s: Callable[[], float],
        end: threading.Event,
    ) -> None:
        self.http = httpx.Client(base_url=url, timeout=120)
        self.ledger, self.random, self.now_s, self.end = ledger, random, now_s, end

    def call(self, method: str, path: str, **fields: Any) -> Any:
        """Return the parsed answer; raises ``Refused``."""
        response = self.http.request(method, path, **fields)
        if 400 <= response.status_code < 500:
            raise Refused(response.status_code, response.text)
        assert response.status_code == 200, response.text
        self.ledger.acknowledgements.release()
        return response.json()

    def post(self, path: str, **body: Any) -> Any:
        return self.call("POST", path, json=body)

    def chat(self, model: str, **fields: Any) -> Any:
        answer = self.post(_CHAT, **{"model": model, **_QUESTION, **fields})
        self.ledger.served.add(answer["system_fingerprint"])
        return answer

    def upload(self, content: bytes) -> str:
        file = self.call(
            "POST",
            "/v1/files",
            data={"purpose": "fine-tune"},
            files={"file": ("chats.jsonl", content)},
        )
        self.ledger.files.note(file["id"], content)
        return str(file["id"])

    def bring(self, name: str, folder: dict[str, bytes], *, promote: bool) -> str:
        """Import an adapter; return the version that it got."""
        form = {"name": name, "promote": str(promote).lower()}
        files = {key: (key, content) for key, content in folder.items()}
        info = self.call("POST", "/adapters/import", data=form, files=files)
        self.ledger.digests[info["version"]] = info["digest"]
        return str(info["version"])


def ask(client: Client) -> None:
    answer = client.chat(LEARNER)
    text = answer["choices"][0]["message"]["content"]
    client.ledger.answered(answer["system_fingerprint"], text)


def ask_by_stream(client: Client) -> None:
    body = {"model": LEARNER, **_QUESTION, "stream": True}
    versions, text, is_whole = set(), "", False
    with client.http.stream("POST", _CHAT, json=body) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            is_whole = line == "data: [DONE]" or is_whole
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            versions.add(chunk["system_fingerprint"])
            client.ledger.served.update(versions)
            text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    assert is_whole
    (version,) = versions
    client.ledger.answered(version, text)
    client.ledger.acknowledgements.release()


def teach(client: Client) -> None:
    """Correct an answer of the adapter that learns; now and then take a correction back."""
    ledger, random = client.ledger, client.random
    known = [key for key, text in ledger.feedback.certain.items() if text is not None]
    if known and random.random() < 0.3:
        feedback_id = random.choice(known)
        ledger.forgotten[feedback_id] = ledger.feedback[feedback_id] or ""
        with ledger.feedback.changing(feedback_id, None):
            client.call("DELETE", f"/v1/feedback/{feedback_id}")
        return
    question = [{"role": "user", "content": f"Number {random.randrange(1000)}?"}]
    answer = client.chat(LEARNER, messages=question)
    if answer["system_fingerprint"] == "base":
        return  # nobody learns from what the base model answered
    body = {"response_id": answer["id"], "answer": f"It is {random.getrandbits(128):032x}."}
    feedback_id = client.post("/v1/feedback", **body)["id"]
    ledger.feedback.note(feedback_id, body["answer"])
    ledger.posted[feedback_id] = body


def keep_files(client: Client) -> None:
    ledger, random = client.ledger, client.random
    kept = [key for key, content in ledger.files.certain.items() if content is not None]
    if len(kept) > 1 and random.random() < 0.4:
        file_id = random.choice(kept[1:])  # the first is what the jobs learn
        with ledger.files.changing(file_id, None):
            client.call("DELETE", f"/v1/files/{file_id}")
        return
    client.upload(jsonl(random.choices(CHATS, k=random.randrange(1, 200))))


def run_jobs(client: Client) -> None:
    ledger, random = client.ledger, client.random
    live = [key for key, state in ledger.jobs.certain.items() if state != "cancelled"]
    if not live:
        job = client.post(
            "/v1/fine_tuning/jobs",
            model=BASE_MODEL,
            training_file=ledger.files.keys[0],
            adapter=APPRENTICE,
            continuous=True,
            hyperparameters=JOB,
        )
        ledger.jobs.note(job["id"], LIFE[job["status"]])
        return
    client.end.wait(random.uniform(0.0, _REST_S))
    (job_id,) = live
    is_paused = ledger.jobs[job_id] == "paused"
    action, then = ("resume", "live") if is_paused else ("pause", "paused")
    if random.random() < 0.2:
        action, then = "cancel", "cancelled"
    with ledger.jobs.changing(job_id, then):
        job = client.post(f"/v1/fine_tuning/jobs/{job_id}/{action}")
        assert LIFE[job["status"]] == then, job


def operate(client: Client, visitor: dict[str, bytes]) -> None:
    """Change what is served: of an adapter of one's own, and of the one that learns."""
    random = client.random
    random.choice(
        (
            lambda: _promote_steady(client),
            lambda: _roll_back_steady(client),
            lambda: _disturb_learner(client),
            lambda: client.bring(VISITOR, visitor, promote=False),
        )
    )()
    version = client.chat(STEADY)["system_fingerprint"]
    assert version == client.ledger.courses[STEADY].active


def _promote_steady(client: Client) -> None:
    courses = client.ledger.courses
    version = f"{STEADY}@{client.random.randint(1, 3)}"
    with courses.changing(STEADY, courses[STEADY].promoted(version)):
        info = client.post("/adapters/promote", version=version)
        assert info["is_active"], info
        assert info["digest"] == client.ledger.digests[version]


def _roll_back_steady(client: Client) -> None:
    courses = client.ledger.courses
    if courses[STEADY].held is None:
        return
    then = courses[STEADY].rolled_back()
    with courses.changing(STEADY, then):
        info = client.post("/adapters/rollback", adapter=STEADY)
        assert info["version"] == then.active, info


def _disturb_learner(client: Client) -> None:
    """Let training find that something else is served; that newer news came first is fine."""
    ledger = client.ledger
    own = sorted(version for version in tuple(ledger.served) if version.startswith(f"{LEARNER}@"))
    try:
        if own and client.random.random() < 0.5:
            info = client.post("/adapters/promote", version=client.random.choice(own))
        else:
            info = client.post("/adapters/rollback", adapter=LEARNER)
            ledger.num_rollbacks += 1
        if info["version"] != "base":  # that is what a rollback of the first version leaves
            ledger.digests[info["version"]] = info["digest"]
    except Refused as refused:
        if refused.status not in (404, 409):
            raise


def watch(client: Client) -> None:
    """Look at how far training is; acknowledges nothing."""
    started_s = client.now_s()
    progress = client.http.get("/control/snapshot").json()["adapters"][LEARNER]
    assert progress["error"] is None, progress
    client.ledger.steps.append((started_s, progress["step"]))
    client.end.wait(_LOOK_S)
