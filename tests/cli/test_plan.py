"""`levada plan`: what a run would do, against a real PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from tests.rigs.command_line import kept, manifest, manifest_of, on, publish
from tests.rigs.database import Database

from levada.cli.exit_codes import Exit
from levada.cli.plan import fitting_grid
from levada.postgres.estimates import TableEstimate
from levada.postgres.rates import SourceRates
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.host.plan import PlannedTable, RunPlan
from levada.runtime.tables.requests import CopySettings
from levada.spec import load_manifests
from levada.stores import PostgresStore
from levada.stores.interface import TableControls
from levada.stores.phases import Ready
from levada.values import QualifiedTable

__all__ = ["manifest"]


def objects(db: Database) -> list[tuple[object, ...]]:
    """Return every schema, publication, slot and event trigger of the database."""
    return db.query(
        "SELECT 'schema', nspname FROM pg_namespace UNION ALL SELECT 'publication', pubname FROM pg_publication"
        " UNION ALL SELECT 'slot', slot_name FROM pg_replication_slots"
        " UNION ALL SELECT 'trigger', evtname FROM pg_event_trigger ORDER BY 1, 2"
    )


def test_tables_sizes_and_changes(manifest: Path, db: Database) -> None:
    """Each table has its estimate and its place, the largest is measured, and nothing is changed.

    The statements of a run have their semicolons, so that they can be pasted together.
    """
    db.execute(
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        "INSERT INTO large SELECT i, repeat(md5(i::text), 30) FROM generate_series(1, 60000) i",
        "CREATE TABLE plain (v text)",
        "ALTER TABLE plain REPLICA IDENTITY FULL",
        "ANALYZE",
    )
    before = objects(db)
    done = on(manifest, "plan", "-o", "json")
    assert done.exit_code == Exit.OK, done.output
    plan = json.loads(done.stdout)["plan"]
    tables = {table["name"]: table for table in plan["tables"]}
    assert tables.keys() == {"orders", "items", "large", "plain"}
    assert tables["large"]["rows"] == 60_000
    assert tables["large"]["bytes"] > 50_000_000
    assert (tables["large"]["identity"], tables["plain"]["identity"]) == ("primary key", "full")
    assert tables["large"]["destinationTable"].endswith(".large")
    assert not any(table["copied"] for table in tables.values())
    assert plan["copyBytes"] == sum(table["bytes"] for table in tables.values())
    assert plan["readBytesPerSecond"] > 0
    assert plan["copySecondsAtLeast"] > 0
    assert plan["stagedBytes"] is not None
    publication, slot = plan["changesAtSource"]
    assert publication.startswith("CREATE PUBLICATION")
    assert "pg_create_logical_replication_slot" in slot
    assert publication.endswith(";")
    assert slot.endswith(";")
    assert objects(db) == before
    text = on(manifest, "plan").stdout
    assert "to copy: 4 tables" in text
    assert "~60,000" in text
    assert "CREATE PUBLICATION" in text


@pytest.mark.nightly
@pytest.mark.since(15)  # a column list of a publication
def test_modes_are_those_that_tables_will_have(manifest: Path, db: Database) -> None:
    """A table is a changelog if it has no key, or if its key is excluded or not in the publication's column list."""
    db.execute(
        "CREATE TABLE keyless (id int)",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
        "CREATE TABLE cut (id int PRIMARY KEY, v text)",
        "ALTER TABLE cut REPLICA IDENTITY FULL",
    )
    pipeline = manifest_of(db)
    of_pipeline = {"name": pipeline["metadata"]["name"]}
    cut = {"pipelineRef": of_pipeline, "table": {"name": "cut"}, "columns": {"exclude": ["id"]}}
    kind = {"apiVersion": "levada.dev/v1alpha1", "kind": "TableSync", "metadata": {"name": "cut"}, "spec": cut}
    manifest.write_text(yaml.safe_dump_all([pipeline, kind]))

    def modes() -> dict[str, str]:
        plan = json.loads(on(manifest, "plan", "-o", "json").stdout)["plan"]
        return {table["name"]: table["mode"] for table in plan["tables"]}

    assert modes() == {"orders": "Upsert", "items": "Upsert", "keyless": "Changelog", "cut": "Changelog"}
    manifest.write_text(yaml.safe_dump(pipeline))
    assert modes()["cut"] == "Upsert"
    db.execute(f"CREATE PUBLICATION levada_{db.name} FOR TABLE orders, items, keyless, cut (v)")
    assert modes() == {"orders": "Upsert", "items": "Upsert", "keyless": "Changelog", "cut": "Changelog"}


