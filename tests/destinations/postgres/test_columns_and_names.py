"""Schema changes, names of tables and columns, and values that PostgreSQL refuses."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from tests.destinations.ignored_columns import check_dropped_column
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.postgres.replica import ORDERS, Replica, apply, copy

from levada.destinations import OnSchemaChange
from levada.errors import NeedsOperator
from levada.schema import Column, ColumnType, Kind, TableTarget
from levada.testing import column, table
from levada.values import QualifiedTable


def test_columns_come_and_go(replica: Replica) -> None:
    """Added, renamed, dropped and widened columns keep the values of existing rows."""
    v0 = table(column(1, "id", Kind.INT4), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))
    destination = replica.destination()
    stream = copy(replica, destination, v0)
    v1 = replace(
        v0,
        columns=(
            column(1, "id", Kind.INT8),
            # The names of two columns change places.
            column(2, "note", Kind.TEXT),
            column(4, "price", Kind.DECIMAL, precision=10, scale=2),
            column(5, "item", Kind.TEXT, missing_value="it's\\ \t"),
            column(6, "n", Kind.INT4, missing_value="7"),
        ),
    )
    stream.alter(v1)
    stream.insert(id=1 << 40, note="new", price=Decimal("1.50"), item="fresh", n=None)
    apply(replica, destination, stream)
    assert [tuple(r[c] for c in ("id", "note", "price", "item", "n")) for r in replica.rows()] == [
        (1, "item 1", None, "it's\\ \t", 7),
        (2, "item 2", None, "it's\\ \t", 7),
        (3, "item 3", None, "it's\\ \t", 7),
        (1 << 40, "new", Decimal("1.50"), "fresh", None),
    ]
    v2 = replace(v1, columns=(*v1.columns[:2], column(4, "price", Kind.DECIMAL, precision=14, scale=2)))
    stream.alter(v2)
    stream.update(id=2, note=None, price=Decimal("123456789012.00"), unchanged=[2])
    apply(replica, replica.destination(), stream)
    assert (replica.rows()[1]["note"], replica.rows()[1]["price"]) == ("item 2", Decimal("123456789012.00"))
    assert replica.columns() == [("id", "bigint"), ("note", "text"), ("price", "numeric(14,2)")]


@pytest.mark.parametrize(
    "columns",
    [
        (column(1, "id", Kind.INT8), column(2, "item", Kind.INT4), column(3, "note", Kind.TEXT)),
        (*ORDERS.columns, column(4, "made", Kind.TEXT, rewritten=True)),
    ],
    ids=["type", "computed default"],
)
def test_a_change_that_cannot_be_followed_parks_the_table(replica: Replica, columns: Any) -> None:
    """Nothing is written, the error says how to go on, and the table stays as it was."""
    destination = replica.destination()
    stream = copy(replica, destination)
    before = replica.rows()
    stream.alter(replace(ORDERS, columns=columns))
    with pytest.raises(NeedsOperator) as caught:
        apply(replica, destination, stream)
    assert caught.value.code == "schema_change_unsupported"
    assert caught.value.hint
    assert replica.rows() == before
    assert destination.applied(ORDERS.id) == replica.mark(1000)


def test_policies_of_schema_changes(replica: Replica) -> None:
    """Fail names the change and parks. Ignore leaves new columns out, and dropped ones become NULL."""
    stream = copy(replica, replica.destination())
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns[:2], column(4, "note", Kind.INT4, missing_value="1"))))
    stream.insert(id=4, item="d", note=5)
    batch = stream.batch()
    with pytest.raises(NeedsOperator) as caught:
        replica.destination(on_schema_change=OnSchemaChange.FAIL).write_events(batch, replica.mark(batch.until))
    assert caught.value.code == "schema_change_refused"
    replica.destination(on_schema_change=OnSchemaChange.IGNORE).write_events(batch, replica.mark(batch.until))
    assert replica.rows()[3]["note"] is None
    assert [n for n, _ in replica.columns()] == ["id", "item", "note"]


def test_a_dropped_column_that_a_view_needs_parks_the_table(replica: Replica) -> None:
    """A view is never dropped. The error names the object, and a retry after the view's end goes on."""
    destination = replica.destination()
    stream = copy(replica, destination)
    replica.db.execute("CREATE VIEW notes AS SELECT note FROM shop_public.orders")
    stream.alter(replace(ORDERS, columns=ORDERS.columns[:2]))
    stream.insert(id=4, item="d")
    batch = stream.batch()
    with pytest.raises(NeedsOperator) as caught:
        destination.write_events(batch, replica.mark(batch.until))
    assert caught.value.code == "destination_dependents"
    replica.db.execute("DROP VIEW notes")
    destination.write_events(batch, replica.mark(batch.until))
    assert replica.columns() == [("id", "bigint"), ("item", "text")]


