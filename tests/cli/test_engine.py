"""`levada run` as a process, with Spark: few and long."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.rigs.database import Database
from tests.rigs.waiting import LIMIT_S, until

from levada.cli.exit_codes import Exit
from levada.runtime.host.work_dir import running_progress


@pytest.fixture
def manifest(db: Database, tmp_path: Path) -> Path:
    """A manifest of two tables, one of which has a date that Iceberg has not."""
    db.execute(
        "CREATE TABLE good (id int PRIMARY KEY, body text)",
        "INSERT INTO good SELECT i, 'row ' || i FROM generate_series(1, 100) i",
        "CREATE TABLE bad (id int PRIMARY KEY, day date)",
        "INSERT INTO bad VALUES (1, 'infinity'), (2, '2026-01-31')",
    )
    secret = tmp_path / "secrets" / "cdc"
    secret.mkdir(parents=True)
    (secret / "username").write_text("postgres")
    (secret / "password").write_text("hunter2")
    source = {"host": "127.0.0.1", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "levada.dev/v1alpha1",
                "kind": "Pipeline",
                "metadata": {"name": db.name.replace("_", "-")},
                "spec": {
                    "source": {**source, "credentialsSecretRef": {"name": "cdc"}},
                    "tables": {"include": [{"schema": "public"}]},
                    "freshnessSeconds": 1,
                    "destination": {"iceberg": {"catalog": {"type": "Hadoop", "warehouse": f"file://{tmp_path}/lake"}}},
                    "deletionPolicy": {"publication": "Delete", "destinationTables": "Delete"},
                    "staging": {"uri": f"file://{tmp_path}/staging"},
                },
            }
        )
    )
    return path


def command(manifest: Path, name: str, *options: str) -> list[str]:
    """Return a command line with the manifest's Secrets."""
    secrets = str(manifest.parent / "secrets")
    return [sys.executable, "-m", "levada", name, str(manifest), *options, "--secrets", secrets]


def levada(manifest: Path, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    done = subprocess.run(command(manifest, name, *options), capture_output=True, text=True, check=False)
    assert "hunter2" not in done.stdout + done.stderr
    return done


def take_over(manifest: Path, db: Database) -> None:
    """Make the manifest that of a Pipeline in a namespace, which takes over from the one without."""
    [(uid, slot, publication)] = db.query("SELECT owner_uid, slot, publication FROM levada.pipelines")
    body = yaml.safe_load(manifest.read_text())
    body["metadata"]["namespace"] = "a"
    body["spec"]["source"] |= {"slot": {"name": slot}, "publication": {"name": publication}}
    manifest.write_text(yaml.safe_dump(body))
    done = levada(manifest, "takeover", "--from", uid, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.usefixtures("own_jvm")
def test_a_bad_row_is_told_mended_and_retried(manifest: Path, db: Database) -> None:
    """The error of one table is exit code 5 with its remedy. After the remedy and a retry, a later engine catches up.

    Cleanup removes the tables of both, although they have exchanged their names at the source since, and a Pipeline of
    another namespace has taken over. A cut before that is refused with the run that it needs.
    """
    first = levada(manifest, "run", "--until", "caught-up", "--timeout", str(LIMIT_S))
    assert first.returncode == Exit.TABLE_ERRORED, first.stdout + first.stderr
    assert "public.good: Ready" in first.stdout
    assert "public.bad: Errored" in first.stdout
    assert "hint:" in first.stdout
    assert "caught up except public.bad" in first.stdout
    status = levada(manifest, "status", "-o", "json")
    phases = {t["name"]: t["phase"] for t in json.loads(status.stdout)["tables"]}
    assert phases == {"good": "Ready", "bad": "Errored"}

    cut = levada(manifest, "cut", "noon")
    assert (cut.returncode, "public.bad (" in cut.stderr) == (Exit.FAILED, True), cut.stdout + cut.stderr
    assert "hint: no engine runs, so start one first: levada run" in cut.stderr

    db.execute("UPDATE bad SET day = '2026-02-01' WHERE id = 1", "INSERT INTO good VALUES (101, 'late')")
    assert "public.bad: will be retried" in levada(manifest, "retry", "--all").stdout

    work_dir = manifest.parent / ".levada" / db.name.replace("_", "-")
    engine = subprocess.Popen(
        command(manifest, "run"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:

        def runs() -> bool:
            return engine.poll() is None

        until(lambda: running_progress(work_dir), lambda progress: progress is not None and progress.ready, alive=runs)
        assert "2/2 tables ready" in levada(manifest, "status").stdout
        db.execute(
            "BEGIN; ALTER TABLE good RENAME TO x; ALTER TABLE bad RENAME TO good; ALTER TABLE x RENAME TO bad; COMMIT",
            "INSERT INTO good VALUES (3, '2026-02-02'); INSERT INTO bad VALUES (102, 'later')",
        )

        def names() -> dict[str, str]:
            progress = running_progress(work_dir)
            return {t.name: t.destination_table for t in progress.tables} if progress is not None else {}

        until(names, lambda found: found == {"good": "public.bad", "bad": "public.good"}, alive=runs)
        engine.send_signal(signal.SIGTERM)
        output, _ = engine.communicate(timeout=LIMIT_S)
    finally:
        engine.kill()
    assert engine.returncode == 0, output
    assert "stopped" in output.splitlines()[-1]
    assert "Traceback" not in output
    assert not (work_dir / "engine.json").exists()

    take_over(manifest, db)
    assert (manifest.parent / "lake" / "public" / "good").exists()
    cleaned = levada(manifest, "cleanup", "--yes")
    assert cleaned.returncode == 0, cleaned.stdout + cleaned.stderr
    assert "2 tables dropped" in cleaned.stdout
    assert not list((manifest.parent / "lake").rglob("*.parquet"))
    assert not [file for file in (manifest.parent / "staging").rglob("*") if file.is_file()]
    assert db.query("SELECT slot_name FROM pg_replication_slots WHERE database = %s", db.name) == []
    assert db.query("SELECT pubname FROM pg_publication") == db.query("SELECT evtname FROM pg_event_trigger") == []
