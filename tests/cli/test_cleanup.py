"""`levada cleanup` against a real PostgreSQL: what it removes, what it leaves, and when it removes nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from tests.postgres.streams import open_stream
from tests.rigs.command_line import kept, levada, manifest, on, replicated
from tests.rigs.database import Database
from tests.rigs.limits import limited

from levada.cli.exit_codes import Exit
from levada.errors import StaleEpoch
from levada.postgres.ddl import install_ddl_trigger
from levada.postgres.publication_owners import mark_publication
from levada.runtime.host import cleanup
from levada.runtime.host.work_dir import locked_work_dir
from levada.runtime.limits import Limits
from levada.spec import load_manifests
from levada.stores import PostgresStore
from levada.stores.phases import Ready
from levada.values import PipelineOwner

__all__ = ["manifest"]


def test_cleanup_asks_and_may_be_repeated(manifest: Path, db: Database) -> None:
    """Slot and state are removed by default, and the publication stays. A second run finds nothing and succeeds."""
    published = f"levada_{db.name}"
    db.execute(f"CREATE PUBLICATION {published} FOR TABLE orders")
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"levada_{db.name}")
    kept(db, "orders", Ready())
    refused = levada("cleanup", manifest, "--secrets", manifest.parent / "secrets")
    assert refused.exit_code == 1
    assert db.query("SELECT count(*) FROM pg_replication_slots WHERE database = %s", db.name) == [(1,)]
    first = on(manifest, "cleanup", "--yes")
    assert first.exit_code == 0
    assert f"slot levada_{db.name}: dropped" in first.stdout
    assert f"will stay: publication {published} (deletionPolicy.publication: Retain)" in first.stdout
    assert "will stay: the tables at the destination (deletionPolicy.destinationTables: Retain)" in first.stdout
    assert "deletionPolicy.slot" not in first.stdout
    assert db.query("SELECT count(*) FROM pg_replication_slots WHERE database = %s", db.name) == [(0,)]
    assert db.query("SELECT count(*) FROM levada.documents WHERE kind = 'phases'") == [(0,)]
    assert db.query("SELECT pubname FROM pg_publication") == [(published,)]
    again = on(manifest, "cleanup", "--yes")
    assert again.exit_code == 0
    assert "does not exist" in again.stdout


def test_cleanup_by_a_role_that_does_not_own_the_trigger(manifest: Path, db: Database, role: str) -> None:
    """The trigger stays, with the statement for its owner, and every other step runs."""
    db.execute(f"ALTER ROLE {role} REPLICATION", f"CREATE SCHEMA levada AUTHORIZATION {role}")
    with db.connect() as connection:
        assert install_ddl_trigger(connection)
    (manifest.parent / "secrets" / "shop-cdc" / "username").write_text(role)
    done = on(manifest, "cleanup", "--yes")
    assert done.exit_code == Exit.OK, done.output
    told = " ".join(done.stdout.split())
    assert f"slot levada_{db.name}: does not exist" in told
    assert "kept, because role postgres owns it. To remove it, as postgres: DROP EVENT TRIGGER levada_ddl;" in told
    assert "ownership: released" in told
    assert db.query("SELECT evtname FROM pg_event_trigger ORDER BY 1") == [("levada_ddl",), ("levada_ddl_drop",)]
    db.execute("DROP EVENT TRIGGER levada_ddl", "DROP EVENT TRIGGER levada_ddl_drop")
    assert "event trigger: does not exist" in on(manifest, "cleanup", "--yes").stdout


def test_cleanup_names_who_locks_the_trigger(manifest: Path, db: Database) -> None:
    """It does not wait for that session, and ends what is left once it is gone."""
    with db.connect() as connection:
        assert install_ddl_trigger(connection)
    with db.connect(application_name="hog") as other, other.transaction():
        other.execute("LOCK TABLE levada_ddl.withdrawn")
        done = on(manifest, "cleanup", "--yes")
        assert done.exit_code == Exit.FAILED
        assert "[table_locked]" in done.output
        assert f"SELECT pg_terminate_backend({other.info.backend_pid})" in done.output
    done = on(manifest, "cleanup", "--yes")
    assert "event trigger: removed" in done.output


def test_one_process_uses_a_work_folder(manifest: Path, tmp_path: Path, db: Database) -> None:
    """An engine that is still starting reports no progress: nothing is removed under it, and no second one starts."""
    slot = f"levada_{db.name}"
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    kept(db, "orders", Ready())
    with locked_work_dir(tmp_path):
        for command, code in (("cleanup", Exit.FAILED), ("run", Exit.PREFLIGHT)):
            result = on(manifest, command, "--work-dir", tmp_path, *(["--yes"] if command == "cleanup" else []))
            assert "[engine_running]" in result.stderr, result.output
            assert result.exit_code == code
            assert f"kill {os.getpid()}" in result.stderr
    assert db.query("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", slot) == [(1,)]
    assert db.query("SELECT count(*) FROM levada.documents WHERE kind = 'phases'") == [(1,)]
    assert (tmp_path / "engine.lock").stat().st_mode & 0o777 == 0o600
    assert on(manifest, "cleanup", "--work-dir", tmp_path, "--yes").exit_code == Exit.OK


def test_cleanup_takes_over_from_an_engine_that_starts_elsewhere(manifest: Path, db: Database) -> None:
    """Such an engine writes to the store before it makes a slot. That is refused from the first step on."""
    starting = PostgresStore(db.connection, db.name.replace("_", "-"))
    starting.next_epoch()
    assert f"slot levada_{db.name}: does not exist" in on(manifest, "cleanup", "--yes").stdout
    with pytest.raises(StaleEpoch):
        starting.store_fingerprint("publication", "1")
    starting.close()


def test_cleanup_removes_nothing_under_an_engine_that_streams(
    manifest: Path, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the slot itself is retained: the engine goes on, and has its state, publication and lake tables."""
    monkeypatch.setattr(cleanup, "pipeline_config", limited(Limits(session_end_s=0.0)))
    removed = {"slot": "Retain", "destinationTables": "Delete", "state": "Delete", "publication": "Delete"}
    body = yaml.safe_load(manifest.read_text())
    body["spec"]["deletionPolicy"] = removed
    manifest.write_text(yaml.safe_dump(body))
    slot = f"levada_{db.name}"
    db.execute(f"CREATE PUBLICATION {slot} FOR TABLE orders")
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    kept(db, "orders", Ready())
    epoch = db.query("SELECT epoch FROM levada.pipelines")
    with open_stream(db, slot, slot):
        refused = on(manifest, "cleanup", "--yes")
    assert (refused.exit_code, "[slot_active]" in refused.stderr) == (Exit.FAILED, True)
    assert "hint: stop the engine that uses it" in refused.stderr
    assert "destination:" not in refused.stdout
    assert db.query("SELECT epoch FROM levada.pipelines") == epoch
    assert db.query("SELECT count(*) FROM levada.documents WHERE kind = 'phases'") == [(1,)]
    assert db.query("SELECT count(*) FROM pg_publication") == [(1,)]


