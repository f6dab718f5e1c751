"""The stream's messages to changes: rows by the column, everything else one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from levada.errors import DecodeError
from levada.pgoutput.changes import ChangeBatch, LogicalMessage, RelationChange, TableChanges, Truncate
from levada.pgoutput.messages import Relation, parse_message, parse_relation, parse_truncate
from levada.pgoutput.rows import decode_rows
from levada.pgoutput.slices import Slice
from levada.pgoutput.transactions import OpenTransaction
from levada.pgoutput.wire import MAX_BUFFER, Ints, RowError, sizes_of
from levada.schema import ReplicatedTableSchema
from levada.values import Lsn, SnapshotId, TableId, Witness


class SchemaResolver(Protocol):
    """Tells which version of a table the stream's rows are; called in the stream's order."""

    def relation(self, relation: Relation, at: SnapshotId) -> ReplicatedTableSchema | None:
        """Return the version that rows after this RELATION have; None: the table is not replicated.

        ``at`` is the final LSN of the transaction. A version that begins here has it as its ``snapshot_id``: so it is
        announced with a `RelationChange` even if it is the first that this session sees of the table.
        """

    def message(self, message: LogicalMessage, at: SnapshotId) -> ReplicatedTableSchema | None:
        """Return the version of a table that begins with this message; None if it announces none.

        ``at`` is as for `relation`; for a message that is not transactional, where it was emitted. PostgreSQL sends
        a RELATION before the next row of a table that has changed; a row without it is refused.
        """


Item = TableChanges | Truncate | RelationChange | LogicalMessage

_RELATION, _TRUNCATE = b"RT"


@dataclass(frozen=True, slots=True)
class _Binding:
    """A relation as it comes on the wire, and what its rows become; ``schema`` None: they are passed over."""

    relation: Relation
    schema: ReplicatedTableSchema | None


class Decoder:
    """Decodes one session's stream; it remembers the relations and the open transaction from slice to slice.

    Logical messages whose prefix is not in ``message_prefixes`` are passed over. After a DecodeError the decoder is
    of no more use: the stream goes on in a new session.
    """

    def __init__(self, resolver: SchemaResolver, *, message_prefixes: Sequence[str] = ()) -> None:
        self._resolver = resolver
        self._prefixes = frozenset(message_prefixes)
        self._bindings: dict[int, _Binding] = {}
        self._schemas: dict[TableId, ReplicatedTableSchema] = {}
        self._open: OpenTransaction | None = None

    def decode(self, messages: Sequence[bytes]) -> ChangeBatch:
        """Decode a slice of CopyData payloads (XLogData, beginning with ``w``); raise DecodeError naming an LSN."""
        items: list[Item] = []
        transactions = 0
        end_lsn: Lsn | None = None
        last: Witness | None = None
        for part, sizes in _parts(messages):
            of = Slice(part, sizes, self._open)
            items += self._items(of)
            self._open = of.transactions.open
            transactions += of.transactions.committed
            if of.transactions.end_lsn is not None:
                end_lsn, last = of.transactions.end_lsn, of.transactions.last
        rows = sum(item.rows.num_rows for item in items if isinstance(item, TableChanges))
        return ChangeBatch(tuple(items), rows, transactions, end_lsn, self._open is not None, last)

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
        if bound is None:
            raise _unknown_relation(relation, of.lsn(int(picked[0])))
        if bound.schema is None:
            return
        try:
            yield TableChanges(bound.schema, decode_rows(of.rows(picked), bound.relation.columns, bound.schema))
        except RowError as error:
            lsn = of.lsn(int(picked[error.row]))
            raise DecodeError("malformed_row", f"row of {bound.relation.table} at LSN {lsn}: {error.what}") from None

    def _relation(self, of: Slice, message: int) -> Iterator[Item]:
        relation = parse_relation(of.body(message), of.lsn(message))
        yield from self._rows(of, relation.oid, before=message)
        at = of.commit_lsn(message)
        schema = self._resolver.relation(relation, at)
        self._bindings[relation.oid] = _Binding(relation, schema)
        if schema is not None:
            yield from self._announced(of, message, schema, at)

    def _announced(
        self, of: Slice, message: int, schema: ReplicatedTableSchema, at: SnapshotId
    ) -> Iterator[RelationChange]:
        former = self._schemas.get(schema.id)
        self._schemas[schema.id] = schema
        begins_here = schema.snapshot_id >= at if former is None else schema != former
        if begins_here:
            yield RelationChange(Lsn(at), of.transactions.next_ordinal(message), schema)

    def _truncate(self, of: Slice, message: int) -> Iterator[Item]:
        truncate = parse_truncate(of.body(message), of.lsn(message))
        tables = []
        for relation in truncate.tables:
            yield from self._rows(of, relation, before=message)
            bound = self._bindings.get(relation)
            if bound is None:
                raise _unknown_relation(relation, of.lsn(message))
            if bound.schema is not None:
                tables.append(bound.schema.id)
        if tables:
            at = of.rows(np.array([message]))
            yield Truncate(
                Lsn(at.commit_lsn[0]),
                int(at.ordinal[0]),
                tuple(tables),
                truncate.cascade,
                truncate.restart_identity,
                int(at.commit_ts_us[0]),
                int(at.xid[0]),
            )

    def _message(self, of: Slice, message: int) -> Iterator[Item]:
        body = parse_message(of.body(message), of.lsn(message))
        if body.prefix not in self._prefixes:
            return
        at = of.commit_lsn(message) if body.transactional else SnapshotId(body.lsn)
        xid = of.xid(message) if body.transactional else 0
        logical = LogicalMessage(body.lsn, body.transactional, xid, body.prefix, body.content)
        yield logical
        schema = self._resolver.message(logical, at)
        if schema is None or schema == self._schemas.get(schema.id):
            return
        yield from self._rows(of, schema.id, before=message)
        self._bindings.pop(schema.id, None)
        self._schemas[schema.id] = schema
        ordinal = of.transactions.next_ordinal(message) if body.transactional else 0
        yield RelationChange(Lsn(at), ordinal, schema)


class TransactionScan:
    """Reads of a session's stream nothing but which transactions it has."""

    def __init__(self) -> None:
        self._open: OpenTransaction | None = None

    @property
    def in_transaction(self) -> bool:
        """Return True if the messages that were read end inside a transaction."""
        return self._open is not None

    def last_below(self, messages: Sequence[bytes], lsn: Lsn) -> tuple[Witness | None, bool]:
        """Return the last transaction that begins in these messages below ``lsn``, and whether one commits beyond.

        Raise DecodeError as `Decoder.decode` does.
        """
        last: Witness | None = None
        beyond = False
        for part, sizes in _parts(messages):
            transactions = Slice(part, sizes, self._open).transactions
            self._open = transactions.open
            last = transactions.begun_below(lsn) or last
            beyond = beyond or bool((transactions.commit_lsn >= lsn).any())
        return last, beyond


def _unknown_relation(relation: int, lsn: Lsn) -> DecodeError:
    return DecodeError("unknown_relation", f"change at LSN {lsn} of relation {relation}, which no RELATION described")


def _parts(messages: Sequence[bytes]) -> Iterator[tuple[Sequence[bytes], Ints]]:
    """Cut a slice so that no part has more than `MAX_BUFFER` bytes, or one message; with the messages' sizes."""
    sizes = sizes_of(messages)
    while len(messages):
        count = len(messages)
        if (ends := np.cumsum(sizes))[-1] > MAX_BUFFER:
            count = max(int(np.searchsorted(ends, MAX_BUFFER, side="right")), 1)
        yield messages[:count], sizes[:count]
        messages, sizes = messages[count:], sizes[count:]
