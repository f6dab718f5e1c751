"""CONTRIBUTING's recipe for a PostgreSQL type names each place that a new type needs."""

from __future__ import annotations

import ast

import pytest
from tests.architecture.type_recipe import decides_by_arrow_type, decides_by_kind, findings

IMPORT = "from levada.schema import Kind\n"


def test_the_recipe_is_complete() -> None:
    """The recipe names exactly the engine's modules that distinguish kinds or types of Arrow, and existing paths."""
    assert not list(findings())


@pytest.mark.parametrize(
    "code",
    [
        "NAMES = {Kind.BOOL: 'boolean'}",
        "INTEGERS = frozenset({Kind.INT2})",
        "INTEGERS = (Kind.INT2, Kind.INT4)",
        "def f(kind): return kind is Kind.DATE",
        "def f(kind): return kind in (Kind.DATE,)",
        "match 1:\n    case Kind.DATE | Kind.TIME: pass",
    ],
)
def test_a_decision_by_kind_is_found(code: str) -> None:
    """A table, a set, a comparison and a pattern distinguish kinds, and only if the name is that of the schema's."""
    assert decides_by_kind(ast.parse(IMPORT + code))
    assert not decides_by_kind(ast.parse("from levada.verify.differences import Kind\n" + code))


@pytest.mark.parametrize("code", ["x = ColumnType(Kind.INT8)", "COLUMNS = {'at': ColumnType(Kind.DATE)}", "x: Kind"])
def test_a_use_of_a_kind_is_no_decision(code: str) -> None:
    """An argument and an annotation need nothing for a new kind."""
    assert not decides_by_kind(ast.parse(IMPORT + code))


def test_a_decision_by_arrow_type_is_found() -> None:
    """A question for the type of values counts, and one for how they are kept does not."""
    assert decides_by_arrow_type(ast.parse("x = pa.types.is_date32(kind)"))
    assert not decides_by_arrow_type(ast.parse("x = pa.types.is_list(kind)"))
