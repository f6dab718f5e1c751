"""Keeps a key index up to date with its Iceberg table: reads new snapshots, or rebuilds the index."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from levada.destinations.data_files.key_reader import KeyReader, add_files
from levada.destinations.data_files.live_files import without_deletes
from levada.destinations.data_files.storage import WrittenFile
from levada.destinations.fenced import key_changed
from levada.destinations.iceberg.metadata import Property, Snapshot
from levada.destinations.iceberg.ownership import has_key, key_property
from levada.destinations.iceberg.scan import live_files
from levada.destinations.iceberg.schema import IcebergSchema
from levada.destinations.iceberg.small_tables import Rewritten
from levada.destinations.iceberg.state import IcebergState
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.key_index.index import KeyIndex
from levada.schema import ReplicatedTableSchema

_log = logging.getLogger(__name__)


def synced_index(
    state: IcebergState,
    table: IcebergTable,
    schema: ReplicatedTableSchema,
    layout: IcebergSchema,
    pipeline: str,
    rewritten: Rewritten | None = None,
) -> KeyIndex:
    """Return the key index, up to date with the table's current snapshot. A damaged one is rebuilt.

    With ``rewritten``, the files of that commit need not be looked up.
    """

    def sync(index: KeyIndex) -> None:
        reader = KeyReader.of(schema, layout.files, index.seed)
        if rewritten is not None and index.snapshot_id == rewritten.before:
            index.remove_files(rewritten.removed)
            add_files(index, reader, table.storage(), map(without_deletes, rewritten.added))
            index.commit(rewritten.snapshot)
        sync_index(index, table, reader, pipeline)

    return state.index.synced(schema, sync)


def take_key(state: IcebergState, table: IcebergTable, schema: ReplicatedTableSchema, pipeline: str) -> None:
    """Identify the rows by the key of ``schema`` from now on, if another one does.

    The table has every row of the source from before that key, with its columns. Raise NeedsOperator ``key_changed`` if
    several rows have the same key or one has NULL, and ``schema_change_unsupported`` without a column of the key.
    """
    if has_key(table, schema):
        return
    state.index.forget()
    if not synced_index(state, table, schema, table.metadata.layout, pipeline).is_distinct():
        raise key_changed(table.name, schema, "several of its rows have the same values there")
    _log.info("%s: its rows have another key now", table.name)
    table.set_properties({Property.KEY.value: key_property(schema)})


def index_copy(
    state: IcebergState,
    table: IcebergTable,
    schema: ReplicatedTableSchema,
    layout: IcebergSchema,
    files: Sequence[WrittenFile],
    snapshot: int,
) -> None:
    """Build the key index of a copy that is committed as ``snapshot``, from its files."""

    def add(index: KeyIndex) -> None:
        reader = KeyReader.of(schema, layout.files, index.seed)
        add_files(index, reader, table.storage(), (without_deletes(f.path) for f in files))

    state.index.build(schema, add, snapshot)


def sync_index(index: KeyIndex, table: IcebergTable, reader: KeyReader, pipeline: str) -> None:
    """Update the index to the table's current snapshot, and commit it.

    For commits of this pipeline, and for any compaction, only the added files are read. After any other commit, or if
    the index's snapshot is not in the table's history, the index is rebuilt from all data files.
    """
    current = table.metadata.snapshot_id
    if current is None:
        index.clear()
        return
    if index.snapshot_id == current:
        return
    gap = _gap(index, table, pipeline)
    if gap is None:
        rebuild(index, table, reader)
        return
    _log.info("%s: updating the key index over %d snapshots", table.name, len(gap))
    added: dict[str, None] = {}
    for snapshot in gap:
        changed = table.changed_files(snapshot.id)
        if changed is None:
            rebuild(index, table, reader)
            return
        plus, minus = changed
        if len(plus) > 1 and snapshot.operation == "overwrite":
            # A large batch may have one key in several files, and the snapshot does not show which file was written
            # last.
            rebuild(index, table, reader)
            return
        added |= dict.fromkeys(plus)
        for path in minus:
            added.pop(path, None)
        index.remove_files(minus)
    add_files(index, reader, table.storage(), (without_deletes(path) for path in added))
    index.commit(current)


def _gap(index: KeyIndex, table: IcebergTable, pipeline: str) -> list[Snapshot] | None:
    """Return the snapshots since the index's one, oldest first, or None if the index must be rebuilt."""
    if index.snapshot_id is None:
        return None
    gap: list[Snapshot] = []
    for snapshot in table.metadata.history:
        if snapshot.id == index.snapshot_id:
            return gap[::-1]
        ours = snapshot.mark is not None and snapshot.mark.pipeline == pipeline
        if not ours and snapshot.operation != "replace":
            return None
        gap.append(snapshot)
    return None


def rebuild(index: KeyIndex, table: IcebergTable, reader: KeyReader) -> None:
    """Rebuild the index from the key columns of all data files, and commit it for the current snapshot."""
    _log.info("%s: rebuilding the key index", table.name)
    index.clear()
    files = live_files(table)
    current = table.metadata.snapshot_id
    assert current is not None
    add_files(index, reader, table.storage(), files)
    index.commit(current)
