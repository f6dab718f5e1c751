"""Evolution of a served table's columns. Each step can be repeated after a crash.

BigQuery allows no ALTER TABLE in a transaction. So the state has the columns after each statement before it runs, and
the table's own columns show if it did.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from levada.destinations.bigquery.layout import Layout, plan
from levada.destinations.bigquery.served_table import ServedTable
from levada.destinations.bigquery.settings import JsonbType
from levada.destinations.bigquery.state import StoredState
from levada.destinations.interface import OnSchemaChange
from levada.errors import DestinationChanged
from levada.schema import ReplicatedTableSchema
from levada.values import resync_command

_log = logging.getLogger(__name__)


def evolve(
    served: ServedTable,
    state: StoredState,
    resource: Mapping[str, Any],
    schema: ReplicatedTableSchema,
    jsonb: JsonbType,
    policy: OnSchemaChange,
    epoch: int,
) -> StoredState:
    """Change the table's columns to those of ``schema``. Return the state with the new columns.

    Raise NeedsOperator, without writing, for a change that BigQuery does not support, and DestinationChanged
    ``foreign_schema_change`` if another writer dropped or renamed a column.
    """
    columns, after = state.description.columns, state.description.columns_after
    fixed = fixed_columns(resource)
    if after is None and not plan(columns, schema, jsonb, policy, fixed):
        return state
    columns = _current(served, state, schema)
    steps = plan(columns, schema, jsonb, policy, fixed)
    filled = list(state.description.filled)
    for step in steps:
        filled += [] if step.filled is None else [step.filled]
        described = replace(
            state.description, columns=columns, columns_after=step.after, filled=_kept(filled, step.after)
        )
        state = served.change(state, state.after(epoch, state.lsn, described), ())
        served.alter(state, step.sql)
        _log.info("%s: %s", served.name, step.change or step.sql)
        columns = step.after
    described = replace(state.description, columns=columns, columns_after=None, filled=_kept(filled, columns))
    return served.change(state, state.after(epoch, state.lsn, described), ())


def _kept(filled: list[int], columns: Layout) -> tuple[int, ...]:
    return tuple(sorted({a for a in filled if columns.get(a) is not None}))


def _current(served: ServedTable, state: StoredState, schema: ReplicatedTableSchema) -> Layout:
    """Return the table's columns as Levada made them."""
    actual = served.columns()
    before, after = state.description.columns, state.description.columns_after
    columns = after if after is not None and _has(actual, after, before) else before
    check_columns(served, columns, actual, schema)
    return columns


def check_columns(
    served: ServedTable, columns: Layout, actual: Mapping[str, str], schema: ReplicatedTableSchema
) -> None:
    """Raise DestinationChanged ``foreign_schema_change`` if a column is missing. Another writer may add columns."""
    lost = [c.name for c in columns.columns if c.name.lower() not in actual]
    if lost:
        raise DestinationChanged(
            "foreign_schema_change",
            f"column {lost[0]} of {served.name} was dropped or renamed by another writer",
            hint=resync_command(schema.name),
        )


def _has(actual: Mapping[str, str], after: Layout, before: Layout) -> bool:
    """Return True if the statement that turns ``before`` into ``after`` has run."""
    if not after.names <= actual.keys() or (before.names - after.names) & actual.keys():
        return False
    changed = [c for c in after.columns if (b := before.get(c.attnum)) is not None and b.type != c.type]
    return all(actual[c.name.lower()] == c.type for c in changed)


def fixed_columns(resource: Mapping[str, Any]) -> frozenset[str]:
    """Return the columns, in lower case, by which a table is partitioned or clustered."""
    clusters = (resource.get("clustering") or {}).get("fields") or ()
    partition = (resource.get("timePartitioning") or {}).get("field")
    return frozenset(n.lower() for n in (*clusters, *([partition] if partition else ())))
