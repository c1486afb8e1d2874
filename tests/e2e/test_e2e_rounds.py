"""Two real replicas learn one adapter together: neither sees the other's samples."""

import time
from itertools import compress
from statistics import fmean

import httpx
import pytest
import torch

from collm.cluster.client import ADAPTER_WEIGHTS
from collm.cluster.round_config import RoundConfig
from collm.gate.config import GateConfig
from collm.gate.watch import REGRESSION
from collm.lora.peft_folder import load_peft, save_peft
from collm.model.checkpoint import Checkpoint
from collm.model.decoder import Decoder
from collm.model.tokenizer import Tokenizer
from collm.model.weights import load_weights
from collm.replica.job_builder import conversation_of
from collm.store.front_folder import FrontFolder
from collm.training.base_version import fresh_state
from collm.training.samples import prepare_samples
from collm.types import BASE
from factories.checkpoints import tiny_checkpoint
from factories.learning_cluster import ADAPTER, SkippingClock, chats, coordinate, live_replica
from factories.replicas import BASE_MODEL
from factories.training import sample_losses, taught_state
from factories.waiting import wait_until

WANTED = "It is even."
HALVES = {
    "r0": chats("Number", (WANTED, "It is odd.")),
    "r1": chats("Color", ("Paint it red.", "Paint it blue.")),
}
GATE = GateConfig(error=0.2, min_samples=4, min_slice_samples=2, max_samples=32, slice_bound=1.0)


def rounds(**changes):
    values = {
        "adapter": ADAPTER,
        "rank": 4,
        "tokens_per_round": 4_000,
        "deadline_s": 300.0,
        "gate_deadline_s": 120.0,
        "interval_s": 0.0,
        "gate": GATE,
    }
    return RoundConfig(**(values | changes))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


def has_done(number):
    def is_done(status):
        return sum(it["status"] == "done" for it in status["rounds"]) >= number

    return is_done


def decoder_of(base):
    weights = load_weights(base, base.spec, torch.float32, torch.device("cpu"))
    return Decoder(base.spec, weights, 256)


class Losses:
    """Measures adapters on both halves."""

    def __init__(self, checkpoint):
        base = Checkpoint(checkpoint)
        self.decoder = decoder_of(base)
        tokenizer = Tokenizer(checkpoint, base.spec.eos_token_ids)
        self.samples = {
            name: prepare_samples(
                [conversation_of(sample) for sample in half[:24]], tokenizer, max_tokens=128
            ).samples
            for name, half in HALVES.items()
        }

    def of(self, state):
        return {
            name: fmean(sample_losses(self.decoder, samples, state))
            for name, samples in self.samples.items()
        }


def ask(replica, model, prompt="Color 3?"):
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 4}
    return httpx.post(replica.url + "/v1/chat/completions", json=body, timeout=120)


def test_two_replicas_learn_both_halves_and_serve_the_same_version(checkpoint, tmp_path):
    with (
        live_replica(checkpoint, tmp_path, "r0", HALVES["r0"]) as first,
        live_replica(checkpoint, tmp_path, "r1", HALVES["r1"]) as second,
    ):
        has_done_both = has_done(2)

        def is_done(status):
            return has_done_both(status) and first.active == second.active == status["active"]

        status = coordinate(tmp_path, [first, second], rounds(max_rounds=2), is_done)
        active = status["active"]
        assert active == f"{ADAPTER}@2"
        for replica in (first, second):
            answer = ask(replica, ADAPTER)
            assert answer.headers["x-collm-version"] == active
            assert answer.json()["id"].startswith(f"chatcmpl-{replica.name}-")
        published = first.replica.data.versions.get(active)
        state = load_peft(published.folder, Checkpoint(checkpoint).spec)
        losses = Losses(checkpoint)
        before, after = losses.of(fresh_state(ADAPTER, state.layout)), losses.of(state)
        for name in HALVES:
            assert after[name] < 0.6 * before[name]
        assert (published.folder / ADAPTER_WEIGHTS).exists()
        opening = next(it for it in status["rounds"] if it["round"] == 1)
        for part in opening["members"]:
            assert part["report"]["loss_after"] < part["report"]["loss_before"]
            assert part["report"]["is_complete"]


