"""Statements that change the columns of a table."""

from __future__ import annotations

from tests.histories.draw import Draw, ImpossibleError, Made, statement
from tests.histories.history import quoted
from tests.histories.values import COMPUTED, VALUES, WIDER, value

_NAMES = (*("c1", "c2", "c3", "a") * 3, "Ä 1", "select", "x.y")
"""Few names, so that one comes back for another column."""
_ALIKE = (
    ("sira", "s\u0131ra", "SIRA", "s\u0130ra"), ("k", "\u212a", "K"), ("us", "u\u017f", "US"),
    ("\u00b5", "\u03bc", "\u039c"), ("\u00e9", "\u00c9", "e\u0301"), ("\u00df", "\u1e9e", "ss"),
    ("\u03c3", "\u03c2"), ("x", "x ", "X", "x\u00a0"),
)  # fmt: skip
"""Names that some readers take for one: by case, dots, or composition, letter by letter, or by blanks at their end."""


_NESTED = ("text[]", "integer[]")


def _name(draw: Draw) -> str:
    return quoted(draw.one(alike(draw) if draw.trait("names alike", 0.3) else _NAMES))


def alike(draw: Draw) -> tuple[str, ...]:
    """Return the names of which a history has some."""
    if not draw.alike:
        draw.alike = draw.one(_ALIKE)
    return draw.alike


def _constant(draw: Draw, kind: str) -> str:
    return draw.one(VALUES.get(kind, ("NULL",)))


@statement("add column", 6)
def add_column(draw: Draw) -> Made:
    """Add a column without a default, or with a constant one."""
    table = draw.table(lambda t: not t.parent)
    kind = draw.one(("text[]", "integer[]") if draw.trait("arrays", 0.3) else list(VALUES))
    default = draw.one(("", " DEFAULT {}", " NOT NULL DEFAULT {}")).format(_constant(draw, kind))
    return table, [f"ALTER TABLE {table.sql} ADD COLUMN {_name(draw)} {kind}{default}"]


@statement("add filled column", 3)
def add_filled_column(draw: Draw) -> Made:
    """Add a column in which rows from before have a constant, more often than not one of a nested type."""
    table = draw.table(lambda t: not t.parent)
    kind = draw.one(_NESTED if draw.odds(0.6) else list(VALUES))
    null = draw.one(("", " NOT NULL"))
    return table, [f"ALTER TABLE {table.sql} ADD COLUMN {_name(draw)} {kind}{null} DEFAULT {_constant(draw, kind)}"]


@statement("add two columns", 1)
def add_two_columns(draw: Draw) -> Made:
    """Add two columns by one statement."""
    table = draw.table(lambda t: not t.parent)
    parts = []
    for _ in range(2):
        kind = draw.one(list(VALUES))
        parts.append(f"ADD COLUMN {_name(draw)} {kind} DEFAULT {_constant(draw, kind)}")
    return table, [f"ALTER TABLE {table.sql} {', '.join(parts)}"]


@statement("add computed column", 0.7)
def add_computed_column(draw: Draw) -> Made:
    """Add a column whose default differs for each row."""
    table = draw.table(lambda t: not t.parent)
    kind = draw.one(list(COMPUTED))
    return table, [f"ALTER TABLE {table.sql} ADD COLUMN {_name(draw)} {kind} DEFAULT {COMPUTED[kind]}"]


@statement("add identity column", 0.7)
def add_identity_column(draw: Draw) -> Made:
    """Add a column that numbers the rows."""
    table = draw.table(lambda t: not t.parent)
    how = draw.one(("ALWAYS", "BY DEFAULT"))
    return table, [f"ALTER TABLE {table.sql} ADD COLUMN {draw.new('n')} int GENERATED {how} AS IDENTITY"]


@statement("add generated column", 0.8)
def add_generated_column(draw: Draw) -> Made:
    """Add a column that PostgreSQL computes."""
    table = draw.table(lambda t: not t.parent)
    number = draw.one([c for c in table.columns if c.type in ("integer", "smallint") and not c.generated])
    kind = draw.one(("STORED", "STORED", "VIRTUAL")) if draw.model.major >= 18 else "STORED"
    return table, [
        f"ALTER TABLE {table.sql} ADD COLUMN {draw.new('g')} bigint"
        f" GENERATED ALWAYS AS ({quoted(number.name)}::bigint * 2) {kind}"
    ]


@statement("drop column", 3)
def drop_column(draw: Draw) -> Made:
    """Drop a column, rarely one of the key."""
    table = draw.table(lambda t: not t.parent and len(t.columns) > 1)
    column = draw.one(table.columns) if draw.odds(0.1) else draw.column(table)
    cascade = draw.one(("", "", " CASCADE"))
    return table, [f"ALTER TABLE {table.sql} DROP COLUMN {quoted(column.name)}{cascade}"]


@statement("drop and add column", 1)
def drop_and_add_column(draw: Draw) -> Made:
    """Replace a column by another one of its name, by one statement or by two."""
    table = draw.table(lambda t: not t.parent)
    column = draw.column(table)
    kind = column.type if draw.odds(0.5) else draw.one(list(VALUES))
    drop, add = f"DROP COLUMN {quoted(column.name)}", f"ADD COLUMN {quoted(column.name)} {kind}"
    if draw.odds(0.5):
        return table, [f"ALTER TABLE {table.sql} {drop}, {add}"]
    return table, [f"ALTER TABLE {table.sql} {drop}", f"ALTER TABLE {table.sql} {add}"]


