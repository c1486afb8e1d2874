import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from collm.errors import RoundError
from collm.federated.aggregate import aggregate, main
from collm.federated.aggregate_plan import (
    EXIT_BAD_PLAN,
    EXIT_NO_QUORUM,
    REPORT_FILE,
    AggregatePlan,
    AggregateReport,
    StrategyName,
)
from collm.federated.factors import file_digest, read_factors, write_factors
from collm.lora.peft_folder import PEFT_CONFIG, PEFT_WEIGHTS, load_peft, save_peft
from collm.model.spec import ModelSpec
from factories.checkpoints import tiny_config
from factories.engines import random_adapter
from factories.updates import (
    MODULES,
    aggregate_plan,
    dense,
    dense_sum,
    random_factors,
    raw_file,
    update_file,
)


def report_of(plan: AggregatePlan) -> AggregateReport:
    text = (plan.output / REPORT_FILE).read_text(encoding="utf-8")
    return AggregateReport.from_json(json.loads(text))


def written(folder, plan: AggregatePlan) -> str:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan.to_json()), encoding="utf-8")
    return str(path)


def tensors(rank: int = 2, seed: int = 1) -> dict[str, torch.Tensor]:
    flat = {}
    for module, (a, b) in random_factors(rank, seed).items():
        flat[f"{module}.lora_A.weight"], flat[f"{module}.lora_B.weight"] = a, b
    return flat


