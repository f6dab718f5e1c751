"""The decoder's output: changes as Arrow columns, and events that are not rows between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from levada.pgoutput.transactions import OpenTransaction
from levada.schema import ReplicatedTableSchema
from levada.values import Lsn, QualifiedTable, TableId, Witness

TRANSACTIONS: Final = pa.schema(
    [
        pa.field(name, pa.int64(), nullable=False)
        for name in ("commit_lsn", "start_lsn", "end_lsn", "xid", "commit_ts_us", "changes")
    ]
)
"""The layout of transactions, one row for each, in the order of their commits.

The LSNs are those of `levada.pgoutput.events.Commit`. ``commit_ts_us`` is in microseconds since 1970-01-01 UTC.
``changes`` is the number of its row and truncate messages, those of tables that are not replicated included.
"""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Rows of one version of one table, in WAL order, in the layout of `levada.schema.changes`."""

    schema: ReplicatedTableSchema
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Truncate:
    """One TRUNCATE statement, with all replicated tables that it truncates."""

    commit_lsn: Lsn
    ordinal: int
    tables: tuple[TableId, ...]
    cascade: bool
    restart_identity: bool
    commit_ts_us: int
    """Microseconds since 1970-01-01 UTC."""
    xid: int
    names: tuple[QualifiedTable, ...]
    """The names of ``tables``, in the same order, as they were at the TRUNCATE."""


@dataclass(frozen=True, slots=True)
class RelationChange:
    """A change of a table's schema. Rows from ``(commit_lsn, ordinal)`` on have ``schema``.

    The schema's ``snapshot_id`` is ``commit_lsn``.
    """

    commit_lsn: Lsn
    ordinal: int
    schema: ReplicatedTableSchema


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message of ``pg_logical_emit_message`` whose prefix the decoder was configured to return.

    Every role may write such messages. ``xid`` is the transaction's ID, and 0 outside of a transaction. ``ordinal`` is
    that of the transaction's next row or truncate message.
    """

    lsn: Lsn
    transactional: bool
    xid: int
    prefix: str
    content: bytes
    ordinal: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """A decoded slice of the stream.

    ``items`` are in the order of each table's changes, and in the order of events that are not rows. Rows of different
    tables in a transaction are ordered by ``(commit LSN, ordinal)``. ``end_lsn`` is the end of the last COMMIT in the
    slice, or None. With ``in_transaction`` the slice ends inside a transaction, so a segment cannot end here. ``last``
    is the last transaction whose COMMIT is in the slice. ``transactions`` is the number of COMMITs in the slice.
    ``committed`` has, in the layout `TRANSACTIONS`, those of them with a row, a truncate or a relation in the items of
    this or an earlier slice. ``open`` is the transaction without its COMMIT at the end of the slice. It is None for the
    rows of a snapshot.
    """

    items: tuple[TableChanges | Truncate | RelationChange | LogicalMessage, ...]
    rows: int
    transactions: int
    end_lsn: Lsn | None
    in_transaction: bool
    last: Witness | None
    committed: pa.Table
    open: OpenTransaction | None