@statement("rename column", 3)
def rename_column(draw: Draw) -> Made:
    """Rename a column, sometimes one of the key."""
    table = draw.table(lambda t: not t.parent)
    column = draw.one(table.columns) if draw.odds(0.3) else draw.column(table)
    return table, [f"ALTER TABLE {table.sql} RENAME COLUMN {quoted(column.name)} TO {_name(draw)}"]


@statement("swap columns", 1.5)
def swap_columns(draw: Draw) -> Made:
    """Exchange the names of two columns."""
    table = draw.table(lambda t: not t.parent)
    one, other = (quoted(c.name) for c in draw.some(table.columns, 2)[:2])
    rename = f"ALTER TABLE {table.sql} RENAME COLUMN"
    return table, [f"{rename} {one} TO moving", f"{rename} {other} TO {one}", f"{rename} moving TO {other}"]


@statement("widen column", 2)
def widen_column(draw: Draw) -> Made:
    """Give a column a wider type."""
    table = draw.table(lambda t: not t.parent)
    column = draw.one([c for c in table.columns if c.type in WIDER and not c.generated])
    return table, [f"ALTER TABLE {table.sql} ALTER COLUMN {quoted(column.name)} TYPE {draw.one(WIDER[column.type])}"]


@statement("retype column", 1.5)
def retype_column(draw: Draw) -> Made:
    """Give a column another type, or other values of its type."""
    table = draw.table(lambda t: not t.parent)
    column = draw.column(table, lambda c: not c.generated and not c.identity)
    name = quoted(column.name)
    how = draw.one((
        f"text USING upper({name}::text)",
        f"int USING length({name}::text)",
        f"{column.type} USING NULL",
        "text",
    ))  # fmt: skip
    first = f"ALTER COLUMN {name} DROP DEFAULT, " if column.has_default else ""
    return table, [f"ALTER TABLE {table.sql} {first}ALTER COLUMN {name} TYPE {how}"]


@statement("default", 2)
def change_default(draw: Draw) -> Made:
    """Set or drop the default of a column."""
    table = draw.table()
    column = draw.column(table, lambda c: not c.generated and not c.identity)
    how = draw.one((f"SET DEFAULT {value(draw.rng, column.type)}", "DROP DEFAULT"))
    return table, [f"ALTER TABLE {table.sql} ALTER COLUMN {quoted(column.name)} {how}"]


@statement("not null", 2)
def change_nullability(draw: Draw) -> Made:
    """Set or drop NOT NULL of a column."""
    table = draw.table(lambda t: not t.parent)
    column = draw.column(table)
    how = draw.one(("SET", "DROP"))
    return table, [f"ALTER TABLE {table.sql} ALTER COLUMN {quoted(column.name)} {how} NOT NULL"]


@statement("drop expression", 0.8)
def drop_expression(draw: Draw) -> Made:
    """Let a generated column be one like others, if need be one that is new."""
    table = draw.table(lambda t: not t.parent)
    generated = [c.name for c in table.columns if c.generated]
    name = quoted(draw.one(generated) if generated else draw.new("g"))
    made = [] if generated else [f"ALTER TABLE {table.sql} ADD COLUMN {name} int GENERATED ALWAYS AS (1) STORED"]
    return table, [*made, f"ALTER TABLE {table.sql} ALTER COLUMN {name} DROP EXPRESSION"]


@statement("storage", 0.7)
def change_storage(draw: Draw) -> Made:
    """Change how long values are stored, so that unchanged ones are not in the stream."""
    table = draw.table()
    column = draw.column(table, lambda c: c.type in ("text", "bytea", "jsonb"))
    how = draw.one(("EXTERNAL", "EXTENDED", "MAIN"))
    return table, [f"ALTER TABLE {table.sql} ALTER COLUMN {quoted(column.name)} SET STORAGE {how}"]


@statement("type", 1.2)
def change_type(draw: Draw) -> Made:
    """Change an enum, composite or domain, which columns may have."""
    if not draw.model.tables:
        raise ImpossibleError
    return None, [
        draw.one((
            f"ALTER TYPE {{s}}.mood ADD VALUE IF NOT EXISTS '{draw.new('mood')}'",
            f"ALTER TYPE {{s}}.mood RENAME TO {draw.new('mood')}",
            "ALTER TYPE {s}.mood RENAME VALUE 'good' TO 'better'",
            "ALTER TYPE {s}.mood SET SCHEMA b_{s}",
            "ALTER TYPE {s}.pair ADD ATTRIBUTE z int CASCADE",
            "ALTER TYPE {s}.pair RENAME ATTRIBUTE y TO z CASCADE",
            "ALTER TYPE {s}.pair DROP ATTRIBUTE y CASCADE",
            "ALTER DOMAIN {s}.positive SET DEFAULT 7",
            "ALTER DOMAIN {s}.positive DROP CONSTRAINT IF EXISTS positive_check",
        ))
    ]  # fmt: skip


@statement("drop type", 1)
def drop_type(draw: Draw) -> Made:
    """Drop a type with the columns that have it, if need be one that is new."""
    kinds = ("{s}.mood", "{s}.pair", "{s}.positive")
    table = draw.table(lambda t: not t.parent)
    there = [c.type for c in table.columns if c.type in kinds]
    kind = draw.one(there or kinds)
    made = [] if there else [f"ALTER TABLE {table.sql} ADD COLUMN {draw.new('d')} {kind}"]
    return table, [*made, f"DROP {'DOMAIN' if kind.endswith('positive') else 'TYPE'} {kind} CASCADE"]
