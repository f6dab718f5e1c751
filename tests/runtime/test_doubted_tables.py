"""Tables whose destination is beyond what the source was verified to, after the server was restarted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.rigs import row_streams
from tests.rigs.recording import Recording
from tests.runtime.one_table import TABLE, config_ref, start, store

from levada.runtime.inbox import Inbox
from levada.runtime.job import Job
from levada.runtime.stages.resync import ResyncStage
from levada.runtime.stages.stage import StageParts
from levada.runtime.tables.resync_state import ResyncState, ShadowCopy
from levada.runtime.tables.resync_steps import Step
from levada.runtime.tables.unverified_tables import UnverifiedTables
from levada.schema import Kind, TableTarget
from levada.schema.storage import TableStorage
from levada.stores import MemoryStore
from levada.stores.phases import DataSync, Errored, FinishedCopy, Init, Ready, TableReplicationPhase
from levada.values import Lsn

__all__ = ["store"]


@pytest.mark.parametrize(("phase", "becomes"), [(FinishedCopy(Lsn(200)), Init), (Ready(), Errored)])
def test_a_copy_that_the_stream_has_not_reached_is_made_again(
    tmp_path: Path, store: MemoryStore, phase: TableReplicationPhase, becomes: type[TableReplicationPhase]
) -> None:
    """A crash of server and engine between a copy and its first change parks nothing. A Ready table is parked."""
    store.update_table_replication_states({TABLE: phase})
    UnverifiedTables(store).add([TABLE], Lsn(100))
    registry, record = start(tmp_path, store)
    registry.step()
    registry.positions.set_position(record, Lsn(200))
    assert isinstance(record.phase, becomes)
    assert isinstance(store.get_table_replication_state(TABLE), becomes)


def test_a_doubt_stays_until_the_destination_was_read(tmp_path: Path, store: MemoryStore) -> None:
    """Engines that end before they read the destination, and further restarts of the server, leave the first doubt."""
    store.update_table_replication_states({TABLE: Ready()})
    UnverifiedTables(store).add([TABLE], Lsn(100))
    start(tmp_path, store)
    UnverifiedTables(store).add([TABLE], Lsn(300))
    registry, record = start(tmp_path, store)
    registry.positions.set_position(record, Lsn(200))
    assert isinstance(record.phase, Errored)
    assert record.phase.code == "source_changed"


def test_a_doubt_that_is_settled_does_not_come_back(tmp_path: Path, store: MemoryStore) -> None:
    """A table that was found not to be beyond goes on, and is not parked for what it applies afterwards."""
    store.update_table_replication_states({TABLE: Ready()})
    UnverifiedTables(store).add([TABLE], Lsn(100))
    registry, record = start(tmp_path, store)
    registry.positions.set_position(record, Lsn(100))
    registry.positions.save_unverified()
    registry, record = start(tmp_path, store)
    registry.positions.set_position(record, Lsn(200))
    assert isinstance(record.phase, Ready)


@pytest.mark.parametrize(("snapshot", "becomes"), [(200, Init), (100, FinishedCopy)])
def test_a_finished_copy_under_a_running_engine(
    tmp_path: Path, store: MemoryStore, snapshot: int, becomes: type[TableReplicationPhase]
) -> None:
    """The server is restarted under the engine: a copy that is ahead of the verified history is made again."""
    store.update_table_replication_states({TABLE: FinishedCopy(Lsn(snapshot))})
    registry, record = start(tmp_path, store)
    registry.positions.set_position(record, Lsn(snapshot))
    registry.positions.source_restarted(Lsn(100))
    assert isinstance(record.phase, becomes)


def test_a_look_under_way_is_compared(tmp_path: Path, store: MemoryStore) -> None:
    """The server is restarted while the destination is read: what is read then is compared."""
    store.update_table_replication_states({TABLE: Ready()})
    registry, record = start(tmp_path, store)
    registry.positions.source_restarted(Lsn(100))
    assert store.get_fingerprint("doubts")
    registry.positions.set_position(record, Lsn(200))
    assert isinstance(record.phase, Errored)


def test_a_copy_under_way_is_made_again(tmp_path: Path, store: MemoryStore) -> None:
    """The server is restarted while a table is copied: that copy, finished or not, is of no use."""
    store.update_table_replication_states({TABLE: Init()})
    registry, record = start(tmp_path, store)
    record.begin(Job.COPY)
    registry.phases.enter(record, DataSync())
    registry.positions.source_restarted(Lsn(100))
    assert record.copy.outdated
    assert record.copy.cancelled.is_set()


@pytest.mark.parametrize(
    ("resync", "outdated"),
    [
        (ResyncState(Step.COPYING), True),
        (ResyncState(Step.CATCHING_UP, shadow=ShadowCopy(lsn=Lsn(200))), True),
        (ResyncState(Step.CATCHING_UP, shadow=ShadowCopy(lsn=Lsn(100))), False),
        (ResyncState(Step.WAITING), False),
        (ResyncState(), False),
    ],
)
def test_a_shadow_copy_under_a_running_engine(
    tmp_path: Path, store: MemoryStore, resync: ResyncState, outdated: bool
) -> None:
    """The server is restarted under the engine: a shadow copy that is ahead is begun again, and the table goes on."""
    store.update_table_replication_states({TABLE: Ready()})
    registry, record = start(tmp_path, store)
    registry.positions.set_position(record, Lsn(50))
    record.resync = resync
    registry.positions.source_restarted(Lsn(100))
    assert isinstance(record.phase, Ready)
    assert record.resync.outdated is outdated


def test_a_shadow_copy_takes_no_place_ahead_of_the_stream(tmp_path: Path, store: MemoryStore) -> None:
    """The copy's snapshot may be of a history that the source loses, until the stream has reached it."""
    store.update_table_replication_states({TABLE: Ready()})
    registry, record = start(tmp_path, store)
    registry.positions.set_position(record, Lsn(50))
    shadow = ShadowCopy(lsn=Lsn(200), schema=row_streams.table(Kind.INT4), storage=TableStorage({}, {}, {}))
    record.resync = ResyncState(Step.CATCHING_UP, shadow=shadow)
    registry.backlog.track(TABLE, Lsn(200), shadow=True)
    told = SimpleNamespace(pipeline="shop", epoch=1, targets=TableTarget.of)
    applier, nothing = cast(Any, told), cast(Any, None)
    stage = ResyncStage(
        StageParts(config_ref(tmp_path), registry, store, Recording(), Inbox()), nothing, applier, nothing
    )
    registry.staged_to(Lsn(100))
    stage.start(0.0)
    assert not record.resync.running
    registry.staged_to(Lsn(200))
    stage.start(0.0)
    assert record.resync.running
    assert record.busy is Job.SWAP
    stage.close()