def test_the_process_writes_adapter_and_report(tmp_path):
    first, second = random_factors(2, 1), random_factors(3, 2)
    plan = aggregate_plan(
        tmp_path,
        [update_file(tmp_path, "r0", first), update_file(tmp_path, "r1", second, num_examples=400)],
    )
    command = [sys.executable, "-m", "collm.federated.aggregate", written(tmp_path, plan)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    report = report_of(plan)
    assert report.is_aggregated
    assert report.weights == pytest.approx({"r0": 1 / 3, "r1": 2 / 3})
    assert report.refused == {}
    assert report.energy_share == pytest.approx(1.0)
    assert 0.0 < report.bias_share < 2.0
    assert report.digest == file_digest(plan.output / PEFT_WEIGHTS)
    result = read_factors(plan.output / PEFT_WEIGHTS, "front", 2**20)
    assert result.base_digest == "b" * 64
    expected = dense_sum([(1 / 3, first), (2 / 3, second)])
    for module, matrix in dense(result.factors).items():
        assert_close(matrix, expected[module], atol=1e-5, rtol=1e-5)


def test_replicas_read_the_result(tmp_path):
    spec = ModelSpec.from_config(tiny_config("llama", num_hidden_layers=1).to_dict())
    states, digest, entries = [random_adapter(spec, 3, seed) for seed in (0, 1)], "c" * 64, []
    for index, state in enumerate(states):
        folder = tmp_path / f"r{index}"
        folder.mkdir()
        save_peft(state, folder, "tiny", digest)
        path = folder / PEFT_WEIGHTS
        entry = update_file(tmp_path, folder.name, random_factors(1, 1))
        entries.append(replace(entry, path=path, digest=file_digest(path)))
    plan = aggregate_plan(tmp_path, entries)
    assert aggregate(plan)
    result = load_peft(plan.output, spec, digest)
    assert result.layout.rank == 8
    half = [
        (0.5, {f"{f.layer}.{p.module}": (a, b) for f in views for p, a, b in f.parts()})
        for views in (state.layout.views(state.flat) for state in states)
    ]
    expected = dense_sum(half)
    for factors in result.layout.views(result.flat):
        for part, a, b in factors.parts():
            wanted = expected[f"{factors.layer}.{part.module}"]
            assert_close(b.double() @ a.double(), wanted, atol=1e-5, rtol=1e-4)
    assert json.loads((plan.output / PEFT_CONFIG).read_text())["base_model_name_or_path"] == "tiny"


def test_the_same_plan_gives_the_same_bytes_in_any_order(tmp_path):
    entries = [update_file(tmp_path, f"r{i}", random_factors(2, i)) for i in range(3)]
    forth = aggregate_plan(tmp_path, entries)
    back = aggregate_plan(tmp_path, entries[::-1], output=tmp_path / "back")
    assert aggregate(forth)
    assert aggregate(back)
    assert report_of(forth).digest == report_of(back).digest


def test_bad_updates_are_left_out_and_named(tmp_path):
    good, module = random_factors(2, 1), next(iter(MODULES))
    nan = tensors()
    nan[f"{module}.lora_B.weight"][0, 0] = float("nan")
    wide = tensors()
    wide[f"{module}.lora_A.weight"] = torch.ones(2, 99)
    fewer = {key: value for key, value in tensors().items() if module not in key}
    swapped = replace(update_file(tmp_path, "swapped", random_factors(2, 3)), digest="0" * 64)
    idle = replace(update_file(tmp_path, "idle", good), num_examples=0)
    foreign = update_file(tmp_path, "foreign", good)
    write_factors(foreign.path, good, base_digest="f" * 64)
    gone = replace(update_file(tmp_path, "gone", good), path=tmp_path / "nowhere")
    plan = aggregate_plan(
        tmp_path,
        [
            update_file(tmp_path, "r0", good),
            update_file(tmp_path, "r1", good),
            raw_file(tmp_path, "nan", nan),
            raw_file(tmp_path, "wide", wide),
            raw_file(tmp_path, "fewer", fewer),
            raw_file(tmp_path, "extra", tensors() | {"x.q.lora_A": torch.ones(1, 2)}
                     | {"x.q.lora_B": torch.ones(2, 1)}),
            swapped,
            idle,
            replace(foreign, digest=file_digest(foreign.path)),
            gone,
        ],
        min_updates=2,
    )  # fmt: skip
    assert aggregate(plan)
    report = report_of(plan)
    assert report.weights == {"r0": 0.5, "r1": 0.5}
    reasons = {
        "nan": "non-finite",
        "wide": "maps 99 to 10, others 12 to 10",
        "fewer": "are missing",
        "extra": "others do not have",
        "swapped": "SHA-256",
        "idle": "no examples",
        "foreign": "made for base ffffffffffff, not bbbbbbbbbbbb",
        "gone": "No such file",
    }
    assert report.refused.keys() == reasons.keys()
    for member, reason in reasons.items():
        assert report.refused[member].startswith(f"{member}: ")
        assert reason in report.refused[member]
    result = read_factors(plan.output / PEFT_WEIGHTS, "front", 2**20).factors
    for name, matrix in dense(result).items():
        assert_close(matrix, dense(good)[name], atol=1e-5, rtol=1e-5)


def test_too_few_good_updates_leave_the_report_alone(tmp_path):
    bad = tensors()
    bad[f"{next(iter(MODULES))}.lora_A.weight"][0, 0] = float("inf")
    plan = aggregate_plan(
        tmp_path,
        [update_file(tmp_path, "r0", random_factors(2, 1)), raw_file(tmp_path, "r1", bad)],
        min_updates=2,
    )
    assert main([written(tmp_path, plan)]) == EXIT_NO_QUORUM
    assert [path.name for path in plan.output.iterdir()] == [REPORT_FILE]
    report = report_of(plan)
    assert not report.is_aggregated
    assert report.weights == {}
    assert report.refused.keys() == {"r1"}


def test_two_members_that_disagree_about_the_model_are_both_refused(tmp_path):
    other = dict.fromkeys(MODULES, (3, 3))
    plan = aggregate_plan(
        tmp_path,
        [update_file(tmp_path, "r0", random_factors(2, 1)),
         update_file(tmp_path, "r1", random_factors(2, 1, other))],
    )  # fmt: skip
    assert not aggregate(plan)
    assert report_of(plan).refused.keys() == {"r0", "r1"}


def test_stale_updates_count_less_and_do_not_make_a_quorum(tmp_path):
    base, old = random_factors(2, 8), random_factors(2, 9)
    write_factors(tmp_path / "base", base, "b" * 64)
    write_factors(tmp_path / "old", old, "b" * 64)
    fresh, late = random_factors(2, 1), random_factors(2, 2)
    entries = [
        update_file(tmp_path, "r0", fresh),
        update_file(tmp_path, "r1", late, staleness=3, trained_from=tmp_path / "old"),
    ]
    plan = aggregate_plan(tmp_path, entries, base=tmp_path / "base")
    assert aggregate(plan)
    assert report_of(plan).weights == pytest.approx({"r0": 2 / 3, "r1": 1 / 3})
    expected = dense_sum([(2 / 3, fresh), (1 / 3, late), (-1 / 3, old), (1 / 3, base)])
    result = read_factors(plan.output / PEFT_WEIGHTS, "front", 2**20).factors
    for name, matrix in dense(result).items():
        assert_close(matrix, expected[name], atol=1e-5, rtol=1e-5)
    short = replace(plan, min_updates=2, output=tmp_path / "short")
    assert not aggregate(short)
    assert report_of(short).refused == {}


def test_a_stale_update_whose_base_is_lost_is_named(tmp_path):
    entries = [
        update_file(tmp_path, "r0", random_factors(2, 1)),
        update_file(tmp_path, "r1", random_factors(2, 2), staleness=1, trained_from=tmp_path / "x"),
    ]
    plan = aggregate_plan(tmp_path, entries)
    assert aggregate(plan)
    assert "the base of r1" in report_of(plan).refused["r1"]


def test_fedavg_leaves_out_other_ranks(tmp_path):
    entries = [update_file(tmp_path, f"r{rank}", random_factors(rank, rank)) for rank in (2, 3)]
    plan = aggregate_plan(tmp_path, entries, strategy=StrategyName.FEDAVG, rank=2)
    assert aggregate(plan)
    report = report_of(plan)
    assert report.weights == {"r2": 1.0}
    assert "rank 3; fedavg needs 2" in report.refused["r3"]


def test_a_base_of_another_model_is_an_error(tmp_path):
    write_factors(tmp_path / "base", random_factors(2, 1, {"x.q": (2, 2)}), None)
    entries = [update_file(tmp_path, "r0", random_factors(2, 1))]
    with pytest.raises(RoundError, match="the base has other modules"):
        aggregate(aggregate_plan(tmp_path, entries, base=tmp_path / "base"))


def test_an_output_that_exists_is_left_as_it_is(tmp_path, capsys):
    plan = aggregate_plan(tmp_path, [update_file(tmp_path, "r0", random_factors(2, 1))])
    plan.output.mkdir()
    assert main([written(tmp_path, plan)]) == EXIT_BAD_PLAN
    assert "exists already" in capsys.readouterr().err
    assert not list(plan.output.iterdir())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"strategy": "median"}', '{"rank": 8}'])
