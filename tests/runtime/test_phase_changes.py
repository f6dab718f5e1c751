"""The order of the writes that begin a copy again, and retries without a phase to return to."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.rigs.recording import Recording
from tests.runtime.one_table import NAME, TABLE, config_ref

from levada.postgres.catalog import StreamedTable
from levada.postgres.membership import PublicationState
from levada.runtime.config import TableConfig
from levada.runtime.tables.registry import TableRegistry
from levada.runtime.tables.source_tables import SourceTables
from levada.schema import IdentityKind, ReplicatedTableSchema
from levada.schema.masks import NO_MASKS, Mask, TableMasks
from levada.status import RetryPolicy
from levada.stores import MemoryStore
from levada.stores.phases import Errored, Init, Ready, TableReplicationPhase
from levada.values import MaskMethod, SnapshotId, TableId

FOUND = SourceTables((StreamedTable(TABLE, NAME),), PublicationState("levada_shop", None, {}, {}))


@pytest.fixture
def store() -> MemoryStore:
    """The store of a pipeline that an engine has taken over."""
    made = MemoryStore("shop")
    made.next_epoch()
    return made


MASKS = TableMasks.of({"secret": Mask(MaskMethod.NULL)})


def test_init_is_stored_before_the_stream_excludes_other_columns(tmp_path: Path, store: MemoryStore) -> None:
    """A crash leaves no changes with the next copy's columns to a table that streams under those of its last copy."""
    seen: list[tuple[frozenset[str], TableMasks, TableReplicationPhase | None]] = []

    def exclude(table: TableId, columns: frozenset[str], masks: TableMasks) -> None:
        seen.append((columns, masks, store.get_table_replication_state(table)))

    store.update_table_replication_states({TABLE: Ready()})
    ref = config_ref(tmp_path)
    registry = TableRegistry(ref, store, Recording(), lambda: 1, exclude)
    registry.membership.adopt(FOUND, (), resync=False)
    seen.clear()
    configured = TableConfig(excluded_columns=frozenset({"note"}), masks=MASKS)
    ref.replace(replace(ref.current, tables={NAME: configured}))
    registry.requests.apply_manifest()
    assert seen == [(frozenset({"note"}), MASKS, Init())]


@pytest.mark.parametrize("version", [frozenset({"note"}), frozenset({"other"}), None])
@pytest.mark.parametrize("phase", [Init(), Ready()])
def test_a_start_sets_the_excluded_columns_of_the_stream(
    tmp_path: Path, store: MemoryStore, phase: TableReplicationPhase, version: frozenset[str] | None
) -> None:
    """Also if the newest version has them. The slot may send the row before which that version was stored again."""
    seen: dict[TableId, tuple[frozenset[str], TableMasks]] = {}

    def exclude(table: TableId, columns: frozenset[str], masks: TableMasks) -> None:
        seen[table] = columns, masks

    ref = config_ref(tmp_path)
    ref.replace(replace(ref.current, tables={NAME: TableConfig(excluded_columns=frozenset({"note"}))}))
    store.update_table_replication_states({TABLE: phase})
    if version is not None:
        store.store_table_schema(
            ReplicatedTableSchema(
                TABLE, NAME, (), IdentityKind.FULL, snapshot_id=SnapshotId(150), excluded_columns=version
            )
        )
    registry = TableRegistry(ref, store, Recording(), lambda: 1, exclude)
    registry.membership.adopt(FOUND, (), resync=False)
    assert seen == {TABLE: (frozenset({"note"}), NO_MASKS)}
    assert registry.tables[TABLE].copy.after_session == (1 if version == {"other"} else 0)


def test_a_retry_without_a_phase_before_the_error_parks_the_table(tmp_path: Path, store: MemoryStore) -> None:
    """Other tables continue. The table waits for a resync, which needs no earlier phase."""
    due = Errored("a", "it failed", "", RetryPolicy.TIMED_RETRY, next_retry=datetime.now(UTC))
    store.update_table_replication_states({TABLE: due})
    registry = TableRegistry(config_ref(tmp_path), store, Recording(), lambda: 1, lambda table, columns, masks: None)
    registry.membership.adopt(FOUND, (), resync=False)
    record = registry.tables[TABLE]
    registry.step()
    assert isinstance(record.phase, Errored)
    assert (record.phase.code, record.phase.retry_policy) == ("no_previous_phase", RetryPolicy.NO_RETRY)
    registry.requests.resync(record)
    assert record.phase == Init()
