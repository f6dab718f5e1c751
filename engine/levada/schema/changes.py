"""The Arrow layout of change rows, the same in the decoder, in segments and at a destination.

A batch of changes has the table's columns under their own names, and these columns beside them. For an insert or an
update the table's columns are the new row; for a delete they are the old row, or of it what the replica identity
gives. Names that begin with ``_levada_`` belong to Levada; preflight refuses a source column so named.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from levada.schema.table import ReplicatedTableSchema

RESERVED_PREFIX: Final = "_levada_"

OP: Final = "_levada_op"
"""``I``, ``U`` or ``D``."""
COMMIT_LSN: Final = "_levada_commit_lsn"
"""The final LSN of the transaction, as BEGIN tells it: a change is applied if it is not below the watermark."""
ORDINAL: Final = "_levada_ordinal"
"""Counts the row and truncate messages of the transaction from 0, and nothing else: a replay numbers them alike."""
COMMIT_TS: Final = "_levada_commit_ts"
XID: Final = "_levada_xid"

OLD_KIND: Final = "_levada_old_kind"
"""``K`` (the identity's columns) or ``O`` (the full row): what is known of the old row; NULL: nothing. Optional."""
OLD: Final = "_levada_old"
"""For an update, the old row as a struct of the table's columns; NULL where there is none. Optional."""
UNCHANGED: Final = "_levada_unchanged"
"""The attnums whose TOASTed value is unchanged and so *unknown* here (the column itself holds NULL). Optional."""

UNREPRESENTABLE: Final = "_levada_unrepresentable"
"""attnum -> PostgreSQL's text of values that the column's Arrow type has no place for (the column itself holds NULL).

So staging loses nothing, and what becomes of them is decided when they are read (`OnUnrepresentable`). Optional; in the
rows of a copy too.
"""

UNREPRESENTABLE_TYPE: Final = pa.map_(pa.int16(), pa.string())

ALWAYS: Final = pa.schema(
    [
        pa.field(OP, pa.string()),
        pa.field(COMMIT_LSN, pa.int64()),
        pa.field(ORDINAL, pa.int64()),
        pa.field(COMMIT_TS, pa.timestamp("us", "UTC")),
        pa.field(XID, pa.int64()),
    ]
)
"""The columns that every batch of changes has, after the table's own."""


def change_schema(table: ReplicatedTableSchema, *, old: bool, unchanged: bool, unrepresentable: bool) -> pa.Schema:
    """Return the layout of a batch of changes of this version of a table.

    ``OLD_KIND`` and ``OLD`` come together and only where some row of the batch has an old image (a delete's
    is in the table's columns, but its kind is told in ``OLD_KIND``); ``UNCHANGED`` only where some value is unknown;
    ``UNREPRESENTABLE`` only where some value has no place in its column (values of the old image are not told).
    """
    fields = [*table.arrow, *ALWAYS]
    if old:
        fields += [pa.field(OLD_KIND, pa.string()), pa.field(OLD, pa.struct(list(table.arrow)))]
    if unchanged:
        fields.append(pa.field(UNCHANGED, pa.list_(pa.field("element", pa.int16()))))
    if unrepresentable:
        fields.append(pa.field(UNREPRESENTABLE, UNREPRESENTABLE_TYPE))
    return pa.schema(fields)
