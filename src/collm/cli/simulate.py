"""``collm simulate``: what a cluster would do, on a virtual clock."""

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from collm.cli.option_values import takes
from collm.cli.simulated_runs import SimulatedRun, run_simulated
from collm.cluster.planning_config import PlanningConfig
from collm.errors import ConfigError
from collm.pacing.config import PacingConfig
from collm.sim.config import RoundSettings, SimConfig
from collm.sim.faults import Fault
from collm.sim.policies import POLICIES, find_policy
from collm.sim.profile import load_profile, stated_profiles
from collm.sim.report import SimReport
from collm.sim.requests import MAX_DOMAINS, Mix
from collm.workload.traces import SHIPPED_TRACES

app = typer.Typer(
    help="Simulate a cluster under a trace: real scheduling, pacing and routing, modelled devices.",
    epilog="Example: `collm simulate --replicas 8 --rate 6 --policy collm --policy serve-only`.",
    add_completion=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """What ``collm simulate`` may be told."""

    replicas: Annotated[int, typer.Option(min=1, help="Number of replicas.")] = 1
    profile: Annotated[
        str, typer.Option(help=f"A JSON file, or one of {', '.join(stated_profiles())}.")
    ] = "smollm2-135m-two-cores"
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"Any of {', '.join(POLICIES)}; may be given several times."),
    ] = None
    trace: Annotated[
        str, typer.Option(help=f"A CSV file, or one of {', '.join(SHIPPED_TRACES)}.")
    ] = "azure_conv_2023"
    requests: Annotated[int, typer.Option(min=2, help="Rows of the trace.")] = 1000
    rate: Annotated[
        float | None, typer.Option(help="Requests/s over all replicas; else the trace's own.")
    ] = None
    divide_prompts: Annotated[float, typer.Option(help="Divides prompt lengths.")] = 1.0
    divide_outputs: Annotated[float, typer.Option(help="Divides output lengths.")] = 1.0
    seed: Annotated[int, typer.Option(help="Makes the run repeatable.")] = 0
    budget: Annotated[
        Literal["latency", "objective"],
        typer.Option(help="How training shares time with requests."),
    ] = "latency"
    ttft: Annotated[float, typer.Option(help="Objective for the first token, in seconds.")] = (
        PacingConfig().ttft_s
    )
    tpot: Annotated[float, typer.Option(help="Objective for each further token, in seconds.")] = (
        PacingConfig().tpot_s
    )
    credit: Annotated[float, typer.Option(help="Training's guaranteed share of time.")] = 0.0
    domains: Annotated[
        int, typer.Option(min=1, max=MAX_DOMAINS, help="Domains that requests are about.")
    ] = 1
    scored: Annotated[float, typer.Option(help="Share of scored requests.")] = 0.0
    drift_at: Annotated[
        float | None, typer.Option(help="Second at which a new domain appears.")
    ] = None
    warm_tokens: Annotated[
        float, typer.Option(help="Tokens that the first adapter was trained on.")
    ] = 0.0
    round_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens that a member trains on in a round; 0 for no rounds.")
    ] = 16_384
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="A replica that fails, as REPLICA:SECONDS:KIND[:VALUE]: it 'dies', gets 'slow' "
            "by a factor, or 'silent' for seconds; may be given several times."
        ),
    ] = None
    planning: Annotated[
        bool,
        typer.Option(
            "--planning",
            help="Let policy collm plan traffic, batches and credit, for the first time after a "
            f"period of {PlanningConfig().period_s:g} s.",
        ),
    ] = False
    max_credit: Annotated[
        float, typer.Option(help="Most credit that planning may grant a replica.")
    ] = PlanningConfig().max_credit_share
    costs: Annotated[
        Literal["learned", "given"],
        typer.Option(
            help="'learned' has replicas fit their cost models, as real ones do; 'given' hands "
            "them the profile's, which is faster to simulate."
        ),
    ] = "learned"
    with_regret: Annotated[
        bool, typer.Option("--regret", help="Run the oracle too, and report regret.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False

    def run(self) -> SimulatedRun:
        """Return what every policy goes through."""
        return SimulatedRun(
            profile=load_profile(self.profile),
            config=self._config(),
            trace=self.trace,
            num_requests=self.requests,
            rate_per_s=self.rate,
            divide_prompts=self.divide_prompts,
            divide_outputs=self.divide_outputs,
            with_regret=self.with_regret,
        )

    def _config(self) -> SimConfig:
        tokens = self.round_tokens
        return SimConfig(
            num_replicas=self.replicas,
            seed=self.seed,
            pacing=PacingConfig(
                budget=self.budget,
                ttft_s=self.ttft,
                tpot_s=self.tpot,
                credit_share=self.credit,
            ),
            costs=self.costs,
            mix=Mix(num_domains=self.domains, scored_share=self.scored, drift_at_s=self.drift_at),
            warm_tokens=self.warm_tokens,
            rounds=RoundSettings(tokens_per_round=tokens) if tokens > 0 else None,
            planning=PlanningConfig(
                policy="adaptive" if self.planning else "none", max_credit_share=self.max_credit
            ),
            faults=tuple(map(_fault, self.fault or ())),
        )


@app.command()
@takes(SimulateOptions)
def simulate(options: SimulateOptions) -> None:
    """Run policies on the same requests and show their figures, all of them simulated."""
    policies = [find_policy(name) for name in options.policy or ["collm"]]
    if options.planning and not any(one.is_coordinated for one in policies):
        coordinated = ", ".join(name for name, one in POLICIES.items() if one.is_coordinated)
        raise ConfigError(f"--planning needs a policy that is coordinated: {coordinated}")
    reports = run_simulated(options.run(), policies)
    if options.as_json:
        typer.echo(json.dumps([asdict(report) for report in reports], indent=1))
    else:
        _show(reports)


def _fault(text: str) -> Fault:
    """Read ``REPLICA:SECONDS:KIND[:VALUE]``."""
    parts = text.split(":")
    try:
        replica, at_s, kind = int(parts[0]), float(parts[1]), parts[2]
        values = [float(value) for value in parts[3:]]
    except (ValueError, IndexError):
        raise ConfigError(f"--fault {text!r} is not REPLICA:SECONDS:KIND[:VALUE]") from None
    match kind, values:
        case "dies", []:
            return Fault(replica=replica, at_s=at_s, kind="dies")
        case "slow", [factor]:
            return Fault(replica=replica, at_s=at_s, kind="slow", factor=factor)
        case "silent", [for_s]:
            return Fault(replica=replica, at_s=at_s, kind="silent", for_s=for_s)
    raise ConfigError(f"--fault {text!r}: dies takes no value, slow a factor, silent seconds")


def _show(reports: list[SimReport]) -> None:
    console, first = Console(), reports[0]
    console.print(
        f"SIMULATED on the {first.profile_origin} profile {first.profile}:"
        f" {first.num_requests} requests in {first.duration_s:.0f} s, seed {first.seed},"
        f" trace {first.trace}"
    )
    table = Table(title="Simulated figures", box=SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("policy", no_wrap=True)
    for name in ("SLO", "F/s", "Q", "F·Q", "task/s", "regret", "TTFT", "TPOT", "train/s", "new"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in reports:
        table.add_row(
            one.policy,
            _number(one.attainment, "{:.1%}"),
            f"{one.throughput_per_s:.3g}",
            _number(one.quality, "{:.2f}"),
            f"{one.paper_goodput_per_s:.3g}",
            _number(one.task_goodput_per_s, "{:.3g}"),
            _number(one.regret, "{:.1%}"),
            _number(one.ttft.p99_s, "{:.2f}"),
            _number(one.tpot.p99_s, "{:.3f}"),
            f"{one.training_tokens_per_s:.0f}",
            str(one.num_promotions),
        )
    console.print(table)
    console.print(
        "F/s: requests/s within the objectives; Q = 1/max(CE, 0.1); task/s: right answers/s;"
        " TTFT, TPOT: p99; train/s: tokens; new: versions promoted, over all replicas"
    )


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
