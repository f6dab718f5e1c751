"""A Python caller does with the engine what the command line does, by the public names alone."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import sql
from tests.rigs.database import Database
from tests.rigs.waiting import LIMIT_S
from tests.runtime.manifest_text import manifest_text

from levada import (
    CaughtUp,
    DedicatedCopy,
    Engine,
    EngineObserver,
    NeedsOperator,
    PostgresStore,
    Progress,
    Refused,
    Stopped,
    Suspended,
    TableId,
    caught_up,
    load_manifests,
    open_cleanup,
    publication_coverage,
    resync_tables,
    retry_tables,
    secret_files,
    slot_progress,
    stored_progress,
)
from levada.postgres.catalog import describe_without_waiting
from levada.stores import TableAction
from levada.stores.phases import Init
from levada.values import OnUnrepresentable, SnapshotId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Seen(EngineObserver):
    """Keeps the newest progress and the refusals."""

    def __init__(self) -> None:
        self.refusals: list[Refused] = []
        self._newest: Progress | None = None
        self._changed = threading.Condition()

    def progress(self, progress: Progress) -> None:
        with self._changed:
            self._newest = progress
            self._changed.notify_all()

    def refused(self, refusal: Refused) -> None:
        self.refusals.append(refusal)

    def wait(self, done: Callable[[Progress], bool]) -> None:
        """Wait for a progress for which ``done`` returns True."""
        with self._changed:
            self._newest = None
            assert self._changed.wait_for(lambda: self._newest is not None and done(self._newest), LIMIT_S)


def source_of(db: Database, secret: str) -> dict[str, Any]:
    """Return the source of a manifest."""
    address = {"host": "127.0.0.1", "port": db.server.port, "database": db.name}
    return {**address, "credentialsSecretRef": {"name": secret}, "tls": {"mode": "Disable"}}


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """A folder with the Secret of the source."""
    (tmp_path / "secrets" / "cdc").mkdir(parents=True)
    (tmp_path / "secrets" / "cdc" / "username").write_text("postgres")
    (tmp_path / "secrets" / "cdc" / "password").write_text("")
    return tmp_path / "secrets"


@pytest.fixture
def shop(db: Database, secrets: Path) -> Callable[..., Path]:
    """Return a function that writes the manifest of a database with two tables."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "INSERT INTO orders SELECT generate_series(1, 10)",
        "CREATE TABLE items (id int PRIMARY KEY)",
    )
    folder = secrets.parent
    path = folder / "pipeline.yaml"

    def write(*table_syncs: dict[str, Any], **spec: Any) -> Path:
        source = source_of(db, "cdc")
        lake = {"catalog": {"type": "Hadoop", "warehouse": f"file://{folder}/lake"}}
        spec = {"source": source, "destination": {"iceberg": lake}, "freshnessSeconds": 1, **spec}
        path.write_text(manifest_text(db.name.replace("_", "-"), *table_syncs, **spec))
        return path

    return write


def test_a_manifest_is_run_changed_and_stopped(shop: Callable[..., Path], secrets: Path, spark: SparkSession) -> None:
    """It reaches its goal, applies a changed manifest, serves its port, and stops from another thread.

    The Spark session of the process stays.
    """
    seen, ended = Seen(), list[object]()
    with Engine(shop(), secrets=secrets, observer=seen) as engine:
        outcome = engine.run(until=caught_up, timeout_s=LIMIT_S)
        assert isinstance(outcome, CaughtUp)
        assert {str(t.table): t.phase for t in outcome.progress.tables} == {
            "public.orders": "Ready",
            "public.items": "Ready",
        }
        runner = threading.Thread(target=lambda: ended.append(engine.run()))
        runner.start()
        seen.wait(lambda progress: progress.ready and progress.capture.connected and progress.slot.active is not False)
        with urllib.request.urlopen(f"{engine.address}/readyz", timeout=LIMIT_S) as answer:
            assert answer.status == 200
        shop({"table": {"name": "orders"}, "suspend": True})
        seen.wait(lambda progress: [str(t.table) for t in progress.tables if t.suspended] == ["public.orders"])
        engine.stop()
        runner.join(LIMIT_S)
        assert [type(outcome) for outcome in ended] == [Stopped]
        progress = engine.progress()  # paced: the run has ended
        assert progress is not None
        assert progress.state == "Stopped"
        assert progress.manifest.error is None
    assert seen.refusals == []
    assert spark.range(3).count() == 3


def test_a_start_that_is_refused_returns_its_problems(shop: Callable[..., Path], secrets: Path) -> None:
    """They are those of the preflight, with their codes and hints. The observer receives them too."""
    seen = Seen()
    manifest = shop(tables={"include": [{"schema": "elsewhere"}]})
    with Engine(manifest, secrets=secrets, observer=seen) as engine:
        outcome = engine.run()
    assert isinstance(outcome, Refused)
    assert "no_tables_selected" in [problem.code for problem in outcome.problems]
    assert seen.refusals == [outcome]


def test_a_missing_secret_is_a_refusal(shop: Callable[..., Path], db: Database, secrets: Path) -> None:
    """The error that kept the pipeline from starting comes with the problem that it reports."""
    with Engine(shop(source=source_of(db, "other")), secrets=secrets) as engine:
        outcome = engine.run()
    assert isinstance(outcome, Refused)
    assert outcome.error is not None
    assert [problem.code for problem in outcome.problems] == [outcome.error.code] == ["secret_missing"]


