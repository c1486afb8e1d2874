"""Those who decide about versions and jobs, with a real adapter store and a recording trainer."""

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from collm.clock import ManualClock
from collm.gate.trial import TrialReport, Verdict
from collm.lora.bank import AdapterBank
from collm.lora.layout import lora_layout
from collm.lora.store import AdapterStore
from collm.metrics.exporter import ReplicaMetrics
from collm.model.spec import ModelSpec
from collm.pacing.config import Objectives
from collm.pacing.credit import Credit
from collm.replica.deciders import DecisionLimits, Surroundings, build_deciders
from collm.replica.inbox import AddJob, Inbox, JobMessage, Published, Rollback
from collm.training.config import JobConfig
from collm.training.events import HeldOutReport
from collm.types import VersionId
from factories.archives import InstantArchive, job_record
from factories.checkpoints import tiny_config
from factories.engines import random_adapter

SPEC = ModelSpec.from_config(tiny_config("llama", num_hidden_layers=1).to_dict())
JOB = "ftjob-1"


def state(seed):
    return random_adapter(SPEC, 1, seed)


class RecordedTrainer:
    """Remembers how training was redirected."""

    def __init__(self) -> None:
        self.adapters: tuple[str, ...] = ()
        self.paused: set[str] = set()
        self.calls: list[tuple[Any, ...]] = []
        self.half_done: tuple[Any, ...] = ()
        """Events of a step that was half taken."""
        self.error: Exception | None = None
        self.is_watching = False
        self.is_joint = False
        """Whether others decide about what is watched."""

    def add(self, job):
        self.adapters += (job.name,)

    def learns_together(self, adapter):
        return False

    def rebase(self, adapter, old, new):
        self._do("rebase", adapter, old, new)

    def reset(self, adapter, new):
        self._do("reset", adapter, new)

    def watch(self, adapter, watch):
        self.calls.append(("watch", adapter, watch.active, watch.previous))
        self.is_joint = watch.is_joint

    def unwatch(self, adapter):
        self.calls.append(("unwatch", adapter))

    def allot(self, time_shares, tokens_per_step):
        self._do("allot", time_shares, tokens_per_step)

    def remove(self, adapter):
        self.adapters = tuple(name for name in self.adapters if name != adapter)
        self.calls.append(("remove", adapter))

    def pause(self, adapter):
        self.calls.append(("pause", adapter))
        self.paused.add(adapter)
        return self.half_done

    def resume(self, adapter):
        self.calls.append(("resume", adapter))
        self.paused.discard(adapter)

    def is_paused(self, adapter):
        return adapter in self.paused

    def config(self, adapter):
        return JobConfig(
            adapter=adapter, data="clinc150", tokens_per_step=30, micro_batch_tokens=20
        )

    def add_samples(self, adapter, samples):
        self.calls.append(("add samples", adapter, samples))

    def remove_sample(self, adapter, sample_id):
        self.calls.append(("remove sample", adapter, sample_id))

    def request_snapshots(self):
        self.calls.append(("snapshots",))

    def _do(self, *call):
        if self.error is not None:
            raise self.error
        self.calls.append(call)

    @property
    def redirections(self):
        return [call for call in self.calls if call[0] in ("rebase", "reset")]

    @property
    def watched(self):
        """What is watched now, by adapter: the version, and the one before it."""
        watched = {}
        for name, adapter, *versions in (c for c in self.calls if c[0] in ("watch", "unwatch")):
            watched.pop(adapter, None)
            if name == "watch":
                watched[adapter] = tuple(versions)
        return watched


class NamedWatches:
    """Makes watches that know the names of what they watch and nothing else."""

    def over(self, adapter, version, state, previous, previous_state, *, is_joint):
        return SimpleNamespace(active=version, previous=previous, is_joint=is_joint)


class World:
    """Deciders about adapter ``a`` with a real store; ``handle`` plays the loop's part."""

    def __init__(self, num_slots=4, min_promotion_interval_s=0.0):
        self.clock = ManualClock()
        self.inbox = Inbox()
        self.archive = InstantArchive(self.inbox)
        self.worker, self.folder = self.archive.worker, self.archive.folder
        bank = AdapterBank(lora_layout(SPEC, 2), num_slots, torch.float32, torch.device("cpu"))
        self.store = AdapterStore(bank, "tiny", lambda version: None)
        self.trainer = RecordedTrainer()
        self.credit = Credit()
        self.metrics = ReplicaMetrics("tiny", Objectives())
        self.num_refreshes = 0
        self.on_refresh = lambda: None
        self.deciders = build_deciders(
            self.trainer,
            NamedWatches(),
            Surroundings(
                adapters=self.store,
                archive=self.archive,
                metrics=self.metrics,
                board=SimpleNamespace(refresh=self._count_refresh),
                clock=self.clock,
            ),
            DecisionLimits(
                min_promotion_interval_s=min_promotion_interval_s,
                slot_wait_s=10.0,
                checkpoint_interval_s=15.0,
            ),
            self.credit,
        )
        self.learner = self.deciders.learner
        self.add_job()

    def _count_refresh(self):
        self.num_refreshes += 1
        self.on_refresh()

    def add_job(self, base=None, warnings=(), **fields):
        job, record = SimpleNamespace(name="a", num_steps=0), job_record(JOB, "a", **fields)
        self.learner.receive(AddJob(job=job, record=record, base=base, warnings=warnings))

    def handle(self):
        """Drain the inbox as the loop does."""
        self.inbox.drain(self._receive)

    def _receive(self, message):
        is_about_job = isinstance(message, JobMessage)
        (self.learner if is_about_job else self.deciders.versions).receive(message)

    def put(self, message):
        self.inbox.put(message)
        self.handle()

    def turn(self):
        self.learner.tend()
        self.handle()

    def learn(self, seed, loss=1.0):
        """Report a candidate."""
        report = held_out_report(step=seed, loss=loss, candidate=state(seed))
        self.learner.handle([report])
        return report.candidate

    def promote_learned(self, seed):
        self.learn(seed)
        self.turn()

    def ask(self, label, seed, adapter="a", **fields):
        """Ask for a version from outside, as the HTTP side does."""
        reply = Future()
        self.inbox.put(replace(foreign(label, seed, adapter, reply), **fields))
        self.handle()
        return reply

    def roll_back(self, adapter="a"):
        reply = Future()
        self.inbox.put(Rollback(adapter, reply))
        self.handle()
        return reply

    @property
    def active(self):
        return self.store.active("a")


def foreign(label, seed, adapter="a", reply=None):
    return Published(
        adapter=adapter,
        version=VersionId(f"{adapter}@{label}"),
        state=state(seed),
        metadata={},
        numbers={},
        is_local=False,
        reply=reply,
    )


def held_out_report(step=1, loss=1.0, candidate=None, verdict=None, active_loss=2.0):
    """A trial's end; better if there is a candidate and nothing else is said."""
    report = TrialReport(
        verdict=verdict or (Verdict.NOT_SHOWN if candidate is None else Verdict.BETTER),
        num_samples=3,
        active_loss=active_loss,
        active_error=active_loss / 2.0,
        candidate_loss=loss,
        candidate_error=loss / 2.0,
        evidence=1.0,
        evidence_worse=1.0,
        slices={},
    )
    return HeldOutReport(adapter="a", step=step, report=report, candidate=candidate)
