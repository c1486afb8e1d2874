"""The bars of ``slo.py`` on a virtual clock: thousands of requests in a minute, on any machine.

The scheduler, cost models, prefill limit and budgets are the replica's own; the model is replaced
by times: a step takes a fixed time and so much per decode, prefill token and key, a quantum so much
per token, each with log-normal noise and a hiccup now and then. The figures below are those of
SmolLM2-135M with one adapter on two Zen 4 cores. What is simulated is simulated: use it to
compare rules of pacing with each other, not to claim what a machine does.

Run as: python benchmarks/slo_simulated.py
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from random import Random

from collm.clock import ManualClock
from collm.engine.blocks import BlockManager
from collm.engine.config import SchedulerConfig
from collm.engine.plan import SampledToken, StepOutput, StepPlan
from collm.engine.scheduler import Scheduler
from collm.metrics.attainment import measure_attainment
from collm.metrics.records import RequestRecord
from collm.pacing.budgets import make_budget
from collm.pacing.chunking import make_prefill_limit
from collm.pacing.config import Objectives, PacingConfig
from collm.pacing.cost import QuantumCostModel, StepCostModel
from collm.pacing.credit import Credit
from collm.pacing.quanta import Quantum, QuantumKind, cut, micro_batch_quanta, optimizer_quanta
from collm.types import Binding, Request, RequestId, SamplingParams, StepLoad, VersionId
from collm.workload.traces import Trace, load_trace
from common import Report, progress
from common import make_parser as make_common_parser
from slo_outcome import report_blocks
from slo_plan import MAX_OUTPUT_TOKENS, TRACE, KneeSearch, cut_block, scale_lengths
from slo_report import LATENCY, OBJECTIVE, OFF, Block, Coverage, Work

_STEP_S = (10e-3, 1.15e-3, 0.65e-3, 1e-6, 1e-3)
"""Seconds of a step, per decode, prefill token, key and adapter."""
_QUANTUM_S = {
    QuantumKind.PREPARE: (2e-3, 2e-6),
    QuantumKind.FORWARD: (1e-3, 12e-6),
    QuantumKind.LOSS: (1e-3, 500e-6),
    QuantumKind.BACKWARD: (1.5e-3, 25e-6),
    QuantumKind.OPTIMIZER: (1e-3, 10e-9),
}
_NOISE = 0.08
_HICCUP_SHARE, _HICCUP = 0.004, 1.4
_TEMPLATE_TOKENS = 30
_MICRO_BATCH = ((420, 620), (60, 140))
"""Bounds of its tokens, and of its supervised ones."""
_NUM_SUBLAYERS, _LAYER_PARAMETERS, _MAX_OPTIMIZER = 60, 160_000, 1_200_000
_LOADS = (0.1, 0.5, 0.9)


def main() -> None:
    """Find capacity, replay, report."""
    parser = make_common_parser(__doc__ or "", rounds=30, rounds_are="blocks of each arm")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--requests", type=int, default=30, help="of a block")
    parser.add_argument("--capacity", type=float, metavar="RATE", help="requests/s; searched for")
    parser.add_argument("--loads", type=float, nargs="+", default=_LOADS, help="of capacity")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = 2
    report = Report("SLO protection, simulated", arguments)
    rows = scale_lengths(load_trace(TRACE), MAX_OUTPUT_TOKENS)
    capacity = arguments.capacity or _find_capacity(rows, arguments)
    report.note(f"Simulated. Capacity: {capacity:.2f} requests/s.")
    blocks = [
        block
        for load in arguments.loads
        for arm in (OFF, LATENCY, OBJECTIVE)
        for block in _replay(rows, arm, load, load * capacity, arguments)
    ]
    report_blocks(report, blocks, arguments.loads, arguments.seed)
    report.finish()


def _find_capacity(rows: Trace, arguments: argparse.Namespace) -> float:
    """Return the highest rate that keeps the objectives with training off."""
    search = KneeSearch(1.0, 1.05, 10)
    while (rate := search.next_rate()) is not None:
        blocks = _replay(rows, OFF, 1.0, rate, arguments)
        records = [record for block in blocks for record in block.records]
        share = measure_attainment(records, Objectives()).share or 0.0
        search.add(rate, share)
        progress(f"{rate:.2f} requests/s: attainment {share:.3f} of {len(records)} requests")
    return search.capacity_per_s


def _replay(
    rows: Trace, arm: str, load: float, rate_per_s: float, arguments: argparse.Namespace
) -> Iterator[Block]:
    """Replay the blocks of one load to one arm, one after the other."""
    replica = _VirtualReplica(arm, arguments.seed)
    for number in range(-1, arguments.rounds):  # the first one warms up
        first = Random(f"{arguments.seed}/{number}").randint(1, len(rows) // 2)
        cut_rows = cut_block(rows, first, arguments.requests, arguments.requests / rate_per_s)
        block = replica.replay(cut_rows, load, number)
        if number >= 0:
            yield block
    progress(f"{load:.0%}, {arm}: {arguments.rounds} blocks")


class _Pins:
    def is_version(self, model: str) -> bool:
        return False

    def pin(self, model: str) -> Binding:
        return Binding(version=VersionId(model), slot=0)

    def unpin(self, binding: Binding) -> None:
        pass


class _VirtualReplica:
    """The step loop with times in place of a model; its training never ends."""

    def __init__(self, arm: str, seed: int) -> None:
        budget = OBJECTIVE if arm == OBJECTIVE else LATENCY
        pacing = PacingConfig(budget=budget)  # type: ignore[arg-type]
        self._arm = arm
        self._random = Random(f"{arm}/{seed}")
        self._clock = ManualClock()
        self._step_cost = StepCostModel(quantile=pacing.quantile)
        costs = QuantumCostModel(quantile=pacing.quantile)
        limit = make_prefill_limit(pacing, self._step_cost)
        self._budget = make_budget(pacing, self._step_cost, costs, Credit(), limit)
        blocks = BlockManager(4_000, 16, enable_prefix_cache=False)
        config = SchedulerConfig()
        self._scheduler = Scheduler(config, blocks, _Pins(), limit, frozenset({0}), 4_096)
        self._quanta = self._all_quanta()
        self._quantum = next(self._quanta)
        self._due: list[Request] = []
        self._serve_s = self._train_s = 0.0
        self._steps = Coverage()

    def replay(self, rows: Trace, load: float, number: int) -> Block:
        """Serve one block, training beside unless training is off."""
        begun_s, self._serve_s, self._train_s = self._clock.now_s(), 0.0, 0.0
        self._steps = Coverage()
        requests = [
            Request(
                request_id=RequestId(f"{number:06d}-{index:06d}"),
                model="learner",
                prompt=(1,) * (row.prompt_tokens + _TEMPLATE_TOKENS),
                sampling=SamplingParams(max_tokens=row.output_tokens, ignore_eos=True),
                arrived_at_s=begun_s + row.arrived_at_s,
            )
            for index, row in enumerate(rows)
        ]
        times: dict[RequestId, list[float]] = {one.request_id: [] for one in requests}
        self._due = requests[::-1]
        while self._due or self._scheduler.has_work:
            self._iterate(times)
        return Block(
            arm=self._arm,
            load=load,
            number=number,
            records=tuple(_record(one, times[one.request_id]) for one in requests),
            gaps_s=tuple(gap for one in times.values() for gap in _gaps(one)),
            work=Work(
                wall_s=self._clock.now_s() - begun_s,
                serve_s=self._serve_s,
                train_s=self._train_s,
                steps=self._steps,
                quanta={},
            ),
        )

    def has_messages(self) -> bool:
        """Whether a request has arrived."""
        return bool(self._due) and self._due[-1].arrived_at_s <= self._clock.now_s()

    def _iterate(self, times: dict[RequestId, list[float]]) -> None:
        while self.has_messages():
            self._scheduler.add(self._due.pop())
        plan = self._scheduler.schedule(self._clock.now_s())
        if not plan.is_empty:
            self._step(plan, times)
        load = plan.load()
        self._budget.begin(
            self._scheduler.progress(),
            self._clock.now_s(),
            load.num_adapters,
            is_blocked=load.num_prefill_tokens == 0,
        )
        num_quanta = 0
        while self._arm != OFF and self._budget.allows(self._quantum, self) and self._is_busy:
            self._train()
            num_quanta += 1
        if plan.is_empty and num_quanta == 0 and self._due:
            self._clock.advance(max(0.0, self._due[-1].arrived_at_s - self._clock.now_s()))

    @property
    def _is_busy(self) -> bool:
        """Whether the block goes on."""
        return bool(self._due) or self._scheduler.has_work

    def _step(self, plan: StepPlan, times: dict[RequestId, list[float]]) -> None:
        load = plan.load()
        seconds = self._noisy(_step_s(load))
        is_covered = seconds <= self._step_cost.upper_s(load)
        self._steps += Coverage(1, int(is_covered))
        self._step_cost.observe(load, seconds)
        self._clock.advance(seconds)
        self._serve_s += seconds
        output = StepOutput(tuple(SampledToken(1) for item in plan.items if item.samples))
        for event in self._scheduler.update(plan, output, self._clock.now_s()):
            times[event.request_id].append(self._clock.now_s())

    def _train(self) -> None:
        fixed_s, per_unit_s = _QUANTUM_S[self._quantum.kind]
        seconds = self._noisy(fixed_s + per_unit_s * self._quantum.size)
        self._clock.advance(seconds)
        self._train_s += seconds
        self._budget.spent(self._quantum, seconds, self._clock.now_s())
        self._quantum = next(self._quanta)

    def _noisy(self, seconds: float) -> float:
        hiccup = _HICCUP if self._random.random() < _HICCUP_SHARE else 1.0
        return seconds * hiccup * math.exp(self._random.gauss(0.0, _NOISE))

    def _all_quanta(self) -> Iterator[Quantum]:
        while True:
            for _ in range(2):
                num_tokens, num_supervised = (self._random.randint(*one) for one in _MICRO_BATCH)
                pieces = cut(num_supervised, 64)
                yield from micro_batch_quanta(_NUM_SUBLAYERS, num_tokens, pieces, "learner")
            yield from optimizer_quanta(
                _NUM_SUBLAYERS // 2, _LAYER_PARAMETERS, _MAX_OPTIMIZER, "learner"
            )


def _step_s(load: StepLoad) -> float:
    fixed, decode, prefill, context, adapter = _STEP_S
    return (
        fixed
        + decode * load.num_decode_tokens
        + prefill * load.num_prefill_tokens
        + context * load.num_context_tokens
        + adapter * load.num_adapters
    )


def _gaps(times_s: Sequence[float]) -> list[float]:
    return [later - time for time, later in zip(times_s, times_s[1:], strict=False)]


def _record(request: Request, times_s: Sequence[float]) -> RequestRecord:
    return RequestRecord(
        request_id="",
        model=request.model,
        arrived_at_s=request.arrived_at_s,
        first_token_at_s=times_s[0],
        last_token_at_s=times_s[-1],
        num_prompt_tokens=len(request.prompt),
        num_output_tokens=len(times_s),
        max_gap_s=max(_gaps(times_s), default=None),
        finish_reason="length",
        outcome="completed",
    )


if __name__ == "__main__":
    main()
