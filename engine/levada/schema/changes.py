"""The Arrow layout of change rows, the same in the decoder, in segments and at a destination.

A batch of changes has the table's columns under their own names, followed by the columns below. For an insert or an
update the table's columns are the new row. For a delete they are the old row, or those of its columns that the replica
identity provides. Names that begin with ``_levada_`` are reserved. Preflight rejects a source column with such a name.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa

from levada.schema.table import ReplicatedTableSchema

RESERVED_PREFIX: Final = "_levada_"

OP: Final = "_levada_op"
"""``I``, ``U`` or ``D``."""
COMMIT_LSN: Final = "_levada_commit_lsn"
"""The LSN of the transaction's commit, as in BEGIN. A change is applied unless its LSN is below the watermark."""
ORDINAL: Final = "_levada_ordinal"
"""Number of the row or truncate message in its transaction, from 0. A replay has the same numbers."""
COMMIT_TS: Final = "_levada_commit_ts"
XID: Final = "_levada_xid"

OLD_KIND: Final = "_levada_old_kind"
"""The known part of the old row: ``K`` (the identity's columns), ``O`` (the full row), or NULL for none. Optional."""
OLD: Final = "_levada_old"
"""The old row of an update, as a struct of the table's columns, or NULL if there is none. Optional."""
UNCHANGED: Final = "_levada_unchanged"
"""The attnums whose TOASTed value is unchanged and so unknown here. Their columns hold NULL. Optional."""

UNREPRESENTABLE: Final = "_levada_unrepresentable"
"""A map from attnum to PostgreSQL's text, for values that the column's Arrow type cannot hold. The column holds NULL.

So staging loses nothing, and the reader applies the policy `OnUnrepresentable`. Optional. Rows of a copy have it too.
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
"""The columns that every batch of changes has after the table's own."""


@lru_cache(maxsize=8192)
def change_schema(table: ReplicatedTableSchema, *, old: bool, unchanged: bool, unrepresentable: bool) -> pa.Schema:
    """Return the layout of a batch of changes of this version of a table.

    ``OLD_KIND`` and ``OLD`` exist together, and only if a row of the batch has an old image. A delete's old image is in
    the table's columns, and its kind in ``OLD_KIND``. ``UNCHANGED`` exists only if a value is unknown.
    ``UNREPRESENTABLE`` exists only if a column cannot hold a value. It does not include values of old images.
    """
    fields = [*table.arrow, *ALWAYS]
    if old:
        fields += [pa.field(OLD_KIND, pa.string()), pa.field(OLD, pa.struct(list(table.arrow)))]
    if unchanged:
        fields.append(pa.field(UNCHANGED, pa.list_(pa.field("element", pa.int16()))))
    if unrepresentable:
        fields.append(pa.field(UNREPRESENTABLE, UNREPRESENTABLE_TYPE))
    return pa.schema(fields)
