"""A capture of a test's database into a folder, in a thread that runs while a test needs it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.rigs.database import Database
from tests.rigs.waiting import LIMIT_S, until

from levada.capture import CaptureHost, CapturePosition, CaptureSettings, CaptureWorker, TableResolver
from levada.capture.history import KnownSource
from levada.errors import LevadaError
from levada.postgres.ddl import install_ddl_trigger
from levada.postgres.slots import create_slot
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.schema.stored_types import AS_RESOLVED, ColumnChoice
from levada.segments import Manifest, SegmentLog, StagedBatch, StagedTable, Staging, TableStart
from levada.stores.interface import PipelineStore
from levada.stores.memory import MemoryStore
from levada.values import Lsn, OnUnrepresentable, QualifiedTable, TableId, Witness

SLOT = "levada_shop"


PUBLICATION = "levada_shop"


def hosting(**methods: Callable[..., Any]) -> CaptureHost:
    """Return a pipeline for capture with these methods."""
    host = CaptureHost()
    for name, method in methods.items():
        assert hasattr(host, name)
        setattr(host, name, method)
    return host


class Capture:
    """The capture of one database by a pipeline ``shop``."""

    def __init__(self, db: Database, folder: Path, *, durable: bool = True, ddl_messages: bool = False) -> None:
        self.db = db
        self.slot = f"{SLOT}_{db.name}"
        self.staging = Staging.open(str(folder), durable=durable)
        self.log = SegmentLog(self.staging, "shop")
        self.store: PipelineStore = MemoryStore()
        self.segments: list[Manifest] = []
        self.failures: list[tuple[TableId, LevadaError]] = []
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.epoch = 0
        self.ddl_messages = ddl_messages
        self.known = KnownSource()
        self.persisting: Callable[[], None] = lambda: None
        self.excluded_columns: Callable[[QualifiedTable], frozenset[str]] = lambda table: frozenset()
        self.stored_types = AS_RESOLVED
        self.worker = self.new_worker()

    def prepare(self) -> None:
        """Publish every table that is there, then make the slot."""
        with self.db.connect() as connection:
            connection.execute("CREATE PUBLICATION levada_shop FOR ALL TABLES")
            if self.ddl_messages:
                assert install_ddl_trigger(connection)
            create_slot(connection, self.slot)

    def new_worker(
        self,
        verify: Callable[[], None] = lambda: None,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        segment_staged: Callable[[Manifest], None] | None = None,
        **settings: Any,
    ) -> CaptureWorker:
        """Make the worker of a new process."""
        self.epoch += 1
        host = hosting(
            table_failed=lambda table, error: self.failures.append((table, error)),
            selects=lambda table: not table.name.startswith("skipped"),
            column_choice=lambda table: ColumnChoice(self.excluded_columns(table), self.stored_types),
            segment_staged=segment_staged or self.segments.append,
            session_begins=verify,
            persist_ack=self.persist_ack,
            require_epoch=check,
        )
        resolver = TableResolver(self.db.connection, self.store, PUBLICATION, host)
        capture_settings = CaptureSettings(
            self.db.connection,
            self.slot,
            PUBLICATION,
            **{"fill_s": 0.05, "heartbeat_s": 0.0, "idle_s": 0.0, **settings},
        )
        self.worker = CaptureWorker(
            capture_settings,
            self.log,
            resolver,
            host,
            epoch=self.epoch,
            known=self.known,
            clock=clock,
        )
        return self.worker

    def persist_ack(self, lsn: Lsn, witness: Witness | None) -> Callable[[], None]:
        """Return a function that persists the acknowledged position, as the store does."""

        def persist() -> None:
            self.persisting()
            if lsn > self.known.staged:
                self.known = KnownSource(staged=lsn, witness=witness, acknowledged=lsn)

        return persist

    @contextmanager
    def running(self) -> Iterator[CaptureWorker]:
        """Run the worker, then stop it and wait for its end. ``error`` has the exception that it raised."""
        stop = threading.Event()
        self.error = None
        thread = self._thread = threading.Thread(target=self._run, args=(stop,))
        thread.start()
        try:
            yield self.worker
        finally:
            stop.set()
            thread.join(LIMIT_S)
            assert not thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the worker runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self, stop: threading.Event) -> None:
        try:
            self.worker.run(stop)
        except BaseException as error:
            self.error = error

    def catch_up(self) -> Lsn:
        """Wait until everything that is committed now is staged."""
        [(head,)] = self.db.query("SELECT pg_current_wal_insert_lsn()::text")
        self.wait(lambda position: position.staged_lsn >= Lsn.parse(head))
        return Lsn.parse(head)

    def wait(self, reached: Callable[[CapturePosition], bool]) -> None:
        """Wait for a position of the worker. Fail with the exception that the worker raised, if it did."""
        self.until(lambda: reached(self.worker.position) or self.error is not None)
        if self.error is not None:
            raise self.error

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait for anything."""
        until(reached, report=lambda: f"at {self.worker.position}, raised {self.error!r}")

    def table(self, name: str) -> TableId:
        return TableId(self.db.query("SELECT %s::regclass::oid", name)[0][0])

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All changes of a table that are staged, as the newest version has them."""
        staged = self.staged(name)
        return [] if staged is None else [r for b in staged.scan() for r in b.to_pylist()]

    def column(self, name: str, column: str) -> list[Any]:
        """One column of all changes of a table that are staged."""
        staged = self.staged(name)
        return [] if staged is None else [v for b in staged.scan([column]) for v in b.column(0).to_pylist()]

    def staged(self, name: str) -> StagedTable | None:
        """Return all staged changes of a table, from before its first version on, or None if there are none."""
        table = self.table(name)
        manifests = self.log.list()
        versions = [s for m in manifests for v in m.versions if (s := v.schema()).id == table]
        if not versions:
            return None
        first = min(versions, key=lambda v: v.snapshot_id)
        begin = ReplicatedTableSchema.from_json({**first.to_json(), "snapshotId": "0/0"})
        start = TableStart(TableTarget.of(begin), Lsn(0))
        return StagedBatch(self.staging, manifests, [start], Lsn(2**62), OnUnrepresentable.NULL).changes(table)

    def replayed(self, name: str, key: str = "id") -> dict[Any, dict[str, Any]]:
        """Return the table that the staged changes make, by key. Assert that each change is there once and in order."""
        table: dict[Any, dict[str, Any]] = {}
        seen: set[tuple[int, int]] = set()
        last = (0, 0)
        truncates = [
            (t.commit_lsn, t.ordinal) for m in self.log.list() for t in m.truncates if self.table(name) in t.tables
        ]
        for row in self.rows(name):
            place = (row["_levada_commit_lsn"], row["_levada_ordinal"])
            assert place not in seen
            assert place > last
            seen.add(place)
            while truncates and truncates[0] < place:
                truncates.pop(0)
                table.clear()
            last = place
            values = {k: v for k, v in row.items() if not k.startswith("_levada_")}
            if row["_levada_op"] == "D":
                table.pop(values[key], None)
                continue
            old = row["_levada_old"]
            before = table.pop(old[key] if old is not None else values[key], {})
            for attnum in row["_levada_unchanged"] or ():
                column = self.columns(name)[attnum]
                values[column] = before[column]
            table[values[key]] = values
        if truncates:
            table.clear()
        return table

    def columns(self, name: str) -> dict[int, str]:
        return dict(
            self.db.query("SELECT attnum, attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0", name)
        )

    def source(self, name: str, key: str = "id") -> dict[Any, dict[str, Any]]:
        """The table as it is at the source, by key."""
        rows = self.db.query("SELECT to_jsonb(t) FROM (SELECT * FROM " + name + ") t")
        return {row[0][key]: row[0] for row in rows}

    def confirmed(self) -> Lsn:
        [(lsn,)] = self.db.query(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", self.slot
        )
        return Lsn.parse(lsn)
