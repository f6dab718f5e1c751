"""The stream's decoder: rows by the column, all other messages one by one."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from levada.errors import DecodeError, LevadaError
from levada.pgoutput.changes import (
    TRANSACTIONS,
    ChangeBatch,
    LogicalMessage,
    RelationChange,
    TableChanges,
    Truncate,
)
from levada.pgoutput.encoding import ConversionError, TextConversion
from levada.pgoutput.messages import (
    Relation,
    RelationColumn,
    parse_message,
    parse_relation,
    parse_truncate,
    relation_oid,
)
from levada.pgoutput.rows import decode_rows
from levada.pgoutput.slices import Slice
from levada.pgoutput.transactions import OpenTransaction
from levada.pgoutput.wire import MAX_BUFFER, Ints, RowError, sizes_of
from levada.schema import ReplicatedTableSchema
from levada.schema.masks import NO_KEYS, MaskKeys
from levada.values import Lsn, SnapshotId, TableId, Witness


class SchemaResolver(Protocol):
    """The source of schema versions for the stream's rows. Its methods are called in the stream's order."""

    def relation(self, relation: Relation, at: SnapshotId, xid: int) -> ReplicatedTableSchema | None:
        """Return the schema version of rows after this RELATION, or None if the table is not replicated.

        ``at`` is the commit LSN of the transaction, and ``xid`` its ID. If a new version begins here, its
        ``snapshot_id`` is ``at``. Then a `RelationChange` is emitted even if it is the first version of the table in
        this session.
        """

    def leaf(self, leaf: TableId, root: TableId, at: SnapshotId, xid: int) -> None:
        """Record that rows of a relation are streamed as those of ``root`` in transaction ``at``, whose ID is ``xid``.

        `relation` is called with the leaf too.
        """

    def message(self, message: LogicalMessage, at: SnapshotId) -> ReplicatedTableSchema | None:
        """Return the version of a table that begins with this message, or None if the message announces none.

        ``at`` is as for `relation`. For a non-transactional message it is the LSN of the message. PostgreSQL sends a
        RELATION before the next row of a changed table, and a row without it is an error of this table.
        """

    def truncated(self, tables: Collection[TableId], at: SnapshotId) -> None:
        """Record a TRUNCATE of replicated tables in transaction ``at``."""

    def failed(self, table: TableId, error: DecodeError, at: SnapshotId) -> None:
        """Record that the rows of a table cannot be read from transaction ``at`` on. They are ignored in this session.

        No other table is concerned. Raise the error to end the stream.
        """


_log = logging.getLogger(__name__)

Item = TableChanges | Truncate | RelationChange | LogicalMessage

_RELATION, _TRUNCATE = b"RT"


@dataclass(frozen=True, slots=True)
class _Binding:
    """The columns of a relation's rows, and their schema. Rows are ignored if ``schema`` is None."""

    columns: tuple[RelationColumn, ...]
    schema: ReplicatedTableSchema | None

    def under(self, schema: ReplicatedTableSchema) -> _Binding | None:
        """Return the binding of the same rows to another version, or None if rows of that one have other columns.

        The server describes a relation again only if the one that stores the rows was altered. After a change of a
        root's replica identity, the rows of its partitions follow without a new description.
        """
        its = [(c.attnum, c.name, c.type_oid, c.typmod) for c in schema.columns]
        its += [(c.attnum, c.name, c.type_oid, c.typmod) for c in schema.excluded]
        same = [(c.name, c.type_oid, c.typmod) for c in self.columns] == [column[1:] for column in sorted(its)]
        return _Binding(self.columns, schema) if same and self.schema is not None else None


