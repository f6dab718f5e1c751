"""Made-up slices of a stream: tables, rows and batches without a PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from levada.pgoutput.changes import TRANSACTIONS, ChangeBatch, RelationChange, TableChanges, Truncate
from levada.schema import Column, ColumnType, IdentityKind, Kind, ReplicatedTableSchema
from levada.schema.changes import (
    COMMIT_LSN,
    COMMIT_TS,
    OLD,
    OLD_KIND,
    OP,
    ORDINAL,
    UNCHANGED,
    UNREPRESENTABLE,
    XID,
    change_schema,
)
from levada.segments.transactions import TransactionFile
from levada.values import Lsn, QualifiedTable, SnapshotId, TableId, Witness

Row = Mapping[str, Any]

NO_TRANSACTIONS = TransactionFile(0, 0, b"", "", ())
"""Those of a segment of which only the rest matters."""


def column(attnum: int, name: str, kind: Kind = Kind.TEXT, **more: Any) -> Column:
    """Return a column. ``type`` is for a column whose kind alone is not its type."""
    shape = more.pop("type", ColumnType(kind))
    return Column(attnum, name, shape, type_name=kind.value, type_oid=25, **more)


def table(number: int, *columns: Column, at: int = 0) -> ReplicatedTableSchema:
    """A version of the table ``public.t<number>`` whose key is its column 1."""
    return ReplicatedTableSchema(
        id=TableId(number),
        name=QualifiedTable("public", f"t{number}"),
        columns=columns or (column(1, "id", Kind.INT8), column(2, "note")),
        identity=IdentityKind.PRIMARY_KEY,
        identity_attnums=(1,),
        key=(1,),
        snapshot_id=SnapshotId(at),
    )


def changes(schema: ReplicatedTableSchema, rows: Sequence[Row], *, layout: pa.Schema | None = None) -> TableChanges:
    """Return rows as dicts of the layout's columns. Optional columns are there if some row has them."""
    names = {name for row in rows for name in row}
    arrow = layout or change_schema(
        schema, old=OLD in names, unchanged=UNCHANGED in names, unrepresentable=UNREPRESENTABLE in names
    )
    return TableChanges(schema, pa.RecordBatch.from_pylist([dict(r) for r in rows], arrow))


def insert(lsn: int, ordinal: int, **columns: Any) -> dict[str, Any]:
    """An INSERT."""
    return {OP: "I", COMMIT_LSN: lsn, ORDINAL: ordinal, COMMIT_TS: lsn, XID: lsn, **columns}


def update(lsn: int, ordinal: int, old: Row | None = None, kind: str = "K", **columns: Any) -> dict[str, Any]:
    """An UPDATE, with its old image if there is one."""
    row = {**insert(lsn, ordinal, **columns), OP: "U"}
    return row if old is None else {**row, OLD_KIND: kind, OLD: dict(old)}


def delete(lsn: int, ordinal: int, kind: str = "K", **columns: Any) -> dict[str, Any]:
    """A DELETE."""
    return {**insert(lsn, ordinal, **columns), OP: "D", OLD_KIND: kind, OLD: None}


def batch(
    *items: TableChanges | Truncate | RelationChange, end: int | None = None, transactions: int = 1
) -> ChangeBatch:
    """Return a slice of the stream. Without ``end`` it ends inside of a transaction."""
    rows = sum(i.rows.num_rows for i in items if isinstance(i, TableChanges))
    last = None if end is None else Witness(Lsn(end), 1, end)
    done = None if end is None else Lsn(end)
    return ChangeBatch(items, rows, transactions, done, end is None, last, committed(items), None)


def committed(items: Sequence[TableChanges | Truncate | RelationChange]) -> pa.Table:
    """The transactions of these items. Each starts 5 bytes before its commit, whose record has 3 bytes."""
    changes: dict[int, int] = {}
    for item in items:
        if isinstance(item, TableChanges):
            for lsn, ordinal in zip(item.rows[COMMIT_LSN].to_pylist(), item.rows[ORDINAL].to_pylist(), strict=True):
                changes[lsn] = max(changes.get(lsn, 0), ordinal + 1)
        else:
            counted = isinstance(item, Truncate)
            changes[item.commit_lsn] = max(changes.get(item.commit_lsn, 0), item.ordinal + counted)
    rows = [
        dict(zip(TRANSACTIONS.names, (lsn, lsn - 5, lsn + 3, lsn, lsn, n), strict=True))
        for lsn, n in sorted(changes.items())
    ]
    return pa.Table.from_pylist(rows, TRANSACTIONS)
