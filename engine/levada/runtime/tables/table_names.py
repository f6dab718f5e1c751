"""The names of the tables in the store, also of those that are no longer replicated. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from levada.errors import NeedsOperator
from levada.values import QualifiedTable

if TYPE_CHECKING:
    from levada.stores.interface import PipelineStore
    from levada.values import SnapshotId, TableId


def table_names(store: PipelineStore) -> dict[TableId, QualifiedTable]:
    """Return the newest name of each table whose schema is in the store."""
    newest: dict[TableId, tuple[SnapshotId, QualifiedTable]] = {}
    for schema in store.get_table_schemas():
        found = (schema.snapshot_id, schema.name)
        newest[schema.id] = max(newest.get(schema.id, found), found)
    return {id_: name for id_, (_, name) in newest.items()}


def selected_name(store: PipelineStore, table: TableId) -> QualifiedTable | None:
    """Return the name that the table had last while it was replicated, if no version of it has that name."""
    text = store.get_fingerprint(_subject(table))
    return None if text is None else QualifiedTable(*json.loads(text))


def keep_selected_name(store: PipelineStore, table: TableId, name: QualifiedTable | None) -> None:
    """Store the name that the table has while it is replicated, or remove it."""
    known = selected_name(store, table)
    if name is None and known is not None:
        store.delete_fingerprint(_subject(table))
    elif name is not None and name != known:
        store.store_fingerprint(_subject(table), json.dumps([name.schema, name.name]))


def _subject(table: TableId) -> str:
    return f"selected_name_{int(table)}"


def table_renamed(former: QualifiedTable, now: QualifiedTable) -> NeedsOperator:
    """Return the error of a table that the manifest selects by its former name alone."""
    return NeedsOperator(
        "table_renamed",
        f"table {former} is {now} now, which spec.tables does not select. Its changes wait in the staging area",
        hint=f"select {now} in spec.tables, or rename the table back: it then goes on by itself. To give it up, exclude"
        f" {former} in spec.tables",
    )