def test_a_key_that_does_not_fit_needs_a_new_copy(replica: Replica) -> None:
    """A key that two rows share parks the table, and a copy then replaces the table."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.insert(id=4, item="item 3", note="n")
    apply(replica, destination, stream)
    stream.alter(replace(ORDERS, key=(2,), identity_attnums=(2,)))
    with pytest.raises(NeedsOperator) as caught:
        apply(replica, destination, stream)
    assert caught.value.code == "key_changed"
    destination.drop_table_for_copy(TableTarget.of(stream.schema), 1)
    stream = copy(replica, destination, stream.schema)
    stream.update(id=30, item="item 3", note="n")
    apply(replica, destination, stream)
    assert replica.items() == {1: "item 1", 2: "item 2", 30: "item 3"}


def test_a_table_that_gets_another_name_moves(replica: Replica) -> None:
    """A copy to another name serves under that name, and the table of the old name is gone."""
    destination = replica.destination()
    copy(replica, destination)
    destination.drop_table_for_copy(TableTarget.of(ORDERS), 1)
    target = QualifiedTable("public", "bills")
    destination.drop_table_for_copy(TableTarget.of(ORDERS, name=target), 1)
    stream = copy(replica, destination, name=target)
    assert len(replica.rows("bills")) == 3
    assert replica.db.query("SELECT to_regclass('shop_public.orders')") == [(None,)]
    destination.drop_table_for_copy(TableTarget.of(ORDERS, name=target))
    assert replica.db.query("SELECT to_regclass('shop_public.bills')") == [(None,)]
    assert stream is not None


@pytest.mark.parametrize("name", ["a" * 64, "é" * 32, "_levada_x"])
def test_names_that_the_server_would_cut_are_refused(replica: Replica, name: str) -> None:
    """A name of more than 63 bytes, or one of Levada's own, is refused before anything is written."""
    with pytest.raises(NeedsOperator) as caught:
        replica.destination().target_name(ORDERS.name, QualifiedTable("public", name))
    assert caught.value.code == "destination_name_unusable"


def test_odd_names(replica: Replica) -> None:
    """Quotes, dots, spaces, percent signs and upper case in names of schemas, tables and columns are kept."""
    odd = 'We"ird. %s {x} \\ Täble'
    schema = table(column(1, 'I"d %s', Kind.INT8), column(2, "%(a)s {}", Kind.TEXT), name="public.x")
    destination = replica.destination({"schema": 'S"c %s{schema}'})
    target = TableTarget.of(schema, name=QualifiedTable("A b", odd))
    destination.write_table_rows(target, MemoryRows(schema, [{'I"d %s': 1, "%(a)s {}": "v"}]), replica.mark(1000))
    place = replica.db.query("SELECT schema_name, table_name FROM levada.destination_tables")
    assert place == [('S"c %sA b', odd)]
    stream = Stream(schema)
    stream.update(**{'I"d %s': 1, "%(a)s {}": None}, unchanged=[2])
    stream.insert(**{'I"d %s': 2, "%(a)s {}": "w"})
    batch = stream.batch()
    batch.changes(schema.id).target = target
    destination.write_events(batch, replica.mark(batch.until))
    with replica.db.connect() as connection:
        query = psycopg.sql.SQL("SELECT * FROM {} ORDER BY 1").format(psycopg.sql.Identifier('S"c %sA b', odd))
        assert connection.execute(query).fetchall() == [(1, "v"), (2, "w")]


def test_nothing_of_a_value_is_in_an_error(replica: Replica) -> None:
    """A value that the server refuses parks the table, and its text is in neither the message nor the cause."""
    destination = replica.destination()
    stream = copy(replica, destination)
    replica.db.execute("ALTER TABLE shop_public.orders ADD CHECK (item <> 'secret')")
    stream.insert(id=4, item="secret", note=None)
    with pytest.raises(NeedsOperator) as caught:
        apply(replica, destination, stream)
    assert caught.value.code == "destination_constraint"
    assert "secret" not in str(caught.value)
    odd = table(
        column(1, "id", Kind.INT8),
        Column(2, "span", ColumnType(Kind.TEXT), type_name="int4range", type_oid=3904),
        id=5,
        name="public.odd",
    )
    with pytest.raises(NeedsOperator) as caught:
        destination.write_table_rows(
            TableTarget.of(odd), MemoryRows(odd, [{"id": 1, "span": "top secret"}]), replica.mark(1000)
        )
    assert caught.value.code == "destination_value_refused"
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_dropped_column_that_is_ignored(replica: Replica) -> None:
    """Its values stay until their row is written again, as at each destination."""
    check_dropped_column(replica.destination(on_schema_change=OnSchemaChange.IGNORE), lambda target: replica.rows())
