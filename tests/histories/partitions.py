"""Statements that change partitions, of up to three levels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tests.histories.draw import Draw, ImpossibleError, Made, statement
from tests.histories.history import quoted
from tests.histories.model import Table
from tests.histories.values import value

_BOUNDS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "integer": (("3", "5", "1000"), ("1, 2", "3", "4, 5, 6")),
    "bigint": (("2", "4", "9223372036854775807"), ("1, 2", "3, 9223372036854775807")),
    "text": (("'K1'", "'k1'", "'k2'"), ("'k1', 'K1'", "''", "'k2', 'é'")),
    "date": (("'0001-01-01'", "'1970-01-01'", "'2024-02-29'", "'9999-12-31'"), ("'2024-02-29'", "'0001-01-01'")),
    "timestamp with time zone": (
        ("'1900-01-01 00:00:00+00'", "'2024-02-29 12:00:00+00'", "'2024-03-01 00:00:00+00'"),
        (),
    ),
    "uuid": (("'00000000-0000-0000-0000-000000000000'", "'6f1a2b3c-0000-4000-8000-000000000001'"), ()),
    "boolean": ((), ("true", "false")),
    "numeric": (("0", "1.5", "1e31"), ("1.50", "0")),
    "{s}.mood": ((), ("'good'", "'bad'")),
}
"""Values that divide the keys of a type by RANGE, and lists of its keys, as PostgreSQL prints them."""
_HASHES: Final = ("FOR VALUES WITH (MODULUS 2, REMAINDER 0)", "FOR VALUES WITH (MODULUS 2, REMAINDER 1)")


def _listed(kind: str) -> tuple[str, ...]:
    """Return bounds by LIST of a key of a type."""
    return tuple(f"FOR VALUES IN ({values})" for values in _BOUNDS.get(kind, ((), ()))[1])


def _ranges(kinds: Sequence[str]) -> tuple[str, ...]:
    """Return adjoining bounds by RANGE of a key of some types."""
    first, *others = kinds
    inner = [", ".join((v, *(_BOUNDS[o][0][0] for o in others))) for v in _BOUNDS.get(first, ((), ()))[0]]
    ends = [", ".join([end] * len(kinds)) for end in ("MINVALUE", "MAXVALUE")]
    return tuple(f"FOR VALUES FROM ({low}) TO ({high})" for low, high in pairwise([ends[0], *inner, ends[1]]))


def _bounds(parent: Table) -> tuple[str, ...]:
    strategy, _, names = parent.partitioned_by.partition(" ")
    if strategy == "HASH":
        return _HASHES
    known = {c.name: c.type for c in parent.columns}
    kinds = [known.get(name.partition(" COLLATE")[0].strip('"'), "") for name in names.strip("()").split(", ")]
    if not set(kinds) <= _BOUNDS.keys():
        raise ImpossibleError
    return (*(_listed(kinds[0]) if strategy == "LIST" else _ranges(kinds)), "DEFAULT")


def _bound(draw: Draw, parent: Table) -> str:
    """Return bounds of a new partition, most often those that no partition has."""
    taken = {_plain(t.bound) for t in draw.model.tables if t.parent == parent.sql}
    free = [b for b in _bounds(parent) if _plain(b) not in taken]
    return draw.one(_bounds(parent) if draw.odds(0.1) else free)


def _plain(bound: str) -> str:
    return bound.replace("'", "").lower()


def _levels(draw: Draw, table: Table) -> int:
    level, now = 1, table
    while now.is_partition and (above := draw.model.named(now.parent)) is not None:
        level, now = level + 1, above
    return level


@statement("create partitioned table", 2)
def create_partitioned_table(draw: Draw) -> Made:
    """Create a partitioned table with one or two partitions."""
    name = draw.one(("p1", "p2"))
    kind = draw.one(("integer", "integer", *_BOUNDS))
    other = draw.one(("integer", "integer", "date", "text"))
    # The hash of an enum follows from its OIDs, which differ on the twin.
    ways = [way for way, values in zip(("RANGE", "LIST"), _BOUNDS[kind], strict=True) if values] + ["HASH"] * (
        kind != "{s}.mood"
    )
    by = draw.one([way for way in ways for _ in range(1 if way == "HASH" else 3)])
    ranged = by == "RANGE" and draw.odds(0.25)
    bounds = {"RANGE": _ranges((kind, other) if ranged else (kind,)), "LIST": _listed(kind), "HASH": _HASHES}[by]
    key = draw.one(("k1, k2", "k2, k1") if ranged else ("k1", "k1, k2", "k2, k1"))
    primary = f", PRIMARY KEY ({key})" if draw.odds(0.85) else ""
    collation = ' COLLATE "C"' if kind == "text" and draw.odds(0.6) else ""
    made = (
        f"CREATE TABLE {{s}}.{name} (k1 {kind}{collation} NOT NULL, k2 {other} NOT NULL, c1 int, c2 text{primary})"
        f" PARTITION BY {by} (k1{', k2' if ranged else ''})"
    )
    if by != "HASH" and draw.odds(0.3):
        bounds = (*bounds, "DEFAULT")
    parts = [
        f"CREATE TABLE {{s}}.{name}_{i} PARTITION OF {{s}}.{name} {bound}"
        for i, bound in enumerate(bounds)
        if i == 0 or draw.odds(0.7)
    ]
    return None, [made, *parts]


@statement("create partition", 3)
def create_partition(draw: Draw) -> Made:
    """Create an empty partition, sometimes one that has partitions of its own."""
    parent = draw.table(lambda t: t.kind == "p")
    deeper = f" PARTITION BY RANGE ({draw.one(('k1', 'k2'))})" if _levels(draw, parent) < 3 and draw.odds(0.3) else ""
    name = draw.new("part")
    made = [f"CREATE TABLE {{s}}.{name} PARTITION OF {parent.sql} {_bound(draw, parent)}{deeper}"]
    if deeper:
        made.append(f"CREATE TABLE {{s}}.{name}_d PARTITION OF {{s}}.{name} DEFAULT")
    return parent, made


@statement("attach partition", 5)
def attach_partition(draw: Draw) -> Made:
    """Attach a table, empty or with rows."""
    parent = draw.table(lambda t: t.kind == "p")
    loose = [t for t in draw.model.tables if t.name.startswith(("part", "p1_", "p2_")) and not t.parent]
    if loose and draw.odds(0.6):
        part = draw.one(loose)
        return part, [f"ALTER TABLE {parent.sql} ATTACH PARTITION {part.sql} {_bound(draw, parent)}"]
    name = draw.new("part")
    columns = [c for c in parent.columns if c.writable and (c.name in parent.key or not c.nullable)]
    row = ", ".join(value(draw.rng, c.type, key=c.name in parent.key or c.name.startswith("k")) for c in columns)
    names = ", ".join(quoted(c.name) for c in columns)
    rows = [f"INSERT INTO {{s}}.{name} ({names}) VALUES ({row})"] if columns and draw.odds(0.4) else []
    return parent, [
        f"CREATE TABLE {{s}}.{name} (LIKE {parent.sql} INCLUDING ALL)",
        *rows,
        f"ALTER TABLE {parent.sql} ATTACH PARTITION {{s}}.{name} {_bound(draw, parent)}",
    ]


@statement("detach partition", 6)
def detach_partition(draw: Draw) -> Made:
    """Detach a partition, sometimes concurrently."""
    part = draw.table(lambda t: t.is_partition)
    concurrently = " CONCURRENTLY" if draw.odds(0.1) else ""
    return part, [f"ALTER TABLE {part.parent} DETACH PARTITION {part.sql}{concurrently}"]


def _root(draw: Draw, part: Table) -> Table:
    """Return the root of a partition."""
    root = part
    while root.is_partition and (above := draw.model.named(root.parent)) is not None:
        root = above
    return root


def _row(draw: Draw, table: Table) -> str:
    """Return the INSERT of a row into a table, without its end."""
    columns = [c for c in table.columns if c.writable and (c.name in table.key or c.name.startswith(("k", "c")))]
    if not columns:
        raise ImpossibleError
    row = ", ".join(value(draw.rng, c.type, key=c.name in table.key or c.name.startswith("k")) for c in columns)
    return f"INSERT INTO {table.sql} ({', '.join(quoted(c.name) for c in columns)}) VALUES ({row})"


def _fill(draw: Draw, table: Table, rows: int) -> str:
    """Return a statement that inserts those rows for which the table has a place."""
    blocks = [f"BEGIN {_row(draw, table)}; EXCEPTION WHEN others THEN NULL; END;" for _ in range(rows)]
    return f"DO $do$ BEGIN {' '.join(blocks)} END $do$"


def _change(draw: Draw, table: Table) -> str:
    """Return a statement that changes rows of a table by its own name."""
    others = [c for c in table.columns if c.writable and c.name not in table.key and not c.name.startswith("k")]
    kind = draw.one(("update", "update", "update", "insert", "delete", "truncate"))
    if kind == "update" and others:
        column = draw.one(others)
        return f"UPDATE {table.sql} SET {quoted(column.name)} = {value(draw.rng, column.type)}"
    if kind == "insert":
        return f"{_row(draw, table)} ON CONFLICT DO NOTHING"
    return f"TRUNCATE {table.sql}" if kind == "truncate" else f"DELETE FROM {table.sql}"


def _around(draw: Draw, part: Table, away: list[str]) -> list[str]:
    """Return the statements, most often as one transaction, sometimes with rows of the root before and after them."""
    root = _root(draw, part)
    before, after = ([_fill(draw, root, 2)] if draw.odds(0.4) else [] for _ in range(2))
    return away if draw.odds(0.25) else ["; ".join((*before, *away, *after))]


@statement("detach partition for a while", 5)
def detach_for_a_while(draw: Draw) -> Made:
    """Detach a partition with some rows, change it and attach it again, sometimes with other bounds."""
    part = draw.table(lambda t: t.is_partition)
    above = draw.model.named(part.parent)
    bound = _bound(draw, above) if above is not None and draw.odds(0.15) else part.bound
    away = [
        f"ALTER TABLE {part.parent} DETACH PARTITION {part.sql}",
        *(_change(draw, part) for _ in range(draw.one((1, 1, 2)))),
        f"ALTER TABLE {part.parent} ATTACH PARTITION {part.sql} {bound}",
    ]
    return part, [_fill(draw, part, 6), *_around(draw, part, away)]


@statement("attach partition for a while", 4)
def attach_for_a_while(draw: Draw) -> Made:
    """Create or attach a partition, change it and detach or drop it again."""
    parent = draw.table(lambda t: t.kind == "p")
    loose = [
        t for t in draw.model.tables if t.kind == "r" and not t.parent and t.name.startswith(("part", "p1_", "p2_"))
    ]
    bound = _bound(draw, parent)
    if loose and draw.odds(0.5):
        name = draw.one(loose).sql
        made = [f"ALTER TABLE {parent.sql} ATTACH PARTITION {name} {bound}"]
    else:
        name = f"{{s}}.{draw.new('part')}"
        made = [f"CREATE TABLE {name} PARTITION OF {parent.sql} {bound}"]
    changes = [_fill(draw, parent, 8)]
    plain = [c.name for c in parent.columns if c.writable and c.name.startswith("c")]
    changes += [f"UPDATE {parent.sql} SET {quoted(draw.one(plain))} = DEFAULT"] if plain and draw.odds(0.5) else []
    end = draw.one((f"ALTER TABLE {parent.sql} DETACH PARTITION {name}", f"DROP TABLE {name}"))
    return parent, _around(draw, parent, [*made, *changes, end])


@statement("partition in the place of one", 2)
def partition_in_the_place_of_one(draw: Draw) -> Made:
    """Detach or drop a partition, and create another one with its bounds, or attach it as one of another table."""
    part = draw.table(lambda t: t.is_partition)
    others = [t for t in draw.model.tables if t.kind == "p" and t.sql not in (part.parent, part.sql)]
    if others and draw.odds(0.3):
        other = draw.one(others)
        away = [
            f"ALTER TABLE {part.parent} DETACH PARTITION {part.sql}",
            f"ALTER TABLE {other.sql} ATTACH PARTITION {part.sql} {_bound(draw, other)}",
        ]
        return part, _around(draw, part, away)
    gone = draw.one((f"ALTER TABLE {part.parent} DETACH PARTITION {part.sql}", f"DROP TABLE {part.sql}"))
    away = [gone, f"CREATE TABLE {{s}}.{draw.new('part')} PARTITION OF {part.parent} {part.bound}"]
    return part, [_fill(draw, part, 3), *_around(draw, part, away)]


@statement("drop partition", 3)
def drop_partition(draw: Draw) -> Made:
    """Drop a partition."""
    part = draw.table(lambda t: t.is_partition)
    return part, [f"DROP TABLE {part.sql}"]


@statement("truncate partition", 1.5)
def truncate_partition(draw: Draw) -> Made:
    """Truncate a partition, or a part of a partitioned table."""
    part = draw.table(lambda t: t.is_partition)
    return part, [f"TRUNCATE {part.sql}"]


@statement("identity of partitions", 9)
def identity_of_partitions(draw: Draw) -> Made:
    """Set the replica identity of a root and its partitions, in any order, with or without rows between.

    Half of the time that is one transaction, which no new session of the stream divides. A session begins with a
    description of each table, and other histories of a batch cause new ones all the time.
    """
    root = draw.table(lambda t: t.kind == "p" and not t.is_partition)
    parts = [t for t in draw.model.tables if t.parent == root.sql]
    keys = [c for c in root.columns if c.name.startswith("k") and c.writable]
    if not parts or not keys:
        raise ImpossibleError
    other = "DEFAULT" if root.identity == "f" else "FULL"
    identity = draw.one((*[other] * 8, "DEFAULT", "NOTHING"))
    order = [*parts, root]
    if draw.odds(0.2):
        draw.rng.shuffle(order)
    statements = [_fill(draw, root, 4)] if draw.odds(0.6) else []
    for table in order:
        statements.append(f"ALTER TABLE {table.sql} REPLICA IDENTITY {identity}")
        if draw.odds(0.3):
            statements.append(_fill(draw, root, 1))
        elif draw.odds(0.85):
            column = quoted(draw.one([c for c in root.columns if c.writable]).name)
            statements.append(f"UPDATE {root.sql} SET {column} = {column}")
        if draw.odds(0.3):
            key = draw.one(keys)
            statements.append(
                f"DELETE FROM {root.sql} WHERE {quoted(key.name)} = {value(draw.rng, key.type, key=True)}"
            )
    return root, ["; ".join(statements)] if draw.odds(0.5) else statements
