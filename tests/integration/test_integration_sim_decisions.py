"""The simulator and the engine make the same decisions on the same trace with the same times."""

from dataclasses import dataclass, field
from random import Random

import pytest

from collm.clock import ManualClock
from collm.engine.config import SchedulerConfig
from collm.engine.scheduler import Scheduler
from collm.metrics.loop_times import LoopTimes
from collm.metrics.totals import Totals
from collm.pacing.budgets import LatencyBudget
from collm.pacing.config import Objectives
from collm.pacing.cost import QuantumCostModel, StepCostModel
from collm.pacing.credit import Credit
from collm.replica.inbox import Abort, Submit
from collm.sim.blocks import CountedBlocks
from collm.sim.device import Device
from collm.sim.duty import AlwaysOn
from collm.sim.log import SimLog
from collm.sim.loop import LoopParts, SimLoop
from collm.sim.requests import SimRequest
from collm.sim.versions import Version, Versions
from collm.types import BASE, RequestId
from factories import replicas
from factories.checkpoints import tiny_checkpoint
from factories.engine import FixedPrefillLimit
from factories.engines import build_engine, random_tokens
from factories.replicas import build_rig, greedy, learnable_job
from factories.simulations import profile
from factories.training import job_config

NUM_BLOCKS, BLOCK_SIZE, MAX_LEN, MAX_PREFILL = 60, 4, 256, 40
SCHEDULER = SchedulerConfig(max_running=6, enable_prefix_cache=False)


def arrivals(num_requests: int, seed: int) -> list[SimRequest]:
    """Bursts, so that sequences wait and lose their blocks to each other."""
    random, at_s, requests = Random(seed), 0.0, []
    for number in range(num_requests):
        at_s += random.choice([0.001, 0.02, 0.3]) * random.random()
        lengths = random.randint(1, 60), random.randint(1, 50)
        requests.append(SimRequest(number, at_s, *lengths, 0, False))
    return requests


@dataclass
class Decisions:
    """What was decided, in order: steps as plans, quanta as they are."""

    made: list[object] = field(default_factory=list)
    first_tokens_s: dict[str, float] = field(default_factory=dict)
    ends_s: dict[str, float] = field(default_factory=dict)

    def step(self, plan) -> None:
        items = [
            (str(item.sequence.request.request_id), item.num_new_tokens) for item in plan.items
        ]
        self.made.append(tuple(items))

    def quantum(self, quantum) -> None:
        self.made.append(quantum)


def device() -> Device:
    """Steps and quanta of a millisecond or so: slack is scarce only when the times spread."""
    return Device(profile(), "the same")


def run_engine(checkpoint, requests, monkeypatch) -> tuple[Decisions, list]:
    """Run the real step loop, model and training on scripted times."""
    monkeypatch.setattr(replicas, "STEP_S", 0.0)
    monkeypatch.setattr(replicas, "QUANTUM_S", 0.0)
    engine = build_engine(
        checkpoint,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        config=SCHEDULER,
        max_prefill=MAX_PREFILL,
        max_model_len=MAX_LEN,
    )
    # No evaluation: a candidate's way to disk and back sends the loop messages of its own.
    job = learnable_job(engine.decoder, job_config("tutor", evaluate_every=10_000))
    # Nor checkpoints, which the simulator leaves out: they come by the clock, not in their turn.
    rig = build_rig(engine, [job], checkpoint_interval_s=1e9)
    rig.trainer.max_pause = 10**9
    times, decisions, left = device(), Decisions(), list(requests)
    names = [f"{one.number:09d}" for one in requests]

    def pass_time(clock: ManualClock, seconds: float) -> None:
        clock.advance(seconds)
        while left and left[0].at_s <= clock.now_s():
            one = left.pop(0)
            prompt = random_tokens(one.num_prompt_tokens, one.number)
            rig.inbox.put(
                Submit(
                    (
                        greedy(
                            f"{one.number:09d}",
                            prompt,
                            max_tokens=one.num_output_tokens,
                            arrived_at_s=one.at_s,
                        ),
                    )
                )
            )

    def on_launch(plan) -> None:
        if not plan.is_empty:
            decisions.step(plan)
            pass_time(rig.clock, times.step_s(plan.load()))

    def on_run(quantum) -> None:
        decisions.quantum(quantum)
        pass_time(rig.clock, times.quantum_s(quantum))
        if not left and rig.has_ended(*names):
            rig.inbox.put(Abort(RequestId("nobody's")))  # so that the last pause ends

    rig.runner.on_launch, rig.trainer.on_run = on_launch, on_run
    while not rig.has_ended(*names):
        rig.step()
    decisions.ends_s = dict.fromkeys(names, rig.clock.now_s())
    return decisions, rig.trainer.ran


