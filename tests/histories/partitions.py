"""Statements that change partitions, of up to three levels."""

from __future__ import annotations

from tests.histories.draw import Draw, ImpossibleError, Made, statement
from tests.histories.history import quoted
from tests.histories.model import Table

_RANGES = ("FROM (MINVALUE) TO (3)", "FROM (3) TO (5)", "FROM (5) TO (1000)")


def _bounds(parent: Table) -> tuple[str, ...]:
    if parent.partitioned_by.startswith("LIST"):
        return ("FOR VALUES IN (1, 2)", "FOR VALUES IN (3)", "DEFAULT")
    if parent.partitioned_by.startswith("HASH"):
        return ("FOR VALUES WITH (MODULUS 2, REMAINDER 0)", "FOR VALUES WITH (MODULUS 2, REMAINDER 1)")
    return (*(f"FOR VALUES {r}" for r in _RANGES), "DEFAULT")


def _levels(draw: Draw, table: Table) -> int:
    level, now = 1, table
    while now.is_partition and (above := draw.model.named(now.parent)) is not None:
        level, now = level + 1, above
    return level


@statement("create partitioned table", 2)
def create_partitioned_table(draw: Draw) -> Made:
    """Create a partitioned table with one or two partitions."""
    name = draw.one(("p1", "p2"))
    key = draw.one(("k1", "k1, k2", "k2, k1"))
    by = draw.one(("RANGE (k1)", "RANGE (k1)", "LIST (k1)", "HASH (k1)"))
    primary = f", PRIMARY KEY ({key})" if draw.odds(0.85) else ""
    made = f"CREATE TABLE {{s}}.{name} (k1 int NOT NULL, k2 int NOT NULL, c1 int, c2 text{primary}) PARTITION BY {by}"
    bounds = {
        "R": ("FROM (MINVALUE) TO (3)", "FROM (3) TO (1000)"), "L": ("IN (1, 2)", "IN (3, 4, 5, 6)"),
        "H": ("WITH (MODULUS 2, REMAINDER 0)", "WITH (MODULUS 2, REMAINDER 1)"),
    }[by[0]]  # fmt: skip
    parts = [
        f"CREATE TABLE {{s}}.{name}_{i} PARTITION OF {{s}}.{name} FOR VALUES {bound}"
        for i, bound in enumerate(bounds[: draw.one((1, 2, 2))])
    ]
    return None, [made, *parts]


@statement("create partition", 1.5)
def create_partition(draw: Draw) -> Made:
    """Create an empty partition, sometimes one that has partitions of its own."""
    parent = draw.table(lambda t: t.kind == "p")
    deeper = f" PARTITION BY RANGE ({draw.one(('k1', 'k2'))})" if _levels(draw, parent) < 3 and draw.odds(0.3) else ""
    name = draw.new("part")
    made = [f"CREATE TABLE {{s}}.{name} PARTITION OF {parent.sql} {draw.one(_bounds(parent))}{deeper}"]
    if deeper:
        made.append(f"CREATE TABLE {{s}}.{name}_d PARTITION OF {{s}}.{name} DEFAULT")
    return parent, made


@statement("attach partition", 1.5)
def attach_partition(draw: Draw) -> Made:
    """Attach a table, empty or with rows."""
    parent = draw.table(lambda t: t.kind == "p")
    loose = [t for t in draw.model.tables if t.name.startswith(("part", "p1_", "p2_")) and not t.parent]
    if loose and draw.odds(0.6):
        part = draw.one(loose)
        return part, [f"ALTER TABLE {parent.sql} ATTACH PARTITION {part.sql} {draw.one(_bounds(parent))}"]
    name = draw.new("part")
    rows = [f"INSERT INTO {{s}}.{name} ({quoted(parent.columns[0].name)}, {quoted(parent.columns[1].name)})"
            f" VALUES (3, 3), (4, 4)"] if draw.odds(0.5) and len(parent.columns) > 1 else []  # fmt: skip
    return parent, [
        f"CREATE TABLE {{s}}.{name} (LIKE {parent.sql} INCLUDING ALL)",
        *rows,
        f"ALTER TABLE {parent.sql} ATTACH PARTITION {{s}}.{name} {draw.one(_bounds(parent))}",
    ]


@statement("detach partition", 1)
def detach_partition(draw: Draw) -> Made:
    """Detach a partition."""
    part = draw.table(lambda t: t.is_partition)
    return part, [f"ALTER TABLE {part.parent} DETACH PARTITION {part.sql}"]


@statement("drop partition", 0.7)
def drop_partition(draw: Draw) -> Made:
    """Drop a partition."""
    part = draw.table(lambda t: t.is_partition)
    return part, [f"DROP TABLE {part.sql}"]


@statement("truncate partition", 0.7)
def truncate_partition(draw: Draw) -> Made:
    """Truncate a partition, or a part of a partitioned table."""
    part = draw.table(lambda t: t.is_partition)
    return part, [f"TRUNCATE {part.sql}"]


@statement("identity of partitions", 6)
def identity_of_partitions(draw: Draw) -> Made:
    """Set the replica identity of a root and its partitions, in any order, with or without rows between."""
    root = draw.table(lambda t: t.kind == "p" and not t.is_partition)
    parts = [t for t in draw.model.tables if t.parent == root.sql]
    if not parts:
        raise ImpossibleError
    other = "DEFAULT" if root.identity == "f" else "FULL"
    identity = draw.one((*[other] * 8, "DEFAULT", "NOTHING"))
    order = [*parts, root]
    if draw.odds(0.2):
        draw.rng.shuffle(order)
    statements = []
    for table in order:
        statements.append(f"ALTER TABLE {table.sql} REPLICA IDENTITY {identity}")
        if draw.odds(0.3):
            k = draw.one("123456")
            statements.append(f"INSERT INTO {root.sql} (k1, k2) VALUES ({k}, {k}) ON CONFLICT DO NOTHING")
        elif draw.odds(0.85):
            column = quoted(draw.one([c for c in root.columns if c.writable]).name)
            statements.append(f"UPDATE {root.sql} SET {column} = {column}")
        if draw.odds(0.3):
            statements.append(f"DELETE FROM {root.sql} WHERE k1 = {draw.one('123456')}")
    return root, statements
