"""What the decoder hands on: changes as Arrow columns, and between them what is not a row."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from levada.schema import ReplicatedTableSchema
from levada.values import Lsn, TableId, Witness


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Rows of one version of one table, in WAL order, laid out as `levada.schema.changes` says."""

    schema: ReplicatedTableSchema
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Truncate:
    """One TRUNCATE statement, of all the replicated tables that it names."""

    commit_lsn: Lsn
    ordinal: int
    tables: tuple[TableId, ...]
    cascade: bool
    restart_identity: bool
    commit_ts_us: int
    """Microseconds since 1970-01-01 UTC."""
    xid: int


@dataclass(frozen=True, slots=True)
class RelationChange:
    """From ``(commit_lsn, ordinal)`` on, rows of the table have this schema (its ``snapshot_id`` is ``commit_lsn``)."""

    commit_lsn: Lsn
    ordinal: int
    schema: ReplicatedTableSchema


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message of ``pg_logical_emit_message`` with a prefix that the decoder was asked to hand on.

    Every role may write such messages. ``xid`` is that of the transaction, 0 outside of one.
    """

    lsn: Lsn
    transactional: bool
    xid: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """A decoded slice of the stream.

    ``items`` keep the order of each table's own changes and of what is not a row; rows of different tables inside a
    transaction are ordered by ``(commit LSN, ordinal)``. ``end_lsn`` is the end of the last COMMIT in the slice, None
    if there is none; with ``in_transaction`` the slice ends inside a transaction, so that a segment cannot be cut here.
    ``last`` is the last transaction whose COMMIT is in the slice.
    """

    items: tuple[TableChanges | Truncate | RelationChange | LogicalMessage, ...]
    rows: int
    transactions: int
    end_lsn: Lsn | None
    in_transaction: bool
    last: Witness | None
