"""The commands that read: against a real PostgreSQL, without Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from psycopg import sql
from tests.postgres.streams import open_stream
from tests.rigs.command_line import kept, levada, manifest_of, on, publish
from tests.rigs.database import Database
from tests.runtime import samples

from levada.cli import main
from levada.cli.exit_codes import Exit
from levada.copy.kept import KeptCopy
from levada.copy.plan import PlannedLeaf, RangePlan
from levada.runtime.host.work_dir import published_address, running_progress
from levada.runtime.report.access_token import AccessToken
from levada.runtime.report.http import ProgressServer
from levada.runtime.tables.guard_record import record_action
from levada.runtime.tables.kept_copies import store_kept_copy
from levada.status import GuardAction, RetryPolicy
from levada.stores import PostgresStore
from levada.stores.interface import TableAction
from levada.stores.phases import Errored, Init, Ready
from levada.values import Lsn, QualifiedTable

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"


def test_help_names_every_command_and_docs_do_too() -> None:
    """No command is a secret."""
    commands = re.findall(r"^\| `levada (\w+)", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(commands) == sorted(c.callback.__name__ for c in main.registered_commands if c.callback)
    for command in commands:
        shown = levada(command, "--help")
        assert shown.exit_code == 0
        # A required argument is a plain word, as in manuals.
        assert "{" not in shown.stdout


def test_exit_codes_are_documented() -> None:
    """docs/cli.md lists each exit code once, and no other."""
    section = DOCUMENT.read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)] == sorted(Exit)


def test_wrong_command_lines_are_2(manifest: Path) -> None:
    """Usage errors and manifests that cannot be read share a code."""
    assert levada("run", manifest, "--timeout", 5).exit_code == 2
    assert levada("retry", manifest).exit_code == 2
    assert levada("retry", manifest, "orders", "--all").exit_code == 2
    assert levada("check", manifest.parent / "none.yaml").exit_code == 2
    manifest.write_text("kind: Pipeline")
    result = levada("check", manifest)
    assert result.exit_code == 2
    assert "spec" in result.stderr


def test_a_missing_secret_names_the_folder_and_the_key(manifest: Path) -> None:
    """The way out is the path to write."""
    result = levada("check", manifest)
    assert result.exit_code == Exit.PREFLIGHT
    assert "[secret_missing]" in result.stderr
    (manifest.parent / "secrets" / "shop-cdc" / "password").unlink()
    result = on(manifest, "check")
    assert "Secret shop-cdc has no key password" in result.stderr
    assert "shop-cdc/password" in result.stderr.replace("\n", "")


def test_an_unknown_destination_lists_what_is_installed(manifest: Path, db: Database) -> None:
    """A typing error is found before anything is connected."""
    manifest.write_text(yaml.safe_dump(manifest_of(db, destination={"custom": {"type": "icebrg"}})))
    result = on(manifest, "check")
    assert result.exit_code == 2
    assert "no destination 'icebrg' is installed. Installed: bigquery, ducklake, iceberg" in result.stderr


def test_check_of_a_source_that_is_ready(manifest: Path) -> None:
    """It lists the tables, and that the publication will be created. It changes nothing."""
    result = on(manifest, "check")
    assert result.exit_code == 0
    assert "2 tables selected\n  public.items\n  public.orders" in result.stdout
    assert "will be created" in result.stdout
    coverage = json.loads(on(manifest, "check", "-o", "json").stdout)["coverage"]
    assert coverage["missing"] == ["public.items", "public.orders"]


def test_check_of_a_source_that_is_not(manifest: Path, db: Database) -> None:
    """Problems are printed with their hints, and the exit code is 3."""
    manifest.write_text(yaml.safe_dump(manifest_of(db, tables={"include": [{"schema": "elsewhere"}]})))
    result = on(manifest, "check")
    assert result.exit_code == Exit.PREFLIGHT
    assert "[no_tables_selected]" in result.stderr
    found = json.loads(on(manifest, "check", "-o", "json").stdout)
    assert not found["ok"]
    assert "no_tables_selected" in [p["code"] for p in found["problems"]]


def test_run_of_a_source_that_is_not_ready_starts_nothing(manifest: Path, db: Database) -> None:
    """The same problems and the same code, before Spark is started."""
    manifest.write_text(yaml.safe_dump(manifest_of(db, tables={"include": [{"schema": "elsewhere"}]})))
    result = on(manifest, "run")
    assert result.exit_code == Exit.PREFLIGHT
    assert "[no_tables_selected]" in result.stderr
    assert not (manifest.parent / ".levada" / db.name.replace("_", "-") / "engine.json").exists()


def test_a_suspended_pipeline_rests(manifest: Path, db: Database) -> None:
    """Running it is no error, and does nothing."""
    manifest.write_text(yaml.safe_dump(manifest_of(db, suspend=True)))
    result = on(manifest, "run")
    assert result.exit_code == 0
    assert "suspended (spec.suspend: true)" in result.stdout


@pytest.mark.parametrize("on_lost", ["Hold", "Resync"])
def test_status_of_a_lost_slot(manifest: Path, db: Database, on_lost: str) -> None:
    """No table is ready whose changes are gone. The status says that, how it is repaired, and fails."""
    body = manifest_of(db)
    body["spec"]["source"]["slot"] = {"onLost": on_lost}
    manifest.write_text(yaml.safe_dump(body))
    kept(db, "orders", Ready())
    slot = f"levada_{db.name}"
    with db.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        there = on(manifest, "status")
        assert (there.exit_code, "1/1 table ready" in there.stdout) == (Exit.OK, True), there.stdout
        connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    gone = on(manifest, "status")
    shown = " ".join(gone.stdout.split())
    assert gone.exit_code == Exit.FAILED
    assert "slot lost, 1 table" in shown
    assert "1/1" not in shown
    assert f"slot {slot} does not exist: 1 table needs its changes, and must be copied again [slot_missing]" in shown
    assert ("levada run" if on_lost == "Resync" else "--all") in shown
    assert json.loads(on(manifest, "status", "-o", "json").stdout)["error"]["code"] == "slot_missing"


def test_lag_with_and_without_a_slot(manifest: Path, db: Database) -> None:
    """A missing slot is an answer and no error. The bytes of an existing one are numbers in JSON."""
    slot = f"levada_{db.name}"
    assert "does not exist" in on(manifest, "lag").stdout
    assert json.loads(on(manifest, "lag", "-o", "json").stdout)["lagBytes"] is None
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    found = json.loads(on(manifest, "lag", "-o", "json").stdout)
    assert found["lagBytes"] >= 0
    assert found["retainedBytes"] >= found["lagBytes"]
    assert found["active"] is False


def test_status_of_a_pipeline_that_never_ran(manifest: Path, db: Database) -> None:
    """It names the pipeline and the next command. It does not look like one that was stopped."""
    result = on(manifest, "status")
    assert result.exit_code == Exit.OK
    name = db.name.replace("_", "-")
    assert f"pipeline {name} has no slot and no tables yet" in " ".join(result.stdout.split())
    assert "This is the state in the store" not in result.stdout


ERRORED = Errored("no_identity", "orders has no key", "give it one", RetryPolicy.MANUAL_RETRY, 5)


def test_status_without_an_engine_is_what_the_store_keeps(manifest: Path, db: Database) -> None:
    """Errors with their solutions outlive the engine that met them."""
    publish(db)
    kept(db, "orders", ERRORED)
    kept(db, "items", Ready())
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"levada_{db.name}")
    result = on(manifest, "status")
    assert result.exit_code == Exit.TABLE_ERRORED
    assert "public.orders: orders has no key [no_identity]\n  hint: give it one" in result.stdout
    assert "This is the state in the store" in result.stdout
    document = json.loads(on(manifest, "status", "-o", "json").stdout)
    assert document["state"] == "Stopped"
    assert {t["name"]: t["phase"] for t in document["tables"]} == {"orders": "Errored", "items": "Ready"}


def test_status_shows_the_ranges_that_a_killed_copy_keeps(db: Database, manifest: Path) -> None:
    """The store has them, so they are shown without an engine too."""
    publish(db)
    table = kept(db, "orders", Init())
    leaf = PlannedLeaf(QualifiedTable("public", "orders"), blocks=40, bytes=40 * 8192)
    copy = KeptCopy("basis", "place", Lsn(5), RangePlan((leaf,), 10 * 8192), {Lsn(9): frozenset({0, 2})})
    store = PostgresStore(db.connection, db.name.replace("_", "-"))
    store.next_epoch()
    store_kept_copy(store, table, copy)
    store.close()
    ranges = len(copy.plan.ranges())
    assert f"2 of {ranges} ranges are copied, which an interrupted copy keeps" in on(manifest, "status").stdout
    [shown] = json.loads(on(manifest, "status", "-o", "json").stdout)["tables"]
    assert (shown["copy"]["rangesFinished"], shown["copy"]["resumable"]) == (2, True)


def test_status_without_an_engine_says_that_the_slot_is_gone(manifest: Path, db: Database) -> None:
    """Tables that have streamed miss changes then. The guard is named if it dropped the slot, with what it did."""
    publish(db)
    kept(db, "orders", Init())
    assert on(manifest, "status").exit_code == Exit.OK
    kept(db, "items", Ready())
    result = on(manifest, "status")
    assert result.exit_code == Exit.FAILED
    assert "[slot_missing]" in result.stdout
    store = PostgresStore(db.connection, db.name.replace("_", "-"))
    store.next_epoch()
    action = GuardAction("retainedWal", "ReleaseSlot", datetime.now(UTC), "the WAL is 9 GiB, so slot s is dropped")
    record_action(store, action, released="the guard dropped slot s, because the WAL is 9 GiB")
    store.close()
    result = on(manifest, "status")
    assert result.exit_code == Exit.FAILED
    assert "guard: the WAL is 9 GiB, so slot s is dropped" in result.stdout
    assert "the guard dropped slot s, because the WAL is 9 GiB: 1 table needs its changes" in result.stdout


def test_a_start_that_is_refused_has_the_exit_code_of_a_preflight(manifest: Path, tmp_path: Path) -> None:
    """Nothing was changed at the source, so a script may correct the cause and run the command again."""
    blocked = tmp_path / "a-file"
    blocked.write_text("not a folder")
    result = on(manifest, "run", "--work-dir", blocked / "work")
    assert result.exit_code == Exit.PREFLIGHT, result.output
    assert "[work_dir_unusable]" in result.stderr


def test_status_before_the_first_run_changes_nothing(manifest: Path, db: Database) -> None:
    """A command that only reads makes no store at the source."""
    result = on(manifest, "status")
    assert result.exit_code == Exit.OK, result.output
    assert not db.query("SELECT FROM pg_namespace WHERE nspname = 'levada'")


def test_status_of_an_engine_elsewhere_says_so(manifest: Path, tmp_path: Path, db: Database) -> None:
    """The slot is in use, so the pipeline is not stopped. The store's state may be old, so the command fails.

    An engine that is here and does not answer is not elsewhere.
    """
    publish(db)
    slot = f"levada_{db.name}"
    kept(db, "orders", Ready())
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    with open_stream(db, slot, slot):
        result = on(manifest, "status")
        document = json.loads(on(manifest, "status", "-o", "json").stdout)
        with published_address(tmp_path, "http://127.0.0.1:1"):
            here = on(manifest, "status", "--work-dir", tmp_path)
    assert (here.exit_code, "no engine answers" in here.stdout) == (Exit.OK, True)
    assert result.exit_code == Exit.FAILED
    assert "runs elsewhere" in result.stdout
    assert "[engine_elsewhere]" in result.stdout
    assert "Stopped" not in result.stdout
    assert document["error"]["code"] == "engine_elsewhere"


def test_status_of_a_lost_store_says_what_check_does(manifest: Path, db: Database) -> None:
    """A slot without a state is no first start. A resync of all tables is the way on, and ends the error."""
    publish(db)
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"levada_{db.name}")
    result = on(manifest, "status")
    assert result.exit_code == Exit.FAILED, result.output
    assert "the state was lost [store_empty]" in result.stdout
    assert "levada resync" in result.stdout
    assert not db.query("SELECT FROM pg_namespace WHERE nspname = 'levada'")
    assert on(manifest, "resync", "--all").exit_code == Exit.OK
    assert on(manifest, "status").exit_code == Exit.OK


def test_status_of_a_running_engine_is_its_own_word(manifest: Path, tmp_path: Path, db: Database) -> None:
    """The work folder has its address while the engine runs. A cleanup says how to stop the engine."""
    progress = replace(samples.progress(at=datetime.now(UTC)), pipeline=db.name.replace("_", "-"))
    with ProgressServer(lambda: progress) as server, published_address(tmp_path, server.address):
        result = on(manifest, "status", "--work-dir", tmp_path, "-o", "json")
        assert json.loads(result.stdout) == progress.to_json()
        refused = on(manifest, "cleanup", "--work-dir", tmp_path, "--yes").stderr
        assert "[engine_running]" in refused
        assert f"stop it first: kill {os.getpid()}" in refused
    assert running_progress(tmp_path) is None


def test_status_of_an_engine_that_starts_says_so(manifest: Path, tmp_path: Path) -> None:
    """An engine that has no progress yet is not taken for one that does not run, also where it asks for a token."""
    with ProgressServer(lambda: None) as server, published_address(tmp_path, server.address):
        assert "an engine is starting on this machine" in on(manifest, "status", "--work-dir", tmp_path).stdout
    token = manifest.parent / "secrets" / "driver"
    token.mkdir()
    (token / "token").write_text("s3cret")
    body = yaml.safe_load(manifest.read_text())
    body["spec"]["driver"] = {"tokenSecretRef": {"name": "driver", "key": "token"}}
    manifest.write_text(yaml.safe_dump(body))
    with (
        ProgressServer(lambda: None, token=AccessToken(token / "token")) as server,
        published_address(tmp_path, server.address),
    ):
        assert "an engine is starting on this machine" in on(manifest, "status", "--work-dir", tmp_path).stdout
    assert "no engine answers" in on(manifest, "status", "--work-dir", tmp_path).stdout


def test_retry_asks_for_errored_tables_alone(manifest: Path, db: Database) -> None:
    """A table that works has nothing to retry. Without an engine, the output says what begins the retry."""
    publish(db)
    orders, _ = kept(db, "orders", ERRORED), kept(db, "items", Ready())
    result = on(manifest, "retry", "orders", "public.items")
    assert result.exit_code == 0
    assert "public.orders: will be retried" in result.stdout
    assert "public.items: Ready, there is nothing to retry" in result.stdout
    store = PostgresStore(db.connection, db.name.replace("_", "-"))
    store.next_epoch()
    assert store.take_table_actions() == {orders: TableAction.RETRY}
    start = f"begins with the next start: levada run {manifest} --secrets {manifest.parent / 'secrets'}"
    assert start in result.stdout
    done = on(manifest, "retry", "--all")
    assert "public.orders: will be retried" in done.stdout
    assert start not in on(manifest, "retry", "items").stdout
    done = on(manifest, "resync", "orders")
    assert done.exit_code == 0
    assert start in done.stdout
    assert store.take_table_actions() == {orders: TableAction.RESYNC}
    store.close()


def test_a_request_to_an_engine_needs_no_start(manifest: Path, db: Database, tmp_path: Path) -> None:
    """The engine that runs takes the request up: no other start is proposed."""
    publish(db)
    kept(db, "orders", ERRORED)
    pipeline = db.name.replace("_", "-")
    work_dir = tmp_path / ".levada" / pipeline
    work_dir.mkdir(parents=True)
    progress = replace(samples.progress(), pipeline=pipeline)
    with ProgressServer(lambda: progress) as server, published_address(work_dir, server.address):
        for command in ("retry", "resync"):
            done = on(manifest, command, "orders")
            assert done.exit_code == 0
            assert "public.orders: will be" in done.stdout
            assert "no engine runs" not in done.stdout


@pytest.mark.since(15)  # TABLES IN SCHEMA
def test_a_table_that_the_pipeline_does_not_have(manifest: Path, db: Database) -> None:
    """Each command names it, and the tables that exist, or some of many."""
    publish(db)
    for command in (("retry", "ordes"), ("resync", "ordes"), ("verify", "--table", "ordes")):
        unknown = on(manifest, *command)
        assert unknown.exit_code == 1
        assert "not a table of this pipeline: public.ordes [unknown_table]" in unknown.stderr
        assert "hint: its tables are: public.items public.orders\n" in unknown.stderr
    with db.connect() as connection:
        for i in range(30):
            connection.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY)").format(sql.Identifier(f"t{i:02}")))
        add = sql.SQL("ALTER PUBLICATION {} ADD TABLES IN SCHEMA public")
        connection.execute(add.format(sql.Identifier(f"levada_{db.name}")))
    shown = " ".join(on(manifest, "retry", "ordes").stderr.split())
    assert "public.t17 and 12 more. All: levada status" in shown


def test_a_table_that_is_dropped_while_tables_are_listed(manifest: Path, db: Database) -> None:
    """The command does not wait for the transaction that drops it."""
    db.execute("CREATE TABLE gone (id int PRIMARY KEY)")
    publish(db)
    kept(db, "orders", ERRORED)
    with db.connect() as dropping:
        dropping.execute(sql.SQL("ALTER PUBLICATION {} ADD TABLE gone").format(sql.Identifier(f"levada_{db.name}")))
        dropping.execute("BEGIN")
        dropping.execute("DROP TABLE gone")
        result = on(manifest, "retry", "--all")
        dropping.execute("COMMIT")
    assert result.exit_code == 0, result.output
    assert "public.orders: will be retried" in result.stdout


def test_requests_before_the_first_run(manifest: Path) -> None:
    """The publication is the pipeline's own to create: no hint has the user publish all tables."""
    result = on(manifest, "verify", "--table", "orders")
    assert (result.exit_code, "[publication_missing]" in result.stderr) == (1, True)
    assert f"hint: levada run {manifest} --secrets" in result.stderr
    requested = on(manifest, "resync", "orders")
    assert requested.exit_code == 0, requested.output
    unknown = on(manifest, "resync", "nothing")
    assert (unknown.exit_code, "[unknown_table]" in unknown.stderr) == (1, True)
    retried = on(manifest, "retry", "--all")
    assert retried.exit_code == 0, retried.output


