"""The alerts on the page of the metrics, evaluated by Prometheus, which scrapes an engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml
from tests.docs.pages import blocks_of
from tests.rigs.database import Database
from tests.rigs.engine import Engine, engine
from tests.rigs.waiting import until
from tests.servers.prometheus import ask, prometheus, promtool

__all__ = ["engine"]

PAGE: Final = Path(__file__).parents[2] / "docs" / "metrics.md"
FIRE: Final = {
    "LevadaSlotFillsDisk": ('levada_slot_retained_bytes{pipeline="shop"}', "2.1e10", 10),
    "LevadaSlotAlmostLost": ('levada_slot_wal_status{pipeline="shop", status="unreserved"}', "1", 0),
    "LevadaTableErrored": ('levada_table_error{pipeline="shop", code="table_not_ours"}', "1", 5),
    "LevadaTableStale": ('levada_table_lag_seconds{pipeline="shop"}', "301", 10),
    # The clock begins at zero, when the slot was sampled.
    "LevadaGone": ('levada_slot_sample_time_seconds{pipeline="shop"}', "0", 16),
}
"""A series that makes each alert fire, its value, and the minutes for which it has to last."""


def rules() -> list[dict[str, Any]]:
    """Return the alerts of the page."""
    (block,) = blocks_of(PAGE)
    found: list[dict[str, Any]] = yaml.safe_load(block.code)
    return found


def test_prometheus_scrapes_an_engine(engine: Engine, db: Database, tmp_path: Path) -> None:
    """Each metric has a row on the page. The alert of a parked table waits, and that of a lost driver fires."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE parked (id int PRIMARY KEY)",
        "CREATE SCHEMA copy_public",
        "CREATE TABLE copy_public.parked (id int)",
    )
    server = {"host": "127.0.0.1", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
    target = {**server, "credentialsSecretRef": {"name": "pg"}, "schema": "copy_{schema}"}
    engine.spec = {"destination": {"postgres": target}}
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: sorted(t["phase"] for t in p["tables"]) == ["Errored", "Ready"])
    with prometheus(tmp_path, rules(), f"127.0.0.1:{engine.port}") as address:

        def states() -> dict[str, str]:
            groups = (ask(address, "rules") or {"groups": []})["groups"]
            found = [rule for group in groups for rule in group["rules"]]
            return {rule["name"]: f"{rule['state']}, {rule['health']} {rule.get('lastError', '')}" for rule in found}

        quiet = {rule["alert"]: "inactive, ok " for rule in rules()}
        # Before the first scrape there is no driver.
        until(states, lambda found: found == {**quiet, "LevadaTableErrored": "pending, ok "})
        names = {name for name in ask(address, "label/__name__/values") if name.startswith("levada_")}
        assert names - set(re.findall(r"^\| `(levada_\w+)` \|", PAGE.read_text(), re.MULTILINE)) == set()
        asked = {name for rule in rules() for name in re.findall(r"\blevada_\w+", rule["expr"])}
        assert asked - names == set()
        engine.stop()
        until(states, lambda found: found["LevadaGone"].startswith("firing, ok"))


def test_each_alert_fires(tmp_path: Path) -> None:
    """It fires for the pipeline once its series has lasted, neither before nor without it."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "rules", "rules": rules()}]}))
    assert {rule["alert"] for rule in rules()} == FIRE.keys()
    tests = []
    for alert, (series, value, minutes) in FIRE.items():
        fired = [{"exp_labels": dict(re.findall(r'(\w+)="(\w+)"', series))}]
        expected = [
            {
                "eval_time": f"{time}m",
                "alertname": name,
                "exp_alerts": fired if (name, time) == (alert, minutes) else [],
            }
            for name in FIRE
            for time in range(max(0, minutes - 1), minutes + 1)
        ]
        inputs = [{"series": series, "values": f"{value}x60"}, {"series": "levada_state", "values": "1x60"}]
        tests.append({"interval": "1m", "input_series": inputs, "alert_rule_test": expected})
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    promtool("test", "rules", tmp_path / "tests.yaml")


def test_one_of_two_drivers_is_gone(tmp_path: Path) -> None:
    """The other one, which still reports, does not silence the alert. It fires for a day."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "rules", "rules": rules()}]}))
    series = {"shop": "1 1 1 stale", "stock": "1x2000"}
    inputs = [
        {"series": f'levada_state{{pipeline="{name}", state="Running"}}', "values": values}
        for name, values in series.items()
    ]
    fired = [{"exp_labels": {"pipeline": "shop"}}]
    expected = [
        {"eval_time": f"{minute}m", "alertname": "LevadaGone", "exp_alerts": fired if minute in (3, 600) else []}
        for minute in (2, 3, 600, 1500)
    ]
    tests = [{"interval": "1m", "input_series": inputs, "alert_rule_test": expected}]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    promtool("test", "rules", tmp_path / "tests.yaml")