class Script:
    """A trainer whose quanta another one has run."""

    def __init__(self, quanta, decisions: Decisions) -> None:
        self._quanta = list(quanta)
        self._decisions = decisions

    def peek(self):
        return self._quanta[0] if self._quanta else None

    def rest_of_program(self):
        return tuple(self._quanta)

    def ran(self, now_s: float, num_quanta: int = 1) -> None:
        for quantum in self._quanta[:num_quanta]:
            self._decisions.quantum(quantum)
        del self._quanta[:num_quanta]


class RecordingScheduler(Scheduler):
    """Notes every plan that computes something."""

    decisions: Decisions

    def schedule(self, now_s: float):
        plan = super().schedule(now_s)
        if not plan.is_empty:
            self.decisions.step(plan)
        return plan


class Listener:
    """Notes ends."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def started(self, entry, now_s: float) -> None:
        self._decisions.first_tokens_s[f"{entry.request.number:09d}"] = now_s

    def ended(self, entry, record, replica_id: str) -> None:
        self._decisions.ends_s[record.request_id] = record.ended_at_s


def run_simulator(requests, quanta, *, fast_forward: bool) -> Decisions:
    decisions, objectives = Decisions(), Objectives()
    blocks = CountedBlocks(NUM_BLOCKS, BLOCK_SIZE)
    times = LoopTimes()
    totals = Totals(objectives, times)
    limit, credit, step_cost = FixedPrefillLimit(MAX_PREFILL), Credit(0.0), StepCostModel()
    versions = Versions(Version(BASE, (0.0,)))
    scheduler = RecordingScheduler(SCHEDULER, blocks, versions, limit, frozenset(), MAX_LEN)
    scheduler.decisions = decisions
    budget = LatencyBudget(
        objectives,
        step_cost,
        QuantumCostModel(),
        prefill_limit=limit,
        credit=credit,
        max_quantum_s=0.04,
    )
    parts = LoopParts(
        scheduler=scheduler,
        blocks=blocks,
        credit=credit,
        budget=budget,
        objectives=objectives,
        step_cost=step_cost,
        device=device(),
        duty=AlwaysOn(),
        trainer=Script(quanta, decisions),
        log=SimLog("r", objectives, credit, totals, Listener(decisions)),
        times=times,
        totals=totals,
        on_candidate=lambda knowledge, now_s: None,
    )
    parts.device.loop_s = 0.0
    loop = SimLoop(parts, 0.0, fast_forward=fast_forward)
    for request in requests:
        loop.submit(request, None, request.at_s)
    now_s = request.at_s
    while len(decisions.ends_s) < len(requests):
        now_s += 0.01
        loop.advance(now_s)
    return decisions


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.mark.parametrize("seed", range(3))
def test_simulator_and_engine_make_the_same_decisions(checkpoint, monkeypatch, seed):
    requests = arrivals(40, seed)
    real, quanta = run_engine(checkpoint, requests, monkeypatch)
    simulated = run_simulator(requests, quanta, fast_forward=False)
    num_both = min(len(real.made), len(simulated.made))
    assert simulated.made[:num_both] == real.made[:num_both]
    assert {type(one) for one in real.made} == {tuple, type(quanta[0])}
    # Beyond the last request's end only training goes on.
    assert all(not isinstance(one, tuple) for one in real.made[num_both:])
    assert all(not isinstance(one, tuple) for one in simulated.made[num_both:])
    num_steps = sum(isinstance(one, tuple) for one in real.made)
    assert num_steps > 100
    assert simulated.ends_s.keys() == real.ends_s.keys()


def test_fast_forward_ends_every_answer_at_the_same_time(checkpoint, monkeypatch):
    requests = arrivals(40, 7)
    _, quanta = run_engine(checkpoint, requests, monkeypatch)
    plain = run_simulator(requests, quanta, fast_forward=False)
    quick = run_simulator(requests, quanta, fast_forward=True)
    assert quick.ends_s == plain.ends_s
    assert quick.first_tokens_s == plain.first_tokens_s