def test_a_suspended_pipeline_opens_nothing(shop: Callable[..., Path], tmp_path: Path) -> None:
    """Its run returns, also in a folder that another engine uses."""
    with Engine(shop(suspend=True), work_dir=tmp_path / "work") as engine:
        assert engine.run() == Suspended()
        assert engine.address is None
    assert not (tmp_path / "work").exists()


def test_one_engine_uses_a_work_folder(shop: Callable[..., Path], tmp_path: Path) -> None:
    """A second engine is refused until the first one is closed, also one of manifests that are in no file."""
    manifests = load_manifests(shop().read_text())
    first, second = (Engine(manifests, work_dir=tmp_path / "work") for _ in range(2))
    with first, pytest.raises(NeedsOperator) as refused, second:
        pass
    assert refused.value.code == "engine_running"
    with second:
        assert second.address is not None


def test_a_stopped_engine_starts_nothing(shop: Callable[..., Path], secrets: Path) -> None:
    """A stop before the run counts. A run outside of the block is an error, because nothing locks the work folder."""
    engine = Engine(shop(), secrets=secrets)
    with pytest.raises(NeedsOperator) as refused:
        engine.run()
    assert refused.value.code == "engine_not_open"
    with engine:
        engine.stop()
        assert engine.run() == Stopped(None)


def test_the_other_commands_are_functions(shop: Callable[..., Path], db: Database, secrets: Path) -> None:
    """A caller reads the state, requests a retry and a resync, and cleans up, without a command line."""
    manifests = load_manifests(shop().read_text())
    coverage = publication_coverage(manifests, secrets=secrets)
    assert [str(table) for table in coverage.missing] == ["public.items", "public.orders"]
    name = sql.Identifier(f"levada_{db.name}")
    with db.connect() as connection:
        connection.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE orders, items").format(name))
    store = PostgresStore(db.connection, manifests.pipeline.metadata.name)
    store.next_epoch()
    orders = TableId(db.query("SELECT 'orders'::regclass::oid")[0][0])
    assert {str(table): phase for table, phase in retry_tables(manifests, ["orders"], secrets=secrets).items()} == {
        "public.orders": None
    }
    assert [str(table) for table in resync_tables(manifests, ["orders"], secrets=secrets)] == ["public.orders"]
    assert store.take_table_actions() == {orders: TableAction.RESYNC}
    store.close()
    progress = stored_progress(manifests, secrets=secrets)
    assert (progress.state, progress.tables, progress.slot) == (
        "Stopped",
        (),
        slot_progress(manifests, secrets=secrets),
    )
    assert not DedicatedCopy(manifests, "orders", secrets=secrets).is_ordered
    with open_cleanup(manifests, secrets=secrets, work_dir=secrets.parent / "work") as cleanup:
        assert cleanup.steps[0].what == f"slot levada_{db.name}"
        removed = list(cleanup.run())
    assert removed[0] == f"slot levada_{db.name}: does not exist"


def test_requests_reach_a_table_under_each_of_its_names(shop: Callable[..., Path], db: Database, secrets: Path) -> None:
    """A hint has the name with which a table was parked, also once it was renamed or is not published any more.

    That holds for a table that was never copied.
    """
    manifests = load_manifests(shop().read_text())
    orders = TableId(db.query("SELECT 'orders'::regclass::oid")[0][0])
    store = PostgresStore(db.connection, manifests.pipeline.metadata.name)
    store.next_epoch()
    with db.connect() as connection:
        described = describe_without_waiting(connection, orders)
    store.store_table_schema(described.schema(policy=OnUnrepresentable.ERROR, snapshot_id=SnapshotId(1)))
    store.update_table_replication_states({orders: Init()})
    name = sql.Identifier(f"levada_{db.name}")
    with db.connect() as connection:
        connection.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE orders, items").format(name))
        connection.execute("ALTER TABLE orders RENAME TO purchases")
        for given in ("orders", "purchases"):
            resync_tables(manifests, [given], secrets=secrets)
            assert store.take_table_actions() == {orders: TableAction.RESYNC}
        assert {str(t) for t in resync_tables(manifests, secrets=secrets)} == {"public.items", "public.purchases"}
        connection.execute(sql.SQL("ALTER PUBLICATION {} DROP TABLE purchases").format(name))
        assert {str(t) for t in resync_tables(manifests, secrets=secrets)} == {"public.items", "public.purchases"}
        resync_tables(manifests, ["orders"], secrets=secrets)
        items = TableId(db.query("SELECT 'items'::regclass::oid")[0][0])
        store.update_table_replication_states({items: Init()})
        connection.execute(sql.SQL("ALTER PUBLICATION {} DROP TABLE items").format(name))
        store.take_table_actions()
        resync_tables(manifests, ["items"], secrets=secrets)
        assert store.take_table_actions() == {items: TableAction.RESYNC}
        assert {t.name for t in stored_progress(manifests, secrets=secrets).tables} == {"purchases", "items"}
    store.close()


def test_secrets_in_python(tmp_path: Path) -> None:
    """They are files that only this user can read, in the form of mounted Secrets, and gone afterwards."""
    with secret_files({"pg": {"username": "levada", "password": "p"}, "none": {}}) as folder:
        assert folder.stat().st_mode & 0o077 == 0
        assert (folder / "pg" / "password").read_text() == "p"
        assert (folder / "none").is_dir()
    assert not folder.exists()
    for wrong in ({"../pg": {"key": "value"}}, {"pg": {"a/b": "value"}}, {"": {}}):
        with pytest.raises(ValueError, match="not a name"), secret_files(wrong):
            pass
