"""A source whose one table changes at random, with the rows that a destination must have."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal
from typing import Any

from tests.destinations.memory import MemoryRows, Stream

from levada.schema import Column, Kind, ReplicatedTableSchema, TableTarget
from levada.testing import column, table

VALUES: dict[Kind, list[Any]] = {
    Kind.TEXT: ["", "a", "Z", "é", "\U0001f600", "y" * 5000, "10", "9", "NULL", "\\N", "'q'", "\t"],
    Kind.INT4: [-(2**31), 2**31 - 1, 0, 9, 10, 100],
    Kind.INT8: [-(2**63), 2**63 - 1, 0, 9, 10, 2**40],
    Kind.FLOAT8: [float("inf"), -0.0, 0.1, 1e300, 5e-324, 9.5, 10.25],
    Kind.DECIMAL: [Decimal("-9999999.99"), Decimal("9999999.99"), Decimal("0.01"), Decimal("9.50"), Decimal("0.00")],
    Kind.BOOL: [True, False],
}
DEFAULTS = {
    Kind.TEXT: "dé'f",
    Kind.INT4: "-7",
    Kind.INT8: "77",
    Kind.FLOAT8: "0.5",
    Kind.DECIMAL: "1.25",
    Kind.BOOL: "t",
}
READ: dict[Kind, Any] = {Kind.INT4: int, Kind.INT8: int, Kind.FLOAT8: float, Kind.DECIMAL: Decimal}
KINDS = list(VALUES)


class RandomSource:
    """One table with a key ``id`` and a column ``note``, which the stream leaves out of some updates."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.schema = table(
            column(1, "id", Kind.INT8),
            column(2, "note", Kind.TEXT),
            column(3, "i", Kind.INT4),
            column(4, "d", Kind.DECIMAL, precision=9, scale=2),
        )
        self.rows = {i: self._row(i) for i in range(self.random.choice([0, 3, 40]))}
        self.stream = Stream(self.schema)
        self._attnum = 10

    @property
    def target(self) -> TableTarget:
        """The table in its current version."""
        return TableTarget.of(self.schema)

    def copied(self) -> MemoryRows:
        """Return the rows as those of a copy, in up to three partitions."""
        rows = list(self.rows.values())
        parts = self.random.randint(1, 3)
        return MemoryRows(self.schema, *(rows[i::parts] for i in range(parts)))

    def expected(self) -> dict[int, tuple[str, ...]]:
        """Return the rows by key, in a form that distinguishes NaN and signed zeros as well."""
        names = sorted(c.name for c in self.schema.columns)
        return {i: tuple(f"{n}={row[n]!r}" for n in names) for i, row in self.rows.items()}

    def change(self) -> None:
        """Make some transactions, and sometimes a change of the columns between them."""
        for _ in range(self.random.randint(1, 6)):
            if self.random.random() < 0.15:
                self._alter()
            with self.stream.source.transaction():
                for _ in range(self.random.choice([1, 1, 3, 30])):
                    self._write()

    def _write(self) -> None:
        known = list(self.rows)
        what = self.random.choices(
            ["insert", "update", "partial", "delete", "move", "exchange", "again", "truncate"],
            [30, 20, 15, 15, 8, 5, 5, 0.7],
        )[0]
        if what == "truncate":
            self.rows.clear()
            self.stream.truncate()
        elif what == "insert" or not known:
            key = self.random.choice([i for i in range(len(known) + 20) if i not in self.rows])
            self.rows[key] = self._row(key)
            self.stream.insert(**self.rows[key])
        elif what == "delete":
            self._delete(self.random.choice(known))
        elif what == "again":
            key = self.random.choice(known)
            self._delete(key)
            self.rows[key] = self._row(key)
            self.stream.insert(**self.rows[key])
        elif what == "exchange" and len(known) > 1:
            first, second = self.random.sample(known, 2)
            free = max(known) + 1
            for before, after in ((first, free), (second, first), (free, second)):
                self._move(before, after)
        elif what == "move":
            self._move(self.random.choice(known), self.random.choice([max(known) + 1, min(known) - 1]))
        else:
            key = self.random.choice(known)
            self.rows[key] = self._row(key) | ({"note": self.rows[key]["note"]} if what == "partial" else {})
            self._update(what == "partial", **self.rows[key])

    def _delete(self, key: int) -> None:
        del self.rows[key]
        self.stream.delete(id=key)

    def _move(self, before: int, after: int) -> None:
        self.rows[after] = self.rows.pop(before) | {"id": after}
        self._update(self.random.random() < 0.5, old={"id": before}, **self.rows[after])

    def _update(self, partial: bool, old: dict[str, Any] | None = None, **row: Any) -> None:
        if partial:
            row["note"] = None
        self.stream.update(old=old, unchanged=[2] if partial else (), **row)

    def _row(self, key: int) -> dict[str, Any]:
        return {
            c.name: key if c.name == "id" else self.random.choice([None, *VALUES[c.type.kind]])
            for c in self.schema.columns
        }

    def _alter(self) -> None:
        others = [c for c in self.schema.columns if c.attnum not in (1, 2)]
        what = self.random.choice(["add", "add", "drop", "rename", "widen"])
        columns = list(self.schema.columns)
        if what == "add" or not others:
            columns.append(self._added())
        else:
            victim = self.random.choice(others)
            at = columns.index(victim)
            if what == "drop":
                del columns[at]
                for row in self.rows.values():
                    del row[victim.name]
            elif what == "rename":
                columns[at] = replace(victim, name=self._free_name())
                for row in self.rows.values():
                    row[columns[at].name] = row.pop(victim.name)
            elif victim.type.kind is Kind.INT4:
                columns[at] = replace(column(victim.attnum, victim.name, Kind.INT8), missing_value=victim.missing_value)
        self._use(replace(self.schema, columns=tuple(columns)))

    def _added(self) -> Column:
        kind = self.random.choice(KINDS)
        self._attnum += 1
        text = self.random.choice([None, DEFAULTS[kind]])
        shape = {"precision": 9, "scale": 2} if kind is Kind.DECIMAL else {}
        made = column(self._attnum, self._free_name(), kind, missing_value=text, **shape)
        value = None if text is None else text == "t" if kind is Kind.BOOL else READ.get(kind, str)(text)
        for row in self.rows.values():
            row[made.name] = value
        return made

    def _free_name(self) -> str:
        taken = {c.name for c in self.schema.columns}
        # Few names, so that one comes back for another column.
        return self.random.choice(
            [n for n in ("a", "b", "c", "Ä 1", *(f"c{i}" for i in range(99))) if n not in taken][:4]
        )

    def _use(self, schema: ReplicatedTableSchema) -> None:
        self.stream.alter(schema)
        self.schema = self.stream.schema
