"""Copies whose ranges are read in several snapshots, against a table whose rows move while it is copied. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rigs.row_streams import KEYS, NUMBERS, TEXTS, Row, Stream, as_table, table

from levada.apply.changed_keys import StagedKeys
from levada.copy.kept import Basis, KeptCopy, changed_part, range_name
from levada.copy.keyed_rows import keyed_rows
from levada.copy.plan import PlannedLeaf, RangePlan
from levada.schema import Kind, ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN
from levada.values import Lsn, QualifiedTable

LEAF = QualifiedTable("public", "t")
BLOCKS = 6
FILTERED = 9
"""The value of column n whose rows the row filter of the publication leaves out."""


@dataclass
class Table:
    """The rows of a table at the source by key, the block of each, and the stream of its changes."""

    stream: Stream
    rows: dict[Row, Row] = field(default_factory=dict)
    blocks: dict[Row, int] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return self.stream.width

    def published(self, row: Row) -> bool:
        return row[self.width] != FILTERED

    def insert(self, row: Row, block: int) -> None:
        self.rows[row[: self.width]], self.blocks[row[: self.width]] = row, block
        if self.published(row):
            self.stream.send("I", row)

    def delete(self, key: Row) -> None:
        row = self.rows.pop(key)
        del self.blocks[key]
        if self.published(row):
            self.stream.send("D", tuple(v if i < self.width else None for i, v in enumerate(row)), (), None, "K")

    def update(self, key: Row, row: Row, block: int, *, full: bool, unchanged: tuple[int, ...]) -> None:
        """Change a row, which moves to ``block``. The server converts the change if the row filter demands it."""
        old = self.rows.pop(key)
        del self.blocks[key]
        new = row[: self.width]
        self.rows[new], self.blocks[new] = row, block
        if self.published(old) and self.published(row):
            kind = "O" if full else "K" if new != key else ""
            self.stream.send("U", row, unchanged, old if kind else None, kind)
        elif self.published(row):
            self.stream.send("I", row)
        elif self.published(old):
            self.stream.send("D", tuple(v if i < self.width else None for i, v in enumerate(old)), (), None, "K")

    def swap(self, first: Row, second: Row, aside: Row, block: int) -> None:
        """Exchange the keys of two rows by way of a third key, which is free."""
        for old, new in ((first, aside), (second, first), (aside, second)):
            row = self.rows[old]
            self.update(old, new + row[self.width :], block, full=False, unchanged=(self.width + 1,))

    def read(self, first: int, end: int | None) -> list[Row]:
        """Return the rows of a range that the publication has."""
        found = [self.rows[k] for k, b in self.blocks.items() if b >= first and (end is None or b < end)]
        return [row for row in found if self.published(row)]


@dataclass
class Copy:
    """An interrupted copy: its record as the store has it, and the files of its finished ranges by name."""

    schema: ReplicatedTableSchema
    record: str
    files: dict[str, list[Row]] = field(default_factory=dict)

    def attempt(self, now: Table, indices: list[int]) -> None:
        """Read some of the ranges that are left in a snapshot of this moment."""
        kept = KeptCopy.from_text(self.record)
        assert kept is not None
        lsn = Lsn(now.stream.lsn)
        ranges = kept.plan.ranges()
        for i in indices:
            if i not in kept.ranges:
                self.files[range_name(lsn, i)] = now.read(ranges[i].first, ranges[i].end)
                kept = kept.with_finished(lsn, [i])
        self.record = kept.to_text()

    def complete(self, now: Table) -> dict[Row, Row]:
        """Read the ranges that are left and the changed rows, and return the rows of the copy by key."""
        before = KeptCopy.from_text(self.record)
        assert before is not None
        self.attempt(now, list(range(len(before.plan.ranges()))))
        rows = [row for file in self.files.values() for row in file]
        width = len(self.schema.key)
        if before.first_lsn is not None:
            keys = StagedKeys.of(self.schema, changes(now.stream, before.first_lsn))
            names = [c.name for c in self.schema.key_columns]
            changed = {tuple(r.values()) for r in keys.keys.to_pylist()}
            assert len(changed) == keys.keys.num_rows
            again = [row for key, row in now.rows.items() if key in changed and now.published(row)]
            assert keys.exist(as_table(self.schema, again[::-1]).select(names))
            assert not keys.exist(as_table(self.schema, again[1:]).select(names)) or not again
            rows = [row for row in rows if row[:width] not in changed] + again
        copied = {row[:width]: row for row in rows}
        assert len(copied) == len(rows), "a key is in the copy twice"
        return copied


def changes(stream: Stream, first: Lsn) -> list[pa.RecordBatch]:
    """Return the staged changes from the first snapshot on, in several batches."""
    found = stream.table() if stream.changes else pa.table({})
    if not found.num_rows:
        return []
    kept = found.filter(pa.array([lsn >= first for lsn in found.column(COMMIT_LSN).to_pylist()]))
    return kept.combine_chunks().to_batches(max_chunksize=3)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Table, Copy, list[Any]]:
    """Draw a table, its plan, and what happens to both."""
    kinds = draw(st.sampled_from(list(KEYS)))
    domain = KEYS[kinds]
    payload = st.tuples(NUMBERS, TEXTS, TEXTS)
    block = st.integers(0, BLOCKS + 3)  # blocks beyond the plan are added later
    schema = table(*kinds)
    source = Table(Stream(schema, {}))
    for key in draw(st.lists(st.sampled_from(domain), unique=True)):
        source.rows[key], source.blocks[key] = key + draw(payload), draw(st.integers(0, BLOCKS - 1))
    plan = RangePlan((PlannedLeaf(LEAF, BLOCKS, BLOCKS),), draw(st.integers(1, 3)))
    record = KeptCopy("basis", "folder", Lsn(1), plan, {}).to_text()
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["insert", "update", "update", "delete", "swap", "commit", "commit", "attempt"]),
                st.integers(0, 10**6),
                payload,
                block,
                st.booleans(),
                st.lists(st.integers(0, BLOCKS), max_size=3),
            ),
            max_size=40,
        )
    )
    return source, Copy(schema, record), [domain, steps]


@settings(max_examples=200)
@given(histories())
def test_a_resumed_copy_is_the_table_at_its_last_snapshot(drawn: tuple[Table, Copy, list[Any]]) -> None:
    """However rows move, change keys, come and go between the snapshots, the copy has each row once, as it is last."""
    source, copy, (domain, steps) = drawn
    for what, number, payload, block, flag, ranges in steps:
        held = list(source.rows)
        free = [k for k in domain if k not in source.rows]
        match what:
            case "commit":
                source.stream.commit()
            case "attempt":
                # A snapshot shows whole transactions.
                source.stream.commit()
                copy.attempt(source, [i for i in ranges if i < len(plan_of(copy))])
            case "insert" if free:
                source.insert(free[number % len(free)] + payload, block)
            case "delete" if held:
                source.delete(held[number % len(held)])
            case "update" if held:
                key = held[number % len(held)]
                new = (free[number % len(free)] if flag and free else key) + payload
                place = len(key) + 1  # a text that may be TOASTed
                unknown = number % 2 == 0
                if unknown:
                    new = (*new[:place], source.rows[key][place], *new[place + 1 :])
                full = number % 3 == 0 and not unknown
                source.update(key, new, block, full=full, unchanged=(place,) if unknown else ())
            case "swap" if len(held) > 1 and free:
                first, second = held[number % len(held)], held[(number + 1) % len(held)]
                source.swap(first, second, free[0], block)
    source.stream.commit()
    copied = copy.complete(source)
    assert copied == {k: row for k, row in source.rows.items() if source.published(row)}


def plan_of(copy: Copy) -> tuple[Any, ...]:
    """Return the ranges of a copy."""
    kept = KeptCopy.from_text(copy.record)
    assert kept is not None
    return kept.plan.ranges()


def test_the_record_of_a_terabyte_is_small() -> None:
    """The record has a few bytes for each range, also if every second range is missing."""
    plan = RangePlan((PlannedLeaf(LEAF, 1 << 27, 1 << 40),), 128 << 20)
    ranges = range(len(plan.ranges()))
    assert len(ranges) == 8192
    kept = KeptCopy("b" * 64, "s3://bucket/folder/", Lsn(1), plan, {Lsn(5): frozenset(ranges[::2])})
    kept = kept.with_finished(Lsn(9), ranges[1::2])
    assert len(kept.to_text()) < 64 << 10
    assert KeptCopy.from_text(kept.to_text()) == kept


def test_another_plan_is_not_resumed() -> None:
    """A version of Levada that cuts the partitions into other ranges does not use the record."""
    plan = RangePlan((PlannedLeaf(LEAF, 6, 6),), 2)
    text = KeptCopy("b", "f", Lsn(1), plan, {Lsn(5): frozenset({1})}).to_text()
    assert KeptCopy.from_text(text) is not None
    assert KeptCopy.from_text(text.replace('"targetBytes":2', '"targetBytes":3')) is None


def test_keys_are_escaped() -> None:
    """Quotes, backslashes and several columns are literals of escape strings."""
    schema = table(Kind.INT4, Kind.TEXT)
    keys = as_table(schema, [(1, "o'k", None, None, None), (-2, "a\\b", None, None, None)]).select(["k0", "k1"])
    (part,) = keyed_rows(schema, [LEAF], keys)
    assert part.condition == "(\"k0\", \"k1\") IN ((E'1', E'o\\'k'), (E'-2', E'a\\\\b'))"
    single = table(Kind.INT8)
    (part,) = keyed_rows(single, [LEAF], pa.table({"k0": pa.array([3, 4])}))
    assert part.condition == "\"k0\" IN (E'3', E'4')"


def test_the_part_that_changed_is_named() -> None:
    """A restart of the server is named first, because it may be the cause of the others."""
    before = Basis((1,), ("a",), (None,), ("t", 5))
    assert changed_part(before.to_text(), replace(before, server=(2,), table=()).to_text()).startswith("the source was")
    assert "settings" in changed_part(before.to_text(), replace(before, settings=("b",)).to_text())
    assert "publication" in changed_part(before.to_text(), replace(before, publication=("f",)).to_text())
    assert "altered" in changed_part(before.to_text(), replace(before, table=("t", 6)).to_text())
    assert "another version" in changed_part("0" * 64, before.to_text())
