"""Statements on the publication that streams the tables, which the twin database has not."""

from __future__ import annotations

from tests.histories.draw import Draw, Made, statement
from tests.histories.history import PUBLICATION, quoted
from tests.histories.model import Table

KIND = "publication"


@statement(KIND, 1.5)
def change_publication(draw: Draw) -> Made:
    """Take a table out of the publication, and add it again at once, later or with a row filter."""
    table = draw.table(lambda t: not t.is_partition)
    drop, add = (f"ALTER PUBLICATION {PUBLICATION} {what} TABLE ONLY {table.sql}" for what in ("DROP", "ADD"))
    filtered = f"{add} WHERE ({_filter(draw, table)})" if draw.model.major >= 15 else add
    return table, draw.one(([drop], [add], [drop, add], [f"{drop}; {add}"], [f"{drop}; {filtered}"]))


def _filter(draw: Draw, table: Table) -> str:
    """Return a row filter that hides no row, all rows, or those without a value."""
    name = quoted(draw.one([c for c in table.columns if not c.generated]).name)
    return draw.one(("true", "false", f"{name} IS NOT NULL"))
