"""`levada check` and `levada plan` say before a run what it then does, on real servers."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rigs.command_line import manifest, manifest_of, on, publish, replicated, run
from tests.rigs.database import Database, StartPostgres

from levada.cli.exit_codes import Exit
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.source.destination_place import save_place
from levada.runtime.tables.requests import CopySettings
from levada.spec import load_manifests
from levada.status import CutPhase, RetryPolicy
from levada.stores import PostgresStore
from levada.stores.interface import Cut, TableControls
from levada.stores.phases import Errored, Ready
from levada.values import Lsn, QualifiedTable, TableId

__all__ = ["manifest"]


def of_table(db: Database, name: str, **spec: Any) -> dict[str, Any]:
    """Return a TableSync."""
    of = {"pipelineRef": {"name": db.name.replace("_", "-")}, "table": {"name": name}, **spec}
    named = {"name": name.lower().replace("_", "-")}
    return {"apiVersion": "levada.dev/v1alpha1", "kind": "TableSync", "metadata": named, "spec": of}


def write(manifest: Path, *documents: dict[str, Any]) -> None:
    """Write the manifest."""
    manifest.write_text(yaml.safe_dump_all(documents))


def shown(manifest: Path, command: str = "plan") -> str:
    """Return what a command prints, without its line breaks."""
    return " ".join(on(manifest, command).output.split())


def warnings(manifest: Path, command: str) -> dict[str, str]:
    """Return the message of each warning with its code."""
    found = json.loads(on(manifest, command, "-o", "json").stdout)["problems"]
    return {problem["message"]: problem["code"] for problem in found if problem["severity"] == "Warning"}


def park(db: Database, name: str, phase: Errored) -> None:
    """Park a table, as an engine would have."""
    [(oid,)] = db.query("SELECT %s::regclass::oid", f"public.{name}")
    store = PostgresStore(db.connection, db.name.replace("_", "-"))
    store.next_epoch()
    store.update_table_replication_states({TableId(oid): phase})
    store.close()


@pytest.mark.nightly
def test_names_that_match_nothing(manifest: Path, db: Database) -> None:
    """Each is a warning of check, of plan and in the log of a run. What exists but is not replicated is excluded."""
    db.execute(
        "CREATE TABLE customers (id int PRIMARY KEY)",
        "CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)",
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20)",
        "CREATE VIEW totals AS SELECT 1 AS one",
    )
    include = [{"schema": "public"}, {"schema": "sales", "name": "x*"}]
    names = ["custmers", "Orders", "items", "r1", "totals", "tmp_*"]
    pipeline = replicated(db, tables={"include": include, "exclude": [{"schema": "public", "name": n} for n in names]})
    write(manifest, pipeline, of_table(db, "custmers"), of_table(db, "items"), of_table(db, "r2"))
    expected = {
        "spec.tables.include has sales.x*, which matches no table that can be replicated": "pattern_without_table",
        "spec.tables matches public.fast, unlogged: their changes are not in the WAL, so they are left out": (
            "unlogged_tables_left_out"
        ),
        "spec.tables.exclude names public.custmers, which does not exist, so it excludes nothing": (
            "excluded_table_missing"
        ),
        "spec.tables.exclude names public.Orders, which does not exist, so it excludes nothing": (
            "excluded_table_missing"
        ),
        "spec.tables.exclude matches partitions of public.r, which is selected: public.r1. Their rows are copied with"
        " it": "excluded_table_missing",
        "a TableSync names public.custmers, which does not exist": "tablesync_without_table",
        "a TableSync names public.r2, which is a partition": "tablesync_without_table",
        "a TableSync names public.items, which spec.tables does not select": "tablesync_without_table",
    }
    for command in ("check", "plan"):
        assert warnings(manifest, command) == expected
    assert "did you mean public.customers? Correct the TableSync" in shown(manifest, "check")
    log = run(manifest)
    assert [line for line in (f"{m} [{code}]" for m, code in expected.items()) if line not in log] == []
    write(manifest, replicated(db, tables={"include": [{"schema": "public"}], "exclude": [{"schema": "tmp"}]}))
    assert list(warnings(manifest, "check").values()) == ["unlogged_tables_left_out"]


def test_regular_expressions_are_none(manifest: Path, db: Database) -> None:
    """An entry that is written as one matches nothing, so the tables that it should exclude are replicated."""
    db.execute("CREATE TABLE secret_keys (id int PRIMARY KEY)")
    include = [{"schema": "public"}, {"schema": "public", "name": "^ord.*$"}]
    names = ["secret.*", "^secret_*$", "(secret|key)*", "tmp_*"]
    tables = {"include": include, "exclude": [{"schema": "public", "name": n} for n in names]}
    write(manifest, replicated(db, tables=tables))
    nothing = "which matches no table that can be replicated"
    excluded = {f"spec.tables.exclude has public.{n}, {nothing}": "excluded_table_missing" for n in names[:3]}
    included = {f"spec.tables.include has public.^ord.*$, {nothing}": "pattern_without_table"}
    assert warnings(manifest, "check") == included | excluded
    assert "It is no regular expression: * matches any characters" in shown(manifest, "check")
    tables["exclude"] = [{"schema": "public", "name": "secret_*"}]
    write(manifest, replicated(db, tables=tables | {"include": include[:1]}))
    assert warnings(manifest, "check") == {}


@pytest.mark.nightly
def test_tables_that_leave_the_selection(manifest: Path, db: Database) -> None:
    """The plan names them, and the run says the same by their names. Their tables at the destination stay."""
    db.execute("CREATE TABLE gone (id int PRIMARY KEY)")
    write(manifest, replicated(db))
    run(manifest)
    db.execute("DROP TABLE gone")
    write(
        manifest,
        replicated(db, tables={"include": [{"schema": "public"}], "exclude": [{"schema": "public", "name": "items"}]}),
    )
    plan = shown(manifest)
    for why in ("no longer selected: public.items", "dropped at the source: public.gone"):
        table = why.rpartition(".")[2]
        assert f"{why}. Its state is forgotten, and its table replica.{table} at the destination stays" in plan
    log = run(manifest)
    assert "table public.items is no longer selected: its state is forgotten, its destination stays" in log
    assert "table public.gone no longer exists: its state is forgotten, its destination stays" in log
    assert db.query("SELECT to_regclass('replica.items')::text, to_regclass('replica.gone')::text") == [
        ("replica.items", "replica.gone")
    ]
    assert json.loads(on(manifest, "plan", "-o", "json").stdout)["plan"]["leaving"] == []


def test_a_suspended_pipeline(manifest: Path, db: Database) -> None:
    """Check and plan say that a run does nothing."""
    write(manifest, replicated(db, suspend=True))
    for command in ("check", "plan"):
        assert warnings(manifest, command) == {
            "spec.suspend is true, so a run ends at once and replicates nothing": "manifest_suspended"
        }


@pytest.mark.sampled
@pytest.mark.parametrize("policy", ["Hold", "Resync"])
def test_parked_tables(manifest: Path, db: Database, policy: str) -> None:
    """Each has its error and what resolves it. With onUnstreamable Resync, one that missed changes is copied again."""
    pipeline = replicated(db)
    pipeline["spec"]["tables"]["onUnstreamable"] = policy
    write(manifest, pipeline)
    run(manifest)
    park(db, "orders", Errored("no_identity", "orders has no key", "", RetryPolicy.MANUAL_RETRY))
    missed = "levada resync MANIFEST public.items"
    park(db, "items", Errored("destination_table_missing", "items is gone", missed, RetryPolicy.NO_RETRY))
    plan = shown(manifest)
    assert "no, Errored [no_identity]" in plan
    assert "public.orders: orders has no key [no_identity] hint: levada retry" in plan
    if policy == "Hold":
        assert "parked: 2 tables" in plan
        assert "public.items: items is gone [destination_table_missing] hint: levada resync" in plan
    else:
        assert "parked: 1 table" in plan
        assert "copied again: 1 table, missed changes" in plan


@pytest.mark.nightly
def test_another_schema_at_the_destination(manifest: Path, db: Database) -> None:
    """The plan says where tables are copied to, and what becomes of those from before, as the run then does."""
    write(manifest, replicated(db))
    run(manifest)
    write(manifest, replicated(db, "other_{schema}"), of_table(db, "items", destinationTable="things"))
    plan = shown(manifest)
    moved = "public.orders is copied again into other_public.orders. Its table replica.orders is dropped"
    assert moved in plan
    assert "public.items is copied again into other_public.things. Its table replica.items is dropped" in plan
    run(manifest)
    there = "SELECT relnamespace::regnamespace || '.' || relname FROM pg_class WHERE relname IN ('orders', 'things')"
    assert sorted(db.query(f"{there} AND relkind = 'r'")) == [
        ("other_public.orders",),
        ("other_public.things",),
        ("public.orders",),
    ]
    assert db.query("SELECT to_regclass('replica.items')") == [(None,)]
    assert "copied again" not in shown(manifest)


@pytest.mark.nightly
def test_another_namespace_in_the_lake(manifest: Path, db: Database) -> None:
    """Iceberg's tables in the former namespace stay, those of another name are dropped, and cuts lose both."""
    publish(db)
    config = pipeline_config(load_manifests(manifest.read_text()), secrets=manifest.parent / "secrets")
    with closing(PostgresStore(db.connection, config.name)) as store:
        store.next_epoch()
        for name in ("orders", "items"):
            [(oid,)] = db.query("SELECT %s::regclass::oid", f"public.{name}")
            store.update_table_replication_states({TableId(oid): Ready()})
            copied = CopySettings.of(config, QualifiedTable("public", name))
            store.store_table_controls(TableId(oid), TableControls(made_as=copied.to_text()))
        store.store_cut(Cut("month_end", Lsn(1), datetime.now(UTC), None, CutPhase.COMPLETE, (TableId(oid),)))

    def planned() -> dict[str, tuple[str | None, bool | None]]:
        plan = json.loads(on(manifest, "plan", "-o", "json").stdout)["plan"]
        assert plan["cutsThatLoseTables"] == 1
        return {table["name"]: (table["formerTable"], table["formerTableStays"]) for table in plan["tables"]}

    pipeline = manifest_of(db)
    write(manifest, pipeline, of_table(db, "items", destinationTable="things"))
    assert planned() == {"orders": (None, None), "items": ("public.items", False)}
    pipeline["spec"]["destination"]["iceberg"]["namespace"] = "lake_{schema}"
    write(manifest, pipeline)
    assert planned() == {"orders": ("public.orders", True), "items": ("public.items", True)}
    plan = shown(manifest)
    assert "public.orders is copied again into lake_public.orders. Its table public.orders stays until you" in plan
    assert "1 cut will no longer have them" in plan


