"""Selectors mean the tables that their globs mean, and no others."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.spec import Tables, selects
from levada.spec.source import TableSelector
from levada.values import QualifiedTable

NAMES = st.text(alphabet="ab*.?[]\\ ü\n", min_size=1, max_size=8)


Selectors = tuple[TableSelector, ...]


def tables(include: list[tuple[str, str]], exclude: list[tuple[str, str]]) -> tuple[Selectors, Selectors]:
    """Make selectors of pairs of schema and name."""
    given = {"include": include, "exclude": exclude}
    made = Tables.model_validate({k: [{"schema": s, "name": n} for s, n in pairs] for k, pairs in given.items()})
    return made.include, made.exclude


@pytest.mark.parametrize(
    ("include", "exclude", "table", "selected"),
    [
        ([("public", "*")], [], "public.orders", True),
        ([("public", "*")], [], "sales.orders", False),
        ([("public", "*")], [("public", "tmp_*")], "public.tmp_1", False),
        ([("public", "*")], [("*", "*_log")], "public.order_log", False),
        ([("*", "orders"), ("billing", "inv*ce_*")], [], "billing.invoice_lines", True),
        ([("*", "orders"), ("billing", "inv*ce_*")], [], "billing.invoices", False),
        ([("public", "orders")], [], "public.Orders", False),
        ([("public", "order?")], [], "public.orders", False),
        ([("public", "orders")], [("public", "orders")], "public.orders", False),
    ],
)
def test_selection(include: list[tuple[str, str]], exclude: list[tuple[str, str]], table: str, selected: bool) -> None:
    """A table is selected if an include matches it and no exclude does. Only * is special, and case matters."""
    assert selects(*tables(include, exclude), QualifiedTable.parse(table)) is selected


@given(pattern=NAMES, name=NAMES)
def test_only_the_star_is_special(pattern: str, name: str) -> None:
    """A glob does as the shell's, in which everything but * is quoted."""
    quoted = re.sub(r"[?\[]", r"[\g<0>]", pattern)
    assert selects(*tables([("s", pattern)], []), QualifiedTable("s", name)) is fnmatchcase(name, quoted)


@given(schema=NAMES, name=NAMES, include=st.lists(st.tuples(NAMES, NAMES), min_size=1), exclude=st.data())
def test_exclude_only_takes_away(
    schema: str, name: str, include: list[tuple[str, str]], exclude: st.DataObject
) -> None:
    """Excludes never add a table, and a table's own name as an exclude always takes it away."""
    table = QualifiedTable(schema, name)
    excluded = exclude.draw(st.lists(st.tuples(NAMES, NAMES)))
    if selects(*tables(include, excluded), table):
        assert selects(*tables(include, []), table)
    assert not selects(*tables([("*", "*")], [*excluded, (schema, name)]), table)


def test_many_stars_take_no_time() -> None:
    """A glob that is hard for a naive matcher is answered at once."""
    assert not selects(*tables([("*", "*a" * 31)], []), QualifiedTable("s", "a" * 30 + "b" * 33))
