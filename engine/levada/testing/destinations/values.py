"""Values of every type, and odd names and keys."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from levada.errors import NeedsOperator
from levada.schema import Column, ColumnType, IdentityKind, Kind
from levada.schema.types import Notation
from levada.testing.destinations.steps import (
    ORDERS,
    OpenDestination,
    apply,
    check,
    check_error,
    copy,
    order_rows,
)
from levada.testing.place import DestinationPlace, Row
from levada.testing.rows import ArrowRows
from levada.testing.source import Source, column, table
from levada.values import QualifiedTable, TableMode

_ELEMENTS = (Kind.INT4, Kind.TEXT, Kind.BOOL, Kind.TIMESTAMPTZ)
_NESTED = (Kind.TEXT, Kind.FLOAT8, Kind.INT8, Kind.TIMESTAMPTZ)
"""Elements of arrays with two dimensions."""
_BOUNDS = (Kind.INT4, Kind.TEXT, Kind.DATE)
"""Bounds of ranges."""
_MULTIRANGES = (Kind.INT8, Kind.TIMESTAMPTZ)
"""Bounds of multiranges."""

KINDS: tuple[Column, ...] = (
    column(1, "id", Kind.INT8),
    *(
        column(n, kind.value, kind)
        for n, kind in enumerate((k for k in Kind if k not in (Kind.INT8, Kind.DECIMAL, Kind.ARRAY, Kind.RANGE)), 2)
    ),
    column(40, "int8", Kind.INT8),
    column(41, "decimal", Kind.DECIMAL, precision=38, scale=9),
    *(column(n, f"{e.value}s", Kind.ARRAY, element=ColumnType(e)) for n, e in enumerate(_ELEMENTS, 50)),
    column(60, "vector", Kind.ARRAY, element=ColumnType(Kind.FLOAT4), notation=Notation.VECTOR),
    column(61, "native", Kind.UUID, native=True),
    *(column(n, f"{e.value}_range", Kind.RANGE, element=ColumnType(e)) for n, e in enumerate(_BOUNDS, 70)),
    *(
        column(
            n,
            f"{e.value}_multirange",
            Kind.ARRAY,
            element=ColumnType(Kind.RANGE, element=ColumnType(e)),
            notation=Notation.MULTIRANGE,
        )
        for n, e in enumerate(_MULTIRANGES, 80)
    ),
    column(90, "wkb", Kind.BYTEA, notation=Notation.EWKB),
    *(
        column(n, f"{e.value}_grid", Kind.ARRAY, element=ColumnType(Kind.ARRAY, element=ColumnType(e)))
        for n, e in enumerate(_NESTED, 62)
    ),
)
"""A column of each kind, arrays, and the types that a manifest chooses."""


def _attnum(name: str) -> int:
    return next(c.attnum for c in KINDS if c.name == name)


def _range(lower: Any, upper: Any, *, lower_inc: bool = False, upper_inc: bool = False, isempty: bool = False) -> Any:
    flags = {"lower_inc": lower_inc, "upper_inc": upper_inc, "isempty": isempty}
    return {"lower": lower, "upper": upper, **flags}


def kind_rows() -> list[dict[str, Any]]:
    """Return rows with ordinary values, the largest, the smallest, and NULL in every column but the key."""
    utc = dt.UTC
    ordinary: dict[str, Any] = {
        "id": 1,
        "bool": True,
        "int2": -7,
        "int4": 70_000,
        "int8": 1 << 40,
        "oid": 4_000_000_000,
        "float4": 1.5,
        "float8": -0.1,
        "decimal": Decimal("12345678901234567890123456789.012345678"),
        "text": "plain, 'quoted', \"double\", back\\slash, new\nline, tab\t, ünï, \U0001f600",
        "bytea": b"\x00\xff\n",
        "date": dt.date(2026, 2, 3),
        "time": dt.time(23, 59, 59, 999999),
        "timestamp": dt.datetime(2026, 2, 3, 4, 5, 6, 7),
        "timestamptz": dt.datetime(2026, 2, 3, 4, 5, 6, 7, utc),
        "uuid": "0f1e2d3c-0000-0000-0000-000000000001",
        "json": '{"a": [1, null, "b"]}',
        "int4s": [1, None, -3],
        "texts": ["", "a,b", None],
        "bools": [True, False],
        "timestamptzs": [dt.datetime(2026, 1, 1, tzinfo=utc)],
        "vector": [1.5, -2.0, 0.25],
        "native": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "int4_range": _range(-5, 7, lower_inc=True),
        "text_range": _range("-0.10", "1000", lower_inc=True, upper_inc=True),
        "date_range": _range(dt.date(2026, 2, 3), None, lower_inc=True),
        "map": [("a", "1"), ('quote"d', None), ("b\\ => ", ""), ("", 'ünï, "x"=>NULL')],
        "int8_multirange": [_range(None, -5), _range(7, 1 << 40, lower_inc=True)],
        "timestamptz_multirange": [_range(dt.datetime(2026, 2, 3, 4, 5, 6, 7, utc), None, lower_inc=True)],
        "wkb": bytes.fromhex("0101000020E6100000000000000000F03F0000000000000040"),
        "text_grid": [["", None], ['a,"b{', "}\\"]],
        "float8_grid": [[0.1, None, -0.5]],
        "int8_grid": [[1], [None], [-(1 << 63)]],
        "timestamptz_grid": [[dt.datetime(2026, 2, 3, tzinfo=utc)], [dt.datetime(1900, 1, 1, tzinfo=utc)]],
    }
    extreme: dict[str, Any] = ordinary | {
        "id": 2,
        "bool": False,
        "int2": -(1 << 15),
        "int4": (1 << 31) - 1,
        "int8": -(1 << 63),
        "oid": 0,
        "float4": float("nan"),
        "float8": 1e308,
        "decimal": Decimal("-99999999999999999999999999999.999999999"),
        "text": "",
        "bytea": b"",
        "date": dt.date(1900, 1, 1),
        "time": dt.time(0),
        "timestamp": dt.datetime(1970, 1, 1),
        "timestamptz": dt.datetime(2999, 12, 31, 23, 59, 59, 999999, utc),
        "uuid": "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "json": "null",
        "int4s": [],
        "texts": ["x" * 10_000],
        "bools": [None],
        "timestamptzs": [None],
        "vector": [2.0**20] * 10_000,
        "native": "00000000-0000-0000-0000-000000000000",
        "map": [],
        "int8_multirange": [],
        "timestamptz_multirange": [_range(None, None)],
        "wkb": b"",
        "text_grid": [],
        "int4_range": _range(None, None, isempty=True),
        "text_range": _range(None, None),
        "date_range": _range(dt.date(1900, 1, 1), dt.date(2999, 12, 31), lower_inc=True),
        "float8_grid": [[-0.0], [1e308]],
        "int8_grid": [[None] * 50] * 50,
        "timestamptz_grid": [[None]],
    }
    infinite = ordinary | {"id": 3, "float4": float("inf"), "float8": float("-inf"), "decimal": Decimal(0)}
    return [ordinary, extreme, infinite, dict.fromkeys(ordinary) | {"id": 4}]


class Values:
    """Values, names of tables and columns, keys and tables without one."""

    def test_every_kind_of_value(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Each kind of column has the same values from a copy and from the stream, and NULL in every column."""
        schema = table(*KINDS, name="public.kinds")
        part = source.add(schema)
        destination = start()
        rows = kind_rows()
        copy(destination, source, part, ArrowRows.of(schema, rows))
        streamed = [{**row, "id": 100 + int(row["id"])} for row in rows]
        for row in streamed:
            part.insert(**row)
        apply(destination, source, part)
        check(place, part, [*rows, *streamed])
        part.update(**{**rows[0], "text": "short", "bytea": None}, unchanged=[_attnum("bytea")])
        apply(start(), source, part)
        check(place, part, [{**rows[0], "text": "short"}, *rows[1:], *streamed])

    def test_odd_names(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Quotes, spaces, dots, reserved words and other scripts in names of tables and columns stay apart."""
        columns = ("id", "select", 'qu"ote', "sp ace", "ünï", "dot.ted", "per%cent", "$dollar", "a" * 60)
        for number, name in enumerate(['odd "name"', "Case", "select", "ünïcode", "dot.dot", "q'uote", "t" * 60]):
            schema = replace(
                table(*(column(i, c, Kind.INT8) for i, c in enumerate(columns, 1)), id=17100 + number),
                name=QualifiedTable("public", name),
            )
            part, destination = source.add(schema), start()
            row: dict[str, Any] = {c: i for i, c in enumerate(columns)}
            try:
                destination.target_name(schema.name, schema.name)
                copy(destination, source, part, ArrowRows.of(schema, [row]))
            except NeedsOperator as error:
                check_error(error)
                continue
            part.insert(**{**row, "id": 7, "select": None})
            part.update(**{**row, "ünï": 99})
            apply(destination, source, part)
            check(place, part, [{**row, "ünï": 99}, {**row, "id": 7, "select": None}])

    def test_a_composite_key(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """Rows whose keys have the same text when it is joined are different rows."""
        schema = table(
            column(1, "a", Kind.TEXT),
            column(2, "b", Kind.TEXT),
            column(3, "n", Kind.INT8),
            key=(1, 2),
            name="public.pairs",
        )
        part, destination = source.add(schema), start()
        keys = [("a", "b,c"), ("a,b", "c"), ("", "abc"), ("abc", ""), ("a|b", "c"), ("a", "b|c"), ("a\x1f", "b")]
        rows: list[Row] = [{"a": a, "b": b, "n": n} for n, (a, b) in enumerate(keys)]
        copy(destination, source, part, ArrowRows.of(schema, rows[:3]))
        for row in rows[3:]:
            part.insert(**row)
        part.update(**{**rows[0], "n": 100})
        part.delete(a="a,b", b="c")
        apply(destination, source, part)
        check(place, part, [{**rows[0], "n": 100}, *rows[2:]])

    def test_a_table_without_a_key(self, place: DestinationPlace, start: OpenDestination, source: Source) -> None:
        """A table without a key is a changelog, and equal rows stay apart."""
        schema = replace(ORDERS, key=(), identity_attnums=(), identity=IdentityKind.MISSING)
        destination, part = start(), source.add(schema)
        assert destination.effective_mode(part.target) is TableMode.CHANGELOG
        try:
            copy(destination, source, part, ArrowRows.of(schema, order_rows(1)))
        except NeedsOperator as error:
            check_error(error)
            pytest.skip(f"the destination needs a key: {error.message}")
        part.insert(id=2, item="two", note=None)
        apply(destination, source, part)
        check(place, part, [order_rows(1)[0], {"id": 2, "item": "two"}])

    def test_the_mode_of_a_table(self, start: OpenDestination, source: Source) -> None:
        """UPSERT is the mode of a table with a key only if the destination has that capability."""
        destination = start()
        mode = destination.effective_mode(source.add(ORDERS, TableMode.UPSERT).target)
        assert mode is (TableMode.UPSERT if destination.capabilities.upsert else TableMode.CHANGELOG)