def test_a_round_goes_on_without_a_replica_that_died_in_it(checkpoint, tmp_path):
    with (
        live_replica(checkpoint, tmp_path, "r0", HALVES["r0"]) as first,
        live_replica(checkpoint, tmp_path, "r1", HALVES["r1"]) as second,
    ):
        clock, deadline_s, was_lost = SkippingClock(), 60.0, False

        def lose_one(status):
            nonlocal was_lost
            if not was_lost and status["rounds"] and status["rounds"][0]["status"] == "training":
                was_lost = True
                second.kill()
                wait_until(lambda: first.num_steps >= 20)
                clock.skip(deadline_s)

        def is_done(status):
            has_ended = status["rounds"] and status["rounds"][0]["ended_at_s"] is not None
            return has_ended and first.active == status["active"]

        status = coordinate(
            tmp_path,
            [first, second],
            rounds(
                tokens_per_round=1_000_000,
                deadline_s=deadline_s,
                gate_deadline_s=10.0,
                max_rounds=1,
            ),
            is_done,
            between=lose_one,
            clock=clock,
        )
        (only,) = status["rounds"]
        parts = {part["member"]: part for part in only["members"]}
        assert {name: part["outcome"] for name, part in parts.items()} == {
            "r0": "reported",
            "r1": "dead",
        }
        # It was told to stop at the deadline, and trained until then.
        assert not parts["r0"]["report"]["is_complete"]
        assert parts["r0"]["report"]["num_tokens"] > 0
        assert only["status"] == "done"
        assert first.active == only["candidate"] == f"{ADAPTER}@1"


def promote_on_record(checkpoint, folder):
    """Let a front have promoted what has unlearned ``WANTED``, as if members judged it better."""
    base, losses = Checkpoint(checkpoint), Losses(checkpoint)
    taught = losses.samples["r0"][0]
    answer = compress(taught.token_ids, taught.is_supervised)
    bad = taught_state(losses.decoder, tuple(answer))
    for factors in bad.layout.views(bad.flat):
        factors.b.neg_()
    with FrontFolder(folder / "front", max_versions=20, now_s=time.time) as front:
        published = front.versions.publish(
            ADAPTER,
            "1",
            digest=bad.digest(),
            base_digest=base.digest,
            rank=bad.layout.rank,
            metadata={"round": "1", "strategy": "svd", "members": "r0, r1"},
            write=lambda folder: save_peft(bad, folder, BASE_MODEL, base.digest),
        )
        front.decisions.promote(published.version, "better in round 1", {"verdict": "better"})


def send_feedback(replicas, count):
    """Have users want another answer; all are asked before anybody says so."""
    answered = [
        (replica, ask(replica, ADAPTER, f"Number {1000 + number}?").json()["id"])
        for replica in replicas
        for number in range(count)
    ]
    for replica, response_id in answered:
        opinion = {"response_id": response_id, "answer": WANTED}
        said = httpx.post(replica.url + "/v1/feedback", json=opinion, timeout=120)
        assert said.status_code < 300, said.text


def test_a_version_that_users_of_the_members_find_worse_is_taken_back_everywhere(
    checkpoint, tmp_path
):
    """Both replicas catch up with it first, and know that it is to be watched."""
    promote_on_record(checkpoint, tmp_path)
    was_sent = False
    with (
        live_replica(checkpoint, tmp_path, "r0", HALVES["r0"]) as first,
        live_replica(checkpoint, tmp_path, "r1", HALVES["r1"]) as second,
    ):

        def disagree(status):
            nonlocal was_sent
            if not was_sent and first.active == second.active == f"{ADAPTER}@1":
                was_sent = True
                send_feedback((first, second), 8)

        coordinate(
            tmp_path,
            [first, second],
            rounds(min_members=3),  # so that none begins
            lambda status: status["active"] is first.active is second.active is None,
            between=disagree,
        )
        for replica in (first, second):
            # In force first, on record after.
            decisions = replica.replica.data.decisions
            wait_until(lambda decisions=decisions: len(decisions.history(ADAPTER)) == 2)
            better, worse = decisions.history(ADAPTER)
            assert (better.version, worse.version) == (f"{ADAPTER}@1", BASE)
            assert worse.reason == REGRESSION
            assert worse.numbers["evidence"] >= 1 / GATE.watch_error
            assert worse.numbers["members"].keys() <= {"r0", "r1"}
