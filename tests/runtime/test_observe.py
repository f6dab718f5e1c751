"""The progress of a table while its source cannot be read, or before its copy has begun."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.rigs.recording import Recording
from tests.rigs.waiting import until
from tests.runtime import samples

from levada.capture import CapturePosition, CaptureWorker
from levada.cli.render import changed_lines
from levada.errors import NeedsOperator, Transient
from levada.postgres.catalog import StreamedTable
from levada.postgres.connection import PostgresConnection
from levada.postgres.membership import PublicationState
from levada.runtime.config import PipelineConfig, PublicationConfig, SlotConfig, StagingConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.inbox import Inbox
from levada.runtime.report.snapshot import fatal_progress, table_progress
from levada.runtime.stages.capture import CaptureThread
from levada.runtime.tables.registry import TableRegistry
from levada.runtime.tables.source_tables import SourceTables
from levada.status import CopyProgress, RetryPolicy, StoreProgress
from levada.stores import MemoryStore
from levada.stores.phases import Errored, Init, Ready, TableReplicationPhase
from levada.values import Lsn, QualifiedTable, TableId

ID, NAME = TableId(1), QualifiedTable("public", "orders")


def roster_with(tmp_path: Path, phase: TableReplicationPhase) -> TableRegistry:
    """Return a registry of one table in that phase."""
    config = PipelineConfig(
        "shop", PostgresConnection("localhost", 5432, "shop"), SlotConfig("levada_shop"),
        PublicationConfig("levada_shop"), StagingConfig(f"file://{tmp_path}"), tmp_path, selects=lambda table: True,
    )  # fmt: skip
    store = MemoryStore("shop")
    store.next_epoch()
    store.update_table_replication_states({ID: phase})
    registry = TableRegistry(ConfigRef(config), store, Recording(), lambda: 1, lambda table, choice: None)
    published = (StreamedTable(ID, NAME),)
    registry.membership.adopt(SourceTables(published, PublicationState("levada_shop", None, {}, {})), (), resync=False)
    return registry


@pytest.mark.parametrize("silent_s", [0.0, 280.0])
def test_lag_grows_while_changes_cannot_be_read(tmp_path: Path, silent_s: float) -> None:
    """Nothing that is staged waits, and the table trails all the same: what is at the source is not known."""
    registry = roster_with(tmp_path, Ready())
    assert table_progress(registry.tables[ID], registry, 0, silent_s).lag_seconds == silent_s


def test_a_copy_that_has_not_begun_is_not_the_last_one(tmp_path: Path) -> None:
    """A table that waits for its new copy does not show the size of the copy before."""
    registry = roster_with(tmp_path, Init())
    registry.tables[ID].copy.finished = CopyProgress(5, 50, 5, 50, 100.0, 2.5, None)
    assert table_progress(registry.tables[ID], registry, 0).copy is None


def test_a_note_is_of_a_copy_that_runs_or_waits(tmp_path: Path) -> None:
    """A parked table has no copy that an interruption would let begin again."""
    for phase, note in ((Init(), "it begins again"), (parked(), "")):
        registry = roster_with(tmp_path, phase)
        record = registry.tables[ID]
        record.copy.finished = record.copy.interrupted = CopyProgress(5, 50, 5, 50, 100.0, 2.5, note="it begins again")
        copy = table_progress(record, registry, 0).copy
        assert copy is not None
        assert copy.note == note


def test_an_error_of_the_pipeline_is_told_once() -> None:
    """It has neither the number of an attempt nor a time, which change in each snapshot, nor a table's command."""
    before = samples.progress(store=StoreProgress(fatal_progress(Transient("store_unreachable", "it is away"))))
    later = replace(before, store=StoreProgress(fatal_progress(Transient("store_unreachable", "it is away"))))
    assert list(changed_lines(later, before)) == []
    lines = [line for line in changed_lines(before, None) if "store" in line]
    assert lines == ["store: it is away [store_unreachable]"]
    failed = fatal_progress(NeedsOperator("broken", "it is broken"))
    assert failed is not None
    assert failed.solution == ""


def parked() -> TableReplicationPhase:
    """Return the phase of a table that waits for a user."""
    return Errored("broken", "it is broken", "mend it", RetryPolicy.MANUAL_RETRY)


def test_silence_is_counted_from_the_last_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a stream is open there is no silence. Without one it grows."""
    worker, now = SimpleNamespace(connected=True), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    capture = CaptureThread(cast(CaptureWorker, worker), Inbox())
    now = 160.0
    assert capture.silent_s() == 0.0
    worker.connected, now = False, 440.0
    assert capture.silent_s() == 280.0


def test_a_stream_that_stages_nothing_is_opened_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The delay grows although each session began, as without room in staging. It is the first again after progress."""
    staged = iter([0, 0, 0, 0, 70, 70])
    attempts: list[int] = []
    worker = SimpleNamespace(position=CapturePosition(), connected=False, streaming=False)

    def run(stop: threading.Event) -> None:
        worker.position = CapturePosition(sessions=worker.position.sessions + 1, staged_lsn=Lsn(next(staged)))
        if len(attempts) == 5:
            stop.set()
        raise Transient("staging_full", "no space left")

    def no_delay(attempt: int) -> float:
        attempts.append(attempt)
        return 0.0

    worker.run = run
    monkeypatch.setattr("levada.runtime.stages.capture.reconnect_delay", no_delay)
    capture = CaptureThread(cast(CaptureWorker, worker), Inbox())
    capture.start()
    until(lambda: len(attempts) == 6)
    capture.stop()
    assert attempts == [1, 2, 3, 4, 1, 2]