@pytest.mark.nightly
def test_another_server_of_the_destination(start_postgres: StartPostgres, manifest: Path, db: Database) -> None:
    """Tables that the new address does not have are parked. Once it is set back, a retry is enough."""
    pipeline = replicated(db)
    write(manifest, pipeline)
    run(manifest)
    with start_postgres() as server:
        Database(server, "postgres").execute(f"CREATE DATABASE {db.name}")
        pipeline["spec"]["destination"]["postgres"]["port"] = server.port
        write(manifest, pipeline)
        moved = on(manifest, "run", "--until", "caught-up")
        assert moved.exit_code == Exit.TABLE_ERRORED, moved.output
        assert "Resolve the cause, then: levada retry" in " ".join(moved.output.split())
    pipeline["spec"]["destination"]["postgres"]["port"] = db.server.port
    write(manifest, pipeline)
    assert "hint: check that spec.destination is the one that has the table, then levada retry" in shown(manifest)
    on(manifest, "retry", "--all")
    run(manifest)
    assert "parked" not in shown(manifest)


def test_a_warehouse_with_a_slash_at_its_end(manifest: Path, db: Database) -> None:
    """It is the same one. Another folder is not."""
    publish(db)
    config = pipeline_config(load_manifests(manifest.read_text()), secrets=manifest.parent / "secrets")
    with closing(PostgresStore(db.connection, config.name)) as store:
        store.next_epoch()
        save_place(config, store)
    catalog = manifest_of(db)["spec"]["destination"]["iceberg"]["catalog"]
    for added, refused in (("/", False), ("2", True)):
        moved = {**catalog, "warehouse": catalog["warehouse"] + added}
        write(manifest, manifest_of(db, destination={"iceberg": {"catalog": moved}}))
        assert ("[immutable_field_changed]" in shown(manifest, "check")) is refused
