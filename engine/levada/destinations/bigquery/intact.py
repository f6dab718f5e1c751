"""Comparisons of a served table with what its last copy made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levada.destinations.bigquery.ownership import MADE, label
from levada.destinations.bigquery.served_table import ServedTable
from levada.destinations.bigquery.state import StoredState
from levada.destinations.interface import TableMode
from levada.errors import DestinationChanged, NeedsOperator
from levada.schema import ReplicatedTableSchema
from levada.values import resync_command


def check_made(served: ServedTable, state: StoredState, resource: Mapping[str, Any]) -> None:
    """Raise DestinationChanged if the table is not the one that the last copy created.

    A driver that was paused between a comparison and its DDL statement may have replaced it with an empty one.
    """
    if label(resource, MADE) != state.description.made:
        raise DestinationChanged(
            "destination_table_missing",
            f"{served.name} was replaced by another process after its copy, and lacks rows",
            hint=f"copy the table again: {resync_command(state.description.source)}",
        )


def check_same(served: ServedTable, state: StoredState, schema: ReplicatedTableSchema, mode: TableMode) -> None:
    """Raise NeedsOperator if the table was created for another mode or key."""
    held = state.description
    if held.mode is not mode:
        raise NeedsOperator(
            "mode_changed",
            f"{served.name} was created as {held.mode}, but {schema.name} is now written as {mode}",
            hint=f"copy the table again: {resync_command(schema.name)}",
        )
    if mode is TableMode.UPSERT and sorted(held.key) != sorted(schema.key):
        raise NeedsOperator(
            "key_changed",
            f"the key of {schema.name} is now ({', '.join(c.name for c in schema.key_columns)}), "
            f"but {served.name} was written with another key",
            hint=f"copy the table again: {resync_command(schema.name)}",
        )
