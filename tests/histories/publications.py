"""Statements on the publication that streams the tables, which the twin database has not."""

from __future__ import annotations

from tests.histories.draw import Draw, Made, statement
from tests.histories.history import PUBLICATION, quoted
from tests.histories.model import Table

KIND = "publication"


@statement(KIND, 3)
def change_publication(draw: Draw) -> Made:
    """Take a table out of the publication, and add it again at once, later, or with a part of its rows or columns.

    Two such parts may follow each other.
    """
    table = draw.table(lambda t: not t.is_partition)
    drop, add = (f"ALTER PUBLICATION {PUBLICATION} {what} TABLE ONLY {table.sql}" for what in ("DROP", "ADD"))
    if draw.model.major < 15:
        return table, draw.one(([drop], [add], [drop, add], [f"{drop}; {add}"]))
    parts = [f"WHERE ({_filter(draw, table)})", f"({', '.join(quoted(n) for n in _listed(draw, table))})", ""]
    first, then = (f"{drop}; {add} {draw.one(parts)}" for _ in range(2))
    return table, draw.one(([drop], [add], [drop, add], [f"{drop}; {add}"], [first], [first, then]))


def _listed(draw: Draw, table: Table) -> list[str]:
    """Return a list of columns, all of them or the key with some others."""
    plain = [c.name for c in table.columns if not c.generated]
    return plain if draw.odds(0.3) else [n for n in plain if n in table.key or draw.odds(0.5)] or plain


def _filter(draw: Draw, table: Table) -> str:
    """Return a row filter that hides no row, all rows, or those without a value."""
    name = quoted(draw.one([c for c in table.columns if not c.generated]).name)
    return draw.one(("true", "false", f"{name} IS NOT NULL"))
