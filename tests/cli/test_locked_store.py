"""Commands without an engine, and a start, while another session has a table of the store locked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from psycopg import sql
from tests.rigs.command_line import manifest, on, replicated
from tests.rigs.database import Database
from tests.rigs.waiting import until

from levada import Engine, caught_up
from levada.cli.exit_codes import Exit
from levada.postgres.connection import PostgresConnection
from levada.postgres.problems import Problem
from levada.runtime.host import assembly
from levada.runtime.host.outcomes import CaughtUp, EngineObserver, Outcome
from levada.spec import load_manifests
from levada.stores import MemoryStore, postgres
from levada.stores.postgres import StoreWaits

__all__ = ["manifest"]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("check",), Exit.PREFLIGHT),
        (("verify",), Exit.FAILED),
        (("resync", "--all"), Exit.FAILED),
        (("retry", "--all"), Exit.FAILED),
        (("cleanup", "--yes"), Exit.FAILED),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_names_the_session_that_has_the_store_locked(
    manifest: Path, db: Database, command: tuple[str, ...], code: Exit
) -> None:
    """The error has the session's PID, role, application and table, and the hint has the SQL that ends it."""
    manifest.write_text(yaml.safe_dump(replicated(db)))
    done = on(manifest, "run", "--until", "caught-up")
    assert done.exit_code == Exit.OK, done.output
    with closing(db.connect(application_name="nightly report")) as other, other.transaction():
        other.execute("LOCK TABLE levada.documents")
        found = on(manifest, *command)
        pid = other.info.backend_pid
    words = " ".join(found.output.split())
    assert (found.exit_code, "[store_locked]" in words) == (code, True), found.output
    assert f"PID {pid} (role postgres, application nightly report, idle in transaction since" in words
    assert "has table levada.documents in mode AccessExclusiveLock" in words
    assert f"SELECT pg_terminate_backend({pid})" in words


def test_a_command_names_the_session_for_which_its_engine_waits(
    manifest: Path, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row lock keeps the command's own engine from its epoch. The command prints the holder once, and ends."""
    manifest.write_text(yaml.safe_dump(replicated(db)))
    done = on(manifest, "run", "--until", "caught-up")
    assert done.exit_code == Exit.OK, done.output
    monkeypatch.setattr(postgres, "StoreWaits", lambda: StoreWaits(lock_s=0.05))
    with closing(db.connect(application_name="nightly report")) as other, other.transaction():
        other.execute("SELECT FROM levada.epochs FOR UPDATE")
        found = on(manifest, "verify")
        pid = other.info.backend_pid
    words = " ".join(found.output.split())
    assert found.exit_code == Exit.FAILED, found.output
    assert words.count("the engine cannot start yet: ") == 1
    assert words.count(f"PID {pid} (role postgres, application nightly report, idle in transaction since") == 2
    assert "has table levada.epochs in mode RowShareLock [store_locked]" in words
    assert f"SELECT pg_terminate_backend({pid})" in words


def test_the_store_of_a_command_waits_shorter_for_a_lock_than_that_of_an_engine(
    manifest: Path, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person waits for `levada status`, and can repeat it. An engine has time."""
    manifest.write_text(yaml.safe_dump(replicated(db)))
    found: list[float] = []

    def storage(connection: PostgresConnection, name: str, schema: str, *, waits: StoreWaits | None) -> MemoryStore:
        found.append((waits or StoreWaits()).lock_s)
        return MemoryStore(name)

    monkeypatch.setattr(assembly, "PostgresStore", storage)
    manifests, secrets = load_manifests(manifest.read_text()), manifest.parent / "secrets"
    config = assembly.pipeline_config(manifests, secrets=secrets)
    for outwaits in (False, True):
        assembly.open_store(manifests, config, secrets, outwaits=outwaits).close()
    command, engine = found
    assert command < engine / 3


@pytest.mark.sampled
@pytest.mark.parametrize("table", ["documents", "store_migrations"])
def test_a_start_waits_for_a_locked_store(
    manifest: Path, db: Database, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """A pipeline with copied tables starts once the lock ends, although its store cannot show the tables before."""
    manifest.write_text(yaml.safe_dump(replicated(db)))
    done = on(manifest, "run", "--until", "caught-up")
    assert done.exit_code == Exit.OK, done.output
    monkeypatch.setattr(postgres, "StoreWaits", lambda: StoreWaits(lock_s=0.05, server_s=0.1))
    reasons = _Reasons()
    with ThreadPoolExecutor(1) as pool, closing(db.connect()) as other:
        with other.transaction():
            other.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier("levada", table)))
            again = pool.submit(reasons.run, manifest)
            until(lambda: again.done() or reasons.found)
        assert isinstance(again.result(), CaughtUp)
    assert {reason.code for reason in reasons.found} == {"store_locked"}
    assert f"has table levada.{table} in mode AccessExclusiveLock" in reasons.found[0].message


def test_an_erasure_names_the_session_that_has_the_table_locked(manifest: Path, db: Database) -> None:
    """The table of the source is locked. The error has the session's PID and application, and the SQL that ends it."""
    manifest.write_text(yaml.safe_dump(replicated(db)))
    done = on(manifest, "run", "--until", "caught-up")
    assert done.exit_code == Exit.OK, done.output
    with closing(db.connect(application_name="nightly report")) as other, other.transaction():
        other.execute("LOCK TABLE orders")
        found = on(manifest, "erase", "public.orders", "1", "--yes")
        pid = other.info.backend_pid
    words = " ".join(found.output.split())
    assert (found.exit_code, "[table_locked]" in words) == (Exit.FAILED, True), found.output
    assert f"table public.orders is locked by PID {pid} (application nightly report, " in words
    assert f"SELECT pg_terminate_backend({pid})" in words


class _Reasons(EngineObserver):
    """Runs an engine, and keeps the reasons for which its start waits."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def waits(self, problem: Problem) -> None:
        self.found.append(problem)

    def run(self, manifest: Path) -> Outcome:
        """Run the engine of the manifest until it has caught up."""
        with Engine(manifest, secrets=manifest.parent / "secrets", observer=self) as engine:
            return engine.run(until=caught_up)
