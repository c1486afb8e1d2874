import json

import pytest
from typer.testing import CliRunner

from collm.cli.main import app
from collm.sim.policies import POLICIES
from factories.simulations import profile

SMALL = ["simulate", "--requests", "40", "--rate", "1", "--divide-prompts", "8",
         "--divide-outputs", "4"]  # fmt: skip


def run(*arguments: str):
    return CliRunner().invoke(app, [*SMALL, *arguments])


def test_json_holds_one_labelled_report_a_policy() -> None:
    result = run("--policy", "collm", "--policy", "serve-only", "--regret", "--json")
    assert result.exit_code == 0, result.output
    reports = json.loads(result.output)
    assert [one["policy"] for one in reports] == ["collm", "serve-only"]
    for one in reports:
        assert one["is_simulated"] is True
        assert one["profile_origin"] == "stated"
        assert one["num_requests"] == 40
        assert one["regret"] is not None
        assert one["replicas"][0]["ttft"]["p50_s"] > 0.0
        assert one["paper_goodput_per_s"] == pytest.approx(one["throughput_per_s"] * one["quality"])
    assert reports[0]["training_tokens"] > 0
    assert reports[0] != json.loads(run("--seed", "1", "--json").output)[0]


def test_table_says_that_it_is_simulated() -> None:
    result = run("--replicas", "2")
    assert result.exit_code == 0, result.output
    assert "SIMULATED" in result.output


def test_oracle_serves_what_collm_ends_with() -> None:
    result = run("--policy", "oracle", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)[0]["quality"] > 0.0


def test_profile_may_be_a_file(tmp_path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(profile(name="mine").to_json())
    report = json.loads(run("--profile", str(file), "--json").output)[0]
    assert report["profile"] == "mine"


@pytest.mark.parametrize(
    ("arguments", "blamed"),
    [
        (["--policy", "magic"], next(iter(POLICIES))),
        (["--fault", "0:ten:dies"], "REPLICA:SECONDS:KIND"),
        (["--fault", "0:10:slow"], "factor"),
        (["--fault", "7:10:dies"], "1 replicas"),
        (["--costs", "free"], "'learned'"),
        (["--policy", "split"], "2 replicas"),
        (["--rate", "0"], "--rate is 0.0; allowed is finite and above 0"),
        (["--rate", "nan"], "--rate is nan"),
        (["--planning", "--policy", "serve-only"], "needs a policy that is coordinated: collm"),
        (["--planning", "--max-credit", "2"], "max_credit_share"),
        (["--rate", "1e-9"], "allowed are at most 10 of 1 replicas"),
        (["--domains", "100000"], "less than or equal to 1000"),
        (["--divide-prompts", "0"], "--divide-prompts is 0.0"),
        (["--divide-outputs", "nan"], "--divide-outputs is nan"),
        (["--scored", "2"], "scored_share is 2.0; allowed is 0 to 1"),
        (["--drift-at", "nan"], "drift_at_s is nan"),
        (["--warm-tokens", "nan"], "warm_tokens is nan"),
        (["--fault", "0:nan:dies"], "at_s are 0 or more"),
    ],
)
def test_wrong_setting_is_refused_with_what_is_allowed(arguments, blamed) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert blamed in " ".join(result.output.split())


def test_trace_whose_requests_all_come_at_once_is_refused(tmp_path) -> None:
    trace = tmp_path / "crowd.csv"
    trace.write_text("arrived_at_s,prompt_tokens,output_tokens\n" + "1,2,3\n" * 5)
    result = run("--trace", str(trace))
    assert result.exit_code == 1
    assert "crowd.csv: a simulation needs rows at two times" in " ".join(result.output.split())


def test_faults_are_read() -> None:
    result = run(
        "--replicas", "3", "--fault", "0:10:dies", "--fault", "1:5:slow:3",
        "--fault", "2:5:silent:2", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)[0]["num_requests"] == 40