def test_requests_to_a_memory_store_say_that_they_cannot_arrive(manifest: Path, db: Database) -> None:
    """The memory of another process is out of reach."""
    manifest.write_text(yaml.safe_dump(manifest_of(db, store={"memory": {}})))
    result = on(manifest, "retry", "--all")
    assert result.exit_code == 1
    assert "[store_is_memory]" in result.stderr


def test_schema_is_json() -> None:
    """An editor can read it."""
    assert json.loads(levada("schema").stdout)["oneOf"]


def test_the_manifest_may_be_named_by_the_environment(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a driver's pod the variables name manifest, Secrets and work folder, also before names of tables and cuts.

    An argument goes before them, and a mistyped path is no name."""
    manifest, secrets = tmp_path / "pipeline.yaml", tmp_path / "secrets"
    manifest.write_text(yaml.safe_dump(manifest_of(db)))
    (secrets / "shop-cdc").mkdir(parents=True)
    for key in ("username", "password"):
        (secrets / "shop-cdc" / key).write_text("postgres")
    monkeypatch.setenv("LEVADA_MANIFEST", str(manifest))
    monkeypatch.setenv("LEVADA_SECRETS", str(secrets))
    monkeypatch.setenv("LEVADA_WORK_DIR", str(tmp_path / "work"))
    shown = levada("status", "-o", "json")
    assert shown.exit_code == Exit.OK, shown.output
    assert json.loads(shown.stdout)["pipeline"] == manifest_of(db)["metadata"]["name"]
    assert levada("status", tmp_path / "other.yaml").exit_code == Exit.USAGE
    for given in ((), (manifest,)):
        for command in ("retry", "resync"):
            refused = levada(command, *given, "public.nowhere")
            assert (refused.exit_code, "unknown_table" in refused.output) == (Exit.FAILED, True), refused.output
    for command in ("retry", "resync", "cut"):
        assert levada(command, "other.yaml", "name").exit_code == Exit.USAGE
        assert "'MANIFEST'" in levada(command, "other.yaml", "name").output


@pytest.mark.sampled
@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize(
    ("words", "found"),
    [("levada ver", {"verify", "version"}), ("levada verify --sh", {"--show-values"}), ("levada cop", set())],
)
def test_a_shell_completes_commands_and_options(words: str, found: set[str]) -> None:
    """Bash asks the command as docs/cli.md says. A hidden command is not proposed."""
    environment = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_LEVADA_COMPLETE": "complete_bash"}
    command = [sys.executable, "-c", "from levada.cli import main; main(prog_name='levada')"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert set(done.stdout.split()) == found