class Decoder:
    """The decoder of one session's stream. It keeps the relations and the open transaction between slices.

    Logical messages whose prefix is not in ``message_prefixes`` are ignored. A slice with more than ``part_bytes`` is
    decoded in parts. ``keys`` are those of masked columns. ``conversion`` is None for a stream in UTF-8. Rows that
    cannot be read are reported to the resolver, and the other tables go on. The decoder cannot be used after a
    DecodeError, which concerns the whole stream. It then continues in a new session.
    """

    def __init__(
        self,
        resolver: SchemaResolver,
        *,
        message_prefixes: Sequence[str] = (),
        part_bytes: int = MAX_BUFFER,
        keys: MaskKeys = NO_KEYS,
        conversion: TextConversion | None = None,
    ) -> None:
        self._keys = keys
        self._conversion = conversion
        self._part_bytes = part_bytes
        self._resolver = resolver
        self._prefixes = frozenset(message_prefixes)
        self._bindings: dict[int, _Binding] = {}
        self._schemas: dict[TableId, ReplicatedTableSchema] = {}
        self._open: OpenTransaction | None = None
        self._described: TableId | None = None
        """The relation that the last message of the slice before describes, None if it is another message."""
        self._leaves: list[tuple[TableId, TableId, SnapshotId, int]] = []
        """Relations that follow the description of another one, with that one, and their transaction."""

    def decode(self, messages: Sequence[bytes]) -> ChangeBatch:
        """Decode a slice of CopyData payloads (XLogData, which begins with ``w``).

        Raise DecodeError, which names an LSN, and the errors of the conversion.
        """
        try:
            return self._decode(messages)
        except ConversionError as error:
            raise error.error from error

    def _decode(self, messages: Sequence[bytes]) -> ChangeBatch:
        items: list[Item] = []
        committed: list[pa.RecordBatch] = []
        transactions = 0
        end_lsn: Lsn | None = None
        last: Witness | None = None
        for part, sizes in _parts(messages, self._part_bytes):
            of = Slice(part, sizes, self._open)
            items += self._items(of)
            self._described = self._described_before(of, len(of))
            if self._described is None:
                self._report_leaves()
            self._open = of.still_open()
            committed.append(of.committed())
            transactions += len(of.transactions.committed)
            if of.transactions.end_lsn is not None:
                end_lsn, last = of.transactions.end_lsn, of.transactions.last
        rows = sum(item.rows.num_rows for item in items if isinstance(item, TableChanges))
        shown = pa.Table.from_batches(committed, TRANSACTIONS)
        return ChangeBatch(tuple(items), rows, transactions, end_lsn, self._open is not None, last, shown, self._open)

    def version(self, relation: TableId) -> ReplicatedTableSchema | None:
        """Return the version of a relation's next rows, None if they are ignored or the relation is not known."""
        bound = self._bindings.get(relation)
        return None if bound is None else bound.schema

    def _items(self, of: Slice) -> Iterator[Item]:
        for message in of.singles:
            kind = of.kinds[message]
            if kind == _RELATION:
                yield from self._relation(of, message)
            elif kind == _TRUNCATE:
                yield from self._truncate(of, message)
            else:
                yield from self._message(of, message)
        for relation in of.relations():
            yield from self._rows(of, relation, before=len(of))

    def _rows(self, of: Slice, relation: int, before: int) -> Iterator[TableChanges]:
        picked = of.take(relation, before)
        if picked is None:
            return
        bound = self._bindings.get(relation)
        first = int(picked[0])
        if bound is None:
            self._fail(relation, _unknown_relation(relation, of.lsn(first)), of.commit_lsn(first))
            return
        if bound.schema is None:
            return
        try:
            rows = decode_rows(of.rows(picked), bound.columns, bound.schema, self._keys, self._conversion)
        except (MemoryError, ConversionError):
            raise
        except LevadaError as error:
            self._fail(relation, DecodeError(error.code, error.message), of.commit_lsn(first))
        except Exception as error:
            # Whatever cannot be read about one table must not keep the others from being read.
            row, what = _described(error)
            text = f"row of {bound.schema.name} at LSN {of.lsn(int(picked[row]))}: {what}"
            self._fail(relation, DecodeError("malformed_row", text), of.commit_lsn(first))
        else:
            yield TableChanges(bound.schema, rows)

    def _fail(self, relation: int, error: DecodeError, at: SnapshotId) -> None:
        self._bindings[relation] = _Binding((), None)
        self._resolver.failed(TableId(relation), error, at)

    def _relation(self, of: Slice, message: int) -> Iterator[Item]:
        at, body = of.commit_lsn(message), of.body(message)
        try:
            relation = parse_relation(body, of.lsn(message), self._conversion)
        except DecodeError as error:
            # A database with the encoding SQL_ASCII can have names that are not UTF-8.
            oid = relation_oid(body)
            if oid is None:
                raise
            yield from self._rows(of, oid, before=message)
            self._fail(oid, error, at)
            return
        yield from self._rows(of, relation.oid, before=message)
        # The server describes the root just before a partition whose rows it streams as the root's. Tables of a
        # TRUNCATE are described one after another too.
        root = self._described_before(of, message)
        if root is None:
            self._report_leaves()
        else:
            self._leaves.append((relation.oid, root, at, of.xid(message)))
        schema = self._resolver.relation(relation, at, of.xid(message))
        self._bindings[relation.oid] = _Binding(relation.columns, schema)
        if schema is not None:
            yield from self._announced(of, message, schema, at)

    def _described_before(self, of: Slice, message: int) -> TableId | None:
        """Return the relation that the message before this one describes, None if it is another message."""
        before = of.neighbour(message, -1)
        if before is None:
            return self._described
        return relation_oid(of.body(before)) if of.kinds[before] == _RELATION else None

    def _report_leaves(self, but_for: Collection[TableId] = ()) -> None:
        """Report the leaves of the last descriptions, now that the message after them is known."""
        found, self._leaves = self._leaves, []
        for leaf, root, at, xid in found:
            if leaf not in but_for:
                self._resolver.leaf(leaf, root, at, xid)

    def _announced(
        self, of: Slice, message: int, schema: ReplicatedTableSchema, at: SnapshotId
    ) -> Iterator[RelationChange]:
        former = self._schemas.get(schema.id)
        self._schemas[schema.id] = schema
        begins_here = schema.snapshot_id >= at if former is None else schema != former
        if begins_here:
            of.show(np.array([message]))
            yield RelationChange(Lsn(at), of.transactions.next_ordinal(message), schema)

    def _truncate(self, of: Slice, message: int) -> Iterator[Item]:
        truncate = parse_truncate(of.body(message), of.lsn(message))
        tables: list[ReplicatedTableSchema] = []
        at = of.commit_lsn(message)
        if self._described_before(of, message) is None:
            self._report_leaves()
        self._report_leaves(but_for=truncate.tables)
        for relation in truncate.tables:
            yield from self._rows(of, relation, before=message)
            bound = self._bindings.get(relation)
            if bound is None:
                self._fail(relation, _unknown_relation(relation, of.lsn(message)), at)
            elif bound.schema is not None:
                tables.append(bound.schema)
        if tables:
            self._resolver.truncated([t.id for t in tables], at)
            row = of.rows(np.array([message]))
            yield Truncate(
                Lsn(at),
                int(row.ordinal[0]),
                tuple(t.id for t in tables),
                truncate.cascade,
                truncate.restart_identity,
                int(row.commit_ts_us[0]),
                int(row.xid[0]),
                tuple(t.name for t in tables),
            )

    def _message(self, of: Slice, message: int) -> Iterator[Item]:
        body = parse_message(of.body(message), of.lsn(message))
        if body.prefix not in self._prefixes:
            return
        at = of.commit_lsn(message) if body.transactional else SnapshotId(body.lsn)
        xid = of.xid(message) if body.transactional else 0
        ordinal = of.transactions.next_ordinal(message) if body.transactional else 0
        logical = LogicalMessage(body.lsn, body.transactional, xid, body.prefix, body.content, ordinal)
        yield logical
        schema = self._resolver.message(logical, at)
        if schema is None or schema == self._schemas.get(schema.id):
            return
        yield from self._rows(of, schema.id, before=message)
        former = self._bindings.pop(schema.id, None)
        if former is not None and (bound := former.under(schema)) is not None:
            self._bindings[schema.id] = bound
        self._schemas[schema.id] = schema
        if body.transactional:
            of.show(np.array([message]))
        yield RelationChange(Lsn(at), ordinal, schema)


