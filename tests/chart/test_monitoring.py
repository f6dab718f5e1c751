"""Alerts and the dashboard ask for metrics that exist, and answer the questions that users have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.helm import CHART, render
from tests.chart.values import CASES
from tests.servers.prometheus import promtool

DOCS = Path(__file__).parents[2] / "docs"
QUESTIONS = ("Will it fill my disk?", "Is it right?", "When will it be done?")
METRIC = re.compile(r"\blevada_[a-z_]+")


def known() -> set[str]:
    """Return the metrics that are documented, a histogram's series among them."""
    names = set(METRIC.findall((DOCS / "metrics.md").read_text() + (DOCS / "operator.md").read_text()))
    return names | {f"{n}_{part}" for n in names if n.endswith("_seconds") for part in ("bucket", "count", "sum")}


@pytest.fixture
def groups(tmp_path: Path) -> list[dict[str, Any]]:
    """The groups of the PrometheusRule."""
    (rule,) = [b for b in render(tmp_path, CASES["everything"]) if b["kind"] == "PrometheusRule"]
    found: list[dict[str, Any]] = rule["spec"]["groups"]
    return found


def expressions(groups: list[dict[str, Any]]) -> dict[str, str]:
    """Return each alert's expression."""
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def test_alerts_ask_for_metrics_that_exist(groups: list[dict[str, Any]]) -> None:
    """No alert is silent because its metric has another name."""
    for alert, expression in expressions(groups).items():
        names = set(METRIC.findall(expression))
        assert names, alert
        assert names <= known(), alert


def test_alerts_say_what_to_do(groups: list[dict[str, Any]]) -> None:
    """Each alert has a severity, a symptom, its meaning and a remedy. Prometheus fills in the labels in them."""
    assert [g["name"] for g in groups] == [
        "levada-will-it-fill-my-disk",
        "levada-is-it-right",
        "levada-when-will-it-be-done",
        "levada-operator",
    ]
    for group in groups:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert rule["annotations"].keys() == {"summary", "description", "action"}
            for text in rule["annotations"].values():
                assert text.count("{{") == text.count("}}")
                assert set(re.findall(r"{{ (.*?) }}", text)) <= {
                    "$value | humanize", "$value | humanize1024", "$value | humanizeDuration", "$labels.code",
                    "$labels.kind", "$labels.measure", "$labels.namespace", "$labels.phase", "$labels.pipeline",
                    "$labels.policy",
                    "$labels.result",
                    "$labels.schema", "$labels.status", "$labels.table",
                }  # fmt: skip


def test_alerts_are_promql(groups: list[dict[str, Any]], tmp_path: Path) -> None:
    """Prometheus' own tool takes the rules."""
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": groups}))
    promtool("check", "rules", file)


@pytest.mark.parametrize(("passed", "fires"), [(1, False), (2, True)], ids=["driven", "one without a driver"])
def test_limits_without_a_driver(groups: list[dict[str, Any]], tmp_path: Path, passed: int, fires: bool) -> None:
    """The driver of another Pipeline, which reports a passed limit, does not silence the alert."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    driven = 'levada_guard_limit_passed{namespace="a", pipeline="shop", measure="retainedWal", policy="ReleaseSlot"}'
    inputs = [
        {"series": 'levada_operator_limits_passed{policy="ReleaseSlot"}', "values": f"{passed}x60"},
        {"series": driven, "values": "1x60"},
    ]
    expression = expressions(groups)["LevadaLimitPassedWithoutDriver"]
    samples = [{"labels": "{}", "value": passed}] if fires else []
    test = {"expr": expression, "eval_time": "15m", "exp_samples": samples}
    tests = [{"interval": "1m", "input_series": inputs, "promql_expr_test": [test]}]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    promtool("test", "rules", tmp_path / "tests.yaml")


def test_dashboard_answers_the_questions() -> None:
    """Its rows begin with the three questions, every panel is a question, and every metric exists."""
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    panels = dashboard["panels"]
    assert tuple(p["title"] for p in panels if p["type"] == "row")[:3] == QUESTIONS
    assert len({p["id"] for p in panels}) == len(panels)
    for panel in panels:
        assert panel["title"].endswith("?")
        for target in panel.get("targets", []):
            names = set(METRIC.findall(target["expr"]))
            assert names, panel["title"]
            assert names <= known(), panel["title"]
