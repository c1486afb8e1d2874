"""Dashboard and alert rules: every expression parses, and asks for what is exported."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from collm.metrics.exporter import ReplicaMetrics
from collm.metrics.front import FrontMetrics
from collm.pacing.config import PacingConfig
from collm.server.front.metrics import merge_metrics

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "configs" / "grafana" / "collm.json"
RULES = ROOT / "configs" / "prometheus" / "rules.yaml"
RULES_TESTS = [RULES.with_name(f"{name}.yaml") for name in ("rules_test", "rules_slow_test")]
PAGE = ROOT / "docs" / "observability.md"
PROMTOOL = shutil.which("promtool")
OF_PROCESSES = {"process_resident_memory_bytes", "process_start_time_seconds"}


def exported() -> dict[str, set[str]]:
    """Return the labels of each series by its name."""
    replica = ReplicaMetrics("tiny", PacingConfig())
    front = FrontMetrics().definitions
    found = {name: set[str]() for name in OF_PROCESSES}
    for one in (*replica.serving_definitions, *replica.learning_definitions, *front):
        if one.kind == "histogram":
            found |= {f"{one.name}{end}": set(one.labels) for end in ("_sum", "_count")}
            found[f"{one.name}_bucket"] = {*one.labels, "le"}
        else:
            found[one.name] = set(one.labels)
    return found


SERIES = exported()
ADDED = {"job", "instance", "replica"}
"""Labels that Prometheus and the front put on."""


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def panels() -> list[dict[str, Any]]:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield where each expression stands, and the expression."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in json.loads(DASHBOARD.read_text(encoding="utf-8"))["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def selectors(node: Any) -> Iterator[Any]:
    """Yield the vector selectors in a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    if isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
        return
    for name in ("expr", "lhs", "rhs"):
        if (inner := getattr(node, name, None)) is not None:
            yield from selectors(inner)
    for inner in getattr(node, "args", None) or ():
        yield from selectors(inner)


def parsed(expression: str) -> Any:
    """Parse what Grafana would send; its variables stand for a text and a time."""
    text = re.sub(r"\$__\w+", "5m", expression)
    return promql_parser.parse(re.sub(r"\$\w+", "x", text))


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_expressions_ask_for_what_is_exported(where, expression):
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    found = list(selectors(parsed(expression)))
    assert found, where
    for selector in found:
        if selector.name in recorded:
            continue
        assert selector.name in SERIES, f"{where}: {selector.name}"
        asked = {matcher.name for matcher in selector.matchers.matchers}
        # A filter on a label that some metrics lack leaves these alone.
        assert asked <= SERIES[selector.name] | ADDED | {"adapter"}, f"{where}: {selector.name}"


def test_panels_lie_side_by_side_and_say_what_they_show():
    taken = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"].endswith("."), panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}"
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))


def test_dashboard_variables_exist_and_are_used():
    text = DASHBOARD.read_text(encoding="utf-8")
    names = {one["name"] for one in json.loads(text)["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)\}?", text))
    assert names == used


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_alerts_say_what_to_do(alert):
    assert set(alert["annotations"]) == {"summary", "description", "runbook"}
    assert alert["labels"]["severity"] in ("page", "ticket", "info")
    row = f"| `{alert['alert']}` | {alert['labels']['severity']} |"
    assert row in PAGE.read_text(encoding="utf-8")


def fired() -> Iterator[str]:
    """Yield the alerts that some made-up history is expected to fire."""
    for path in RULES_TESTS:
        for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            for one in test.get("alert_rule_test", ()):
                yield from [one["alertname"]] if one["exp_alerts"] else []
            for one in test.get("promql_expr_test", ()):
                if samples := one["exp_samples"]:
                    labels = " ".join(sample["labels"] for sample in samples)
                    yield from re.findall(r'alertname="(\w+)"', f"{one['expr']} {labels}")


def test_every_alert_is_fired_by_a_made_up_history():
    assert {one["alert"] for one in alerts()} <= set(fired())


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize("command", [("check", "rules", RULES), ("test", "rules", *RULES_TESTS)])
def test_promtool_is_content(command):
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *map(str, command)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_reads_what_is_exported():
    assert PROMTOOL is not None
    replica = ReplicaMetrics("tiny", PacingConfig()).render().decode()
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"],
        input=merge_metrics(FrontMetrics().render(0, {}), [("r0", replica), ("r1", replica)]),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    lines = done.stderr.splitlines()
    # vLLM's own names are as they are: a colon, and a share that is called a percentage.
    assert [line for line in lines if not line.startswith("vllm:")] == []
