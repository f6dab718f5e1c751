"""The names of the tables in the store, also of those that are no longer replicated. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from levada.errors import NeedsOperator

if TYPE_CHECKING:
    from levada.stores.interface import PipelineStore
    from levada.values import QualifiedTable, SnapshotId, TableId

RENAMED: Final = "table_renamed"
"""The code of a table whose new name the manifest does not select."""


def table_names(store: PipelineStore) -> dict[TableId, QualifiedTable]:
    """Return the newest name of each table whose schema is in the store."""
    newest: dict[TableId, tuple[SnapshotId, QualifiedTable]] = {}
    for schema in store.get_table_schemas():
        found = (schema.snapshot_id, schema.name)
        newest[schema.id] = max(newest.get(schema.id, found), found)
    return {id_: name for id_, (_, name) in newest.items()}


def table_renamed(former: QualifiedTable, now: QualifiedTable) -> NeedsOperator:
    """Return the error of a table that the manifest selects by its former name alone."""
    return NeedsOperator(
        "table_renamed",
        f"table {former} is {now} now, which spec.tables does not select. Its changes wait in the staging area",
        hint=f"select {now} in spec.tables, or rename the table back: it then goes on by itself. To give it up, exclude"
        f" {former} in spec.tables",
    )
