"""Random streams of changes to rows, and the rows that they end with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from levada.schema import Column, ColumnType, IdentityKind, Kind, ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, OLD, OLD_KIND, OP, ORDINAL, UNCHANGED, change_schema
from levada.values import QualifiedTable, TableId

Row = tuple[Any, ...]


def table(*key: Kind) -> ReplicatedTableSchema:
    """A table of key columns k0, k1…, a number and two texts, whose attnums are not their places."""
    kinds = [*((f"k{i}", k) for i, k in enumerate(key)), ("n", Kind.INT4), ("t", Kind.TEXT), ("u", Kind.TEXT)]
    columns = tuple(Column(10 + 2 * i, name, ColumnType(k), str(k), 0) for i, (name, k) in enumerate(kinds))
    attnums = tuple(c.attnum for c in columns[: len(key)])
    return ReplicatedTableSchema(
        TableId(1), QualifiedTable("public", "t"), columns, IdentityKind.PRIMARY_KEY, attnums, attnums
    )


@dataclass
class Stream:
    """A source: the changes that it sends, and the rows that it has meanwhile."""

    schema: ReplicatedTableSchema
    held: dict[Row, Row]
    changes: list[dict[str, Any]] = field(default_factory=list)
    truncated: tuple[int, int] | None = None
    lsn: int = 100
    ordinal: int = 0

    @property
    def width(self) -> int:
        return len(self.schema.key)

    def commit(self) -> None:
        self.lsn, self.ordinal = self.lsn + 10, 0

    def send(self, op: str, row: Row, unchanged: Sequence[int] = (), old: Row | None = None, kind: str = "") -> None:
        """Add a change. Values at the places ``unchanged`` are not sent. Of ``old`` under ``K`` only the key is."""
        names = self.schema.arrow.names
        told = [None if i in unchanged else v for i, v in enumerate(row)]
        image = None if old is None else [v if kind == "O" or i < self.width else None for i, v in enumerate(old)]
        self.changes.append(
            dict(zip(names, told, strict=True))
            | {
                OP: op,
                COMMIT_LSN: self.lsn,
                ORDINAL: self.ordinal,
                OLD_KIND: kind or None,
                OLD: None if image is None else dict(zip(names, image, strict=True)),
                UNCHANGED: [self.schema.columns[i].attnum for i in unchanged] or None,
            }
        )
        self.ordinal += 1

    def insert(self, row: Row) -> None:
        self.held[row[: self.width]] = row
        self.send("I", row)

    def update(self, key: Row, row: Row, unchanged: Sequence[int] = (), kind: str = "") -> None:
        old = self.held.pop(key)
        self.held[row[: self.width]] = row
        self.send("U", row, unchanged, old if kind else None, kind)

    def delete(self, key: Row, kind: str = "K") -> None:
        old = self.held.pop(key)
        self.send("D", tuple(v if kind == "O" or i < self.width else None for i, v in enumerate(old)), (), None, kind)

    def truncate(self) -> None:
        self.held.clear()
        self.truncated = (self.lsn, self.ordinal)
        self.ordinal += 1

    def table(self) -> pa.Table:
        """The changes, with the optional columns that they need."""
        old = any(c[OLD] is not None or c[OLD_KIND] for c in self.changes)
        unchanged = any(c[UNCHANGED] for c in self.changes)
        layout = change_schema(self.schema, old=old, unchanged=unchanged, unrepresentable=False)
        return pa.Table.from_pylist(self.changes, schema=layout)


def as_table(schema: ReplicatedTableSchema, rows: Sequence[Row]) -> pa.Table:
    """Rows as a table of the schema's columns."""
    return pa.Table.from_pylist([dict(zip(schema.arrow.names, r, strict=True)) for r in rows], schema=schema.arrow)


KEYS: dict[tuple[Kind, ...], list[Row]] = {
    (Kind.INT8,): [(i,) for i in range(-2, 4)],
    (Kind.TEXT,): [("",), ("a",), ("b",), ("a long text that is a key",)],
    (Kind.INT4, Kind.TEXT): [(1, "a"), (1, "b"), (2, "a"), (2, "")],
}


TEXTS = st.sampled_from([None, "", "x", "y" * 30])


NUMBERS = st.none() | st.integers(0, 9)