class TransactionScan:
    """A scan of a session's stream that decodes only its transactions."""

    def __init__(self) -> None:
        self._open: OpenTransaction | None = None

    @property
    def in_transaction(self) -> bool:
        """Return True if the scanned messages end inside a transaction."""
        return self._open is not None

    def last_below(self, messages: Sequence[bytes], lsn: Lsn) -> tuple[Witness | None, bool]:
        """Return the last transaction that begins in these messages and commits below ``lsn``.

        The second result is True if a transaction commits at or beyond ``lsn``. Raise DecodeError as `Decoder.decode`
        does.
        """
        last: Witness | None = None
        beyond = False
        for part, sizes in _parts(messages, MAX_BUFFER):
            transactions = Slice(part, sizes, self._open).transactions
            self._open = transactions.open
            last = transactions.begun_below(lsn) or last
            beyond = beyond or bool((transactions.commit_lsn >= lsn).any())
        return last, beyond


def _described(error: Exception) -> tuple[int, str]:
    """Return the row of an error and its text, which has no value."""
    if isinstance(error, RowError):
        return error.row, error.what
    _log.error("rows cannot be decoded", exc_info=error)
    return 0, f"it cannot be decoded ({type(error).__name__})"


def _unknown_relation(relation: int, lsn: Lsn) -> DecodeError:
    return DecodeError(
        "unknown_relation",
        f"change at LSN {lsn} of relation {relation}, which has no RELATION message",
        hint="copy the table again: levada resync MANIFEST TABLE",
    )


def _parts(messages: Sequence[bytes], most_bytes: int) -> Iterator[tuple[Sequence[bytes], Ints]]:
    """Yield parts of a slice of at most ``most_bytes`` bytes, or of one message, with the messages' sizes."""
    sizes = sizes_of(messages)
    while len(messages):
        count = len(messages)
        if (ends := np.cumsum(sizes))[-1] > most_bytes:
            count = max(int(np.searchsorted(ends, most_bytes, side="right")), 1)
        yield messages[:count], sizes[:count]
        messages, sizes = messages[count:], sizes[count:]