def test_a_problem_stops_the_plan(manifest: Path, db: Database) -> None:
    """The problems are those of a check, with its exit code."""
    manifest.write_text(yaml.safe_dump(manifest_of(db, tables={"include": [{"schema": "elsewhere"}]})))
    done = on(manifest, "plan")
    assert done.exit_code == Exit.PREFLIGHT
    assert "no_tables_selected" in done.output
    found = json.loads(on(manifest, "plan", "-o", "json").stdout)
    assert (found["ok"], found["plan"]) == (False, None)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("above", "waits"), [(None, True), ("1Gi", False), (1, True)], ids=["every", "smaller", "larger"]
)
def test_tables_that_are_copied_again(manifest: Path, db: Database, above: str | int | None, waits: bool) -> None:
    """Tables whose settings have changed, whose resync is requested, or whose slot is lost, with the reason."""
    db.execute("INSERT INTO orders SELECT generate_series(1, 100)")
    slot = {"name": db.name, "onLost": "Resync"}
    source = {**manifest_of(db)["spec"]["source"], "slot": slot}
    pipeline = manifest_of(db, source=source, approval="Manual", **({} if above is None else {"approvalAbove": above}))
    config = pipeline_config(load_manifests(yaml.safe_dump(pipeline)), secrets=manifest.parent / "secrets")
    publish(db)
    for name in ("orders", "items"):
        table = kept(db, name, Ready())
        store = PostgresStore(db.connection, config.name)
        store.next_epoch()
        copied = CopySettings.of(config, QualifiedTable("public", name))
        store.store_table_controls(table, TableControls(made_as=copied.to_text()))
        store.close()
    table_sync = {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "TableSync",
        "metadata": {"name": "orders"},
        "spec": {"pipelineRef": {"name": config.name}, "table": {"name": "orders"}, "mode": "Changelog"},
    }

    def planned() -> dict[str, str]:
        plan = json.loads(on(manifest, "plan", "-o", "json").stdout)["plan"]
        assert plan["approvalRequired"] is ("settings changed" in {t["copiedAgain"] for t in plan["tables"]} and waits)
        assert plan["copyBytes"] == sum(t["bytes"] for t in plan["tables"] if t["copiedAgain"])
        return {table["name"]: table["copiedAgain"] for table in plan["tables"]}

    manifest.write_text(yaml.safe_dump_all([pipeline, table_sync]))
    assert planned() == {"orders": "settings changed", "items": "slot lost"}
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", db.name)
    assert planned() == {"orders": "settings changed", "items": None}
    text = on(manifest, "plan").stdout
    assert "to copy: 1 table," in text
    assert "copied again: 1 table, settings changed" in text
    assert ("--approve" in text) is waits
    table_sync["spec"] = {"pipelineRef": {"name": config.name}, "table": {"name": "orders"}, "resyncNonce": 2}
    manifest.write_text(yaml.safe_dump_all([pipeline, table_sync]))
    assert planned() == {"orders": "requested", "items": None}
    db.query("SELECT pg_drop_replication_slot(%s)", db.name)
    slot["onLost"] = "Hold"
    manifest.write_text(yaml.safe_dump_all([pipeline]))
    found = json.loads(on(manifest, "plan", "-o", "json").stdout)
    assert {t["copiedAgain"] for t in found["plan"]["tables"]} == {None}
    assert not any("replication_slot" in change for change in found["plan"]["changesAtSource"])
    assert [(p["severity"], p["code"]) for p in found["problems"] if p["code"] == "slot_missing"] == [
        ("Error", "slot_missing")
    ]


@pytest.mark.parametrize("width", [80, 200, 100_000])
def test_nothing_is_cut(width: int) -> None:
    """Each name and figure is whole at each width. Names that are longer than a line are folded."""
    names = ["orders", "x" * 63, "[bold]m"]
    estimate = TableEstimate(20_000, 1 << 60, "full")
    tables = [
        PlannedTable(QualifiedTable("public", n), f"shop_public.{n}", "Changelog", estimate, copied=False)
        for n in names
    ]
    console = Console(width=width, color_system=None)
    with console.capture() as shown:
        console.print(fitting_grid(RunPlan(tuple(tables), (), SourceRates(None, 0.0), 1, None, None, None), console))
    text = shown.get()
    assert max(map(len, text.splitlines())) <= width
    assert text.count("~20,000") == text.count("1024 PiB") == text.count("Changelog") == len(names)
    assert text.count("[bold]m") == text.count("public.orders") == 2
    assert text.count("x") == 2 * 63
