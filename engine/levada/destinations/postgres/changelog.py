"""Appends a batch of changes to a changelog table, which has a row for each change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.data_files.changelog import change_rows
from levada.destinations.postgres.columns import CHANGELOG_COLUMNS, Layout
from levada.destinations.postgres.copy_text import copy_rows
from levada.destinations.postgres.naming import identifier
from levada.destinations.postgres.shadow_copy import copy_statement
from levada.pgoutput.changes import Truncate
from levada.postgres.silence import WatchedConnection
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OP, ORDINAL
from levada.segments.batch import TableEvents
from levada.values import Lsn, QualifiedTable


def append_changes(
    connection: WatchedConnection, place: QualifiedTable, layout: Layout, events: TableEvents, after: Lsn
) -> None:
    """Append the changes from ``after`` on, inclusive."""
    truncates = [t for t in events.truncates if t.commit_lsn >= after]
    held = layout.held(events.schema)
    extra = [n for n, _ in CHANGELOG_COLUMNS]
    statement = copy_statement(identifier(place), [*(c.name for c, _ in held), *extra])
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for batch in events.scan():
            kept = batch.filter(pc.greater_equal(batch.column(COMMIT_LSN), int(after)))
            if kept.num_rows:
                rows = change_rows(kept, events.schema).select([*(c.name for _, c in held), *extra])
                for data in copy_rows(rows):
                    copy.write(data)
        if truncates:
            for data in copy_rows(_truncate_rows(truncates, len(held))):
                copy.write(data)


def _truncate_rows(truncates: Sequence[Truncate], columns: int) -> pa.Table:
    values: dict[str, Any] = {
        OP: pa.repeat("T", len(truncates)),
        COMMIT_LSN: pa.array([int(t.commit_lsn) for t in truncates], pa.int64()),
        ORDINAL: pa.array([t.ordinal for t in truncates], pa.int64()),
        COMMIT_TS: pa.array([t.commit_ts_us for t in truncates], pa.timestamp("us", "UTC")),
    }
    nulls = pa.nulls(len(truncates), pa.string())
    names = [*(f"c{i}" for i in range(columns)), *(n for n, _ in CHANGELOG_COLUMNS)]
    return pa.table([values.get(n, nulls) for n in names], names=names)