def test_cleanup_creates_no_store(manifest: Path, db: Database) -> None:
    """A store that was removed already has nothing to forget. The publication's comment proves the slot.

    The UID is that of the Pipeline object, as for the operator.
    """
    slot = f"levada_{db.name}"
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    db.execute(f"CREATE PUBLICATION {slot} FOR TABLE orders")
    with db.connect() as connection:
        mark_publication(connection, slot, PipelineOwner("uid", db.name.replace("_", "-")))
    changed(manifest, publication="Delete")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVADA_PIPELINE_UID", "uid")
        done = on(manifest, "cleanup", "--yes").stdout
    assert f"slot {slot}: dropped" in done
    assert f"publication {slot}: dropped" in done
    assert db.query("SELECT count(*) FROM pg_namespace WHERE nspname = 'levada'") == [(0,)]


def changed(manifest: Path, **policy: str) -> None:
    """Set the deletionPolicy of the manifest."""
    body = yaml.safe_load(manifest.read_text())
    body["spec"]["deletionPolicy"] = policy
    manifest.write_text(yaml.safe_dump(body))


def test_what_nothing_proves_to_be_the_pipelines_is_kept(
    manifest: Path, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline that never ran names a slot and a publication of another program. Both stay, with the SQL.

    `levada check` and `levada plan` refuse them as `levada run` does. In a pod the operator gets the kept objects.
    """
    slot = f"mine_{db.name}"
    db.execute(f"CREATE PUBLICATION {slot} FOR TABLE orders")
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    body = replicated(db, deletionPolicy={"publication": "Delete"})
    body["spec"]["source"] |= {"slot": {"name": slot}, "publication": {"name": slot}}
    manifest.write_text(yaml.safe_dump(body))
    for command in ("check", "plan"):
        refused = on(manifest, command, "--work-dir", tmp_path / "work", "-o", "json")
        assert refused.exit_code == Exit.PREFLIGHT
        lost = [p for p in json.loads(refused.stdout)["problems"] if p["code"] == "store_empty"]
        assert [f"slot {slot} exists: the state was lost" in p["message"] for p in lost] == [True]
    monkeypatch.setenv("LEVADA_TERMINATION_LOG", str(tmp_path / "message"))
    done = on(manifest, "cleanup", "--yes")
    assert done.exit_code == Exit.OK, done.output
    for told in (done.stdout, (tmp_path / "message").read_text()):
        assert f"If nothing needs it: SELECT pg_drop_replication_slot('{slot}');" in told
        assert f'If nothing needs it: DROP PUBLICATION "{slot}";' in told
        assert "dropped" not in told
    assert db.query("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", slot) == [(1,)]
    assert db.query("SELECT pubname FROM pg_publication") == [(slot,)]


def test_a_requested_resync_ends_the_refusal(manifest: Path, db: Database, tmp_path: Path) -> None:
    """`levada check` reports `store_empty` until a resync is requested, because the next start then copies again.

    In a pod it is a warning: the driver must start, so that the resync can be requested in it.
    """
    manifest.write_text(yaml.safe_dump(replicated(db)))
    slot = f"levada_{db.name}"
    db.execute(f"CREATE PUBLICATION {slot} FOR TABLE orders, items")
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)

    def found() -> list[str]:
        result = on(manifest, "check", "--work-dir", tmp_path / "work", "-o", "json")
        return [p["severity"] for p in json.loads(result.stdout)["problems"] if p["code"] == "store_empty"]

    [error] = found()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVADA_TERMINATION_LOG", str(tmp_path / "message"))
        patch.setenv("LEVADA_MANIFEST", str(manifest))
        [warning] = found()
    assert (error.lower(), warning.lower()) == ("error", "warning")
    assert on(manifest, "resync", "--all").exit_code == Exit.OK
    assert found() == []


def test_another_destination_than_that_of_the_state_is_refused(manifest: Path, db: Database) -> None:
    """The tables are elsewhere, so nothing is dropped, and the state still says where they are."""
    slot = f"levada_{db.name}"
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    kept(db, "orders", Ready())
    store = PostgresStore(db.connection, db.name.replace("_", "-"))
    store.next_epoch()
    store.store_fingerprint("destination", json.dumps({"spec.destination.iceberg.catalog.warehouse": "file:///other"}))
    store.close()
    changed(manifest, destinationTables="Delete")
    place = load_manifests(manifest.read_text()).pipeline.spec.destination.place
    assert "spec.destination.iceberg.catalog.warehouse" in place
    refused = on(manifest, "cleanup", "--yes")
    assert (refused.exit_code, "[immutable_field_changed]" in refused.stderr) == (Exit.USAGE, True), refused.output
    assert "dropped" not in refused.stdout
    assert db.query("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", slot) == [(1,)]
    assert db.query("SELECT count(*) FROM levada.documents WHERE kind = 'phases'") == [(1,)]
