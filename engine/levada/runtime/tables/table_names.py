"""The names of the tables in the store, also of those that are no longer replicated. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from levada.stores.interface import PipelineStore
    from levada.values import QualifiedTable, SnapshotId, TableId


def table_names(store: PipelineStore) -> dict[TableId, QualifiedTable]:
    """Return the newest name of each table whose schema is in the store."""
    newest: dict[TableId, tuple[SnapshotId, QualifiedTable]] = {}
    for schema in store.get_table_schemas():
        found = (schema.snapshot_id, schema.name)
        newest[schema.id] = max(newest.get(schema.id, found), found)
    return {id_: name for id_, (_, name) in newest.items()}
