"""The key index of one table: opened, brought up to date with a snapshot, and committed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from levada.destinations.iceberg.files import WrittenFile
from levada.destinations.iceberg.index import KeyIndex, index_errors
from levada.destinations.iceberg.index_sync import KeyReader, add_files, sync_index
from levada.destinations.iceberg.scan import without_deletes
from levada.destinations.iceberg.schema import IcebergSchema
from levada.destinations.iceberg.state import TableState
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.keys import key_kind
from levada.schema import ReplicatedTableSchema
from levada.segments.checksums import DamageError

_log = logging.getLogger(__name__)


def synced_index(
    state: TableState, table: IcebergTable, schema: ReplicatedTableSchema, layout: IcebergSchema, pipeline: str
) -> KeyIndex:
    """Return the key index, up to date with the table's current snapshot. A damaged one is rebuilt."""
    with index_errors(state.index_folder):
        return _synced_index(state, table, schema, layout, pipeline)


def _synced_index(
    state: TableState, table: IcebergTable, schema: ReplicatedTableSchema, layout: IcebergSchema, pipeline: str
) -> KeyIndex:
    if state.index is None:
        state.index = KeyIndex.open(state.index_folder, key_kind(schema))
    reader = KeyReader.of(schema, layout, state.index.seed)
    try:
        sync_index(state.index, table, reader, pipeline)
    except DamageError as error:
        _log.warning("rebuilding the damaged key index of %s: %s", state.name, error)
        state.forget_index()
        return _synced_index(state, table, schema, layout, pipeline)
    except BaseException:
        state.index.discard()
        raise
    return state.index


def index_copy(
    state: TableState,
    table: IcebergTable,
    schema: ReplicatedTableSchema,
    layout: IcebergSchema,
    files: Sequence[WrittenFile],
    snapshot: int,
) -> None:
    """Build the key index of a copy that is committed as ``snapshot``, from its files."""
    try:
        state.index = KeyIndex.open(state.index_folder, key_kind(schema))
        state.index.clear()
        reader = KeyReader.of(schema, layout, state.index.seed)
        add_files(state.index, reader, table.storage().io(), (without_deletes(f.path) for f in files))
    except OSError as error:
        # The copy is committed. The first batch builds the index.
        _log.warning("the key index of %s cannot be written: %s", state.name, error)
        state.forget_index()
        return
    commit_index(state, state.index, snapshot)


def commit_index(state: TableState, index: KeyIndex, snapshot: int) -> None:
    """Make the index that of ``snapshot``. If it cannot be written, forget it."""
    try:
        index.commit(snapshot)
    except (OSError, DamageError) as error:
        # The batch is committed. The next batch rebuilds the index.
        _log.warning("the key index of %s cannot be written: %s", state.name, error)
        state.forget_index()