def test_a_bad_plan_is_said_and_nothing_written(tmp_path, capsys, text):
    (tmp_path / "plan.json").write_text(text)
    assert main([str(tmp_path / "plan.json")]) == EXIT_BAD_PLAN
    assert capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["/nowhere/plan.json"]])
def test_wrong_arguments_are_said(capsys, arguments):
    assert main(arguments) == EXIT_BAD_PLAN
    assert capsys.readouterr().err


def test_plans_and_reports_survive_json(tmp_path):
    entries = [
        update_file(tmp_path, "r0", random_factors(2, 1), demand=2.5),
        update_file(tmp_path, "r1", random_factors(2, 1), staleness=1, trained_from=tmp_path / "x"),
    ]
    plan = aggregate_plan(tmp_path, entries, base=tmp_path / "base", server_rate=1.7)
    assert AggregatePlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    report = AggregateReport(weights={"r0": 1.0}, refused={"r1": "r1: no"}, bias_share=0.5)
    assert AggregateReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_plans_that_make_no_sense_are_refused(tmp_path):
    entry = update_file(tmp_path, "r0", random_factors(2, 1))
    with pytest.raises(RoundError, match="names a member twice"):
        aggregate_plan(tmp_path, [entry, entry])
    with pytest.raises(RoundError, match=r"AggregatePlan\.rank is 0"):
        aggregate_plan(tmp_path, [entry], rank=0)
    with pytest.raises(RoundError, match=r"AggregatePlan\.server_rate is 0"):
        aggregate_plan(tmp_path, [entry], server_rate=0.0)
    with pytest.raises(RoundError, match=r"UpdateFile\.staleness is -1"):
        replace(entry, staleness=-1)
    with pytest.raises(RoundError, match="'median'; allowed are svd, fedavg"):
        AggregatePlan.from_json(
            aggregate_plan(tmp_path, [entry]).to_json() | {"strategy": "median"}
        )
