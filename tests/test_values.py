"""Tables as arguments of the command line."""

from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from levada.values import QualifiedTable, resync_command

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(NAMES, NAMES)
def test_an_argument_is_read_back(schema: str, name: str) -> None:
    """Whatever a table is called, the argument that a hint prints names that table and no other."""
    table = QualifiedTable(schema, name)
    command = shlex.split(resync_command(table))
    assert command[:3] == ["levada", "resync", "MANIFEST"]
    assert [QualifiedTable.parse(a) for a in command[3:]] == [table]
    assert QualifiedTable.parse(table.quoted) == table


def test_plain_names_stay_plain() -> None:
    """An ordinary table is named as in SQL, without quotes."""
    assert QualifiedTable("public", "orders").argument == "public.orders"
    assert QualifiedTable.parse("orders") == QualifiedTable("public", "orders")
    assert QualifiedTable.parse("s.a.b") == QualifiedTable("s", "a.b")
    assert QualifiedTable.parse('"my.schema".t') == QualifiedTable("my.schema", "t")
