"""The type of a column at the destination. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from levada.schema import Column, ColumnType, Kind
from levada.schema.masking import has_text_mask
from levada.schema.types import Notation

_BY_KIND: Final[Mapping[Kind, str]] = {
    Kind.BOOL: "boolean",
    Kind.INT2: "smallint",
    Kind.INT4: "integer",
    Kind.INT8: "bigint",
    Kind.OID: "oid",
    Kind.FLOAT4: "real",
    Kind.FLOAT8: "double precision",
    Kind.TEXT: "text",
    Kind.BYTEA: "bytea",
    Kind.DATE: "date",
    Kind.TIME: "time without time zone",
    Kind.TIMESTAMP: "timestamp without time zone",
    Kind.TIMESTAMPTZ: "timestamp with time zone",
    Kind.UUID: "uuid",
    Kind.JSON: "json",
    # As hstore writes it. The extension may be missing.
    Kind.MAP: "text",
}

_RANGES: Final[Mapping[Kind, str]] = {
    Kind.INT4: "int4range",
    Kind.INT8: "int8range",
    Kind.TEXT: "numrange",
    Kind.DATE: "daterange",
    Kind.TIMESTAMP: "tsrange",
    Kind.TIMESTAMPTZ: "tstzrange",
}
"""The range types by the kind of their bounds. Those of a numrange have any number of digits, as text. A multirange
has the name of its range type with ``multirange`` in place of ``range``.
"""

_SAME: Final = frozenset(
    {
        # bool, bytea, char, name, int8, int2, int4, text, oid, json, float4, float8, varchar, numeric, uuid, jsonb
        *(16, 17, 18, 19, 20, 21, 23, 25, 26, 114, 700, 701, 1042, 1043, 1700, 2950, 3802),
        # date, time, timestamp, timestamptz, interval, timetz
        *(1082, 1083, 1114, 1184, 1186, 1266),
        # point, lseg, path, box, polygon, line, circle, macaddr, inet, cidr, macaddr8, bit, varbit, pg_lsn
        *(600, 601, 602, 603, 604, 628, 718, 829, 869, 650, 774, 1560, 1562, 3220),
        # tsvector, tsquery, jsonpath, ranges, multiranges
        *(3614, 3615, 4072, 3904, 3906, 3908, 3910, 3912, 3926, 4451, 4532, 4533, 4534, 4535, 4536),
        # Arrays of these. An array of box has another delimiter, and is an array of text at the destination.
        *(199, 1000, 1001, 1002, 1003, 1005, 1007, 1009, 1014, 1015, 1016, 1017, 1018, 1019, 1021, 1022, 1027, 1028),
        *(629, 719, 1040, 1041, 651, 775, 1115, 1182, 1183, 1185, 1187, 1231, 1270, 1561, 1563, 2951, 3221, 3643, 3645),
        *(3807, 4073, 3905, 3907, 3909, 3911, 3913, 3927, 6150, 6151, 6152, 6153, 6155, 6157),
    }
)
"""The OIDs of types that have the same name and the same text format in every PostgreSQL.

A type whose text depends on the server is missing: regclass and its like on the catalog, money on the locale, xml on
how the server was built.
"""

_IDENTICAL: Final = frozenset(
    {
        *(
            "boolean",
            "smallint",
            "integer",
            "bigint",
            "oid",
            "text",
            "character varying",
            "character",
            "name",
            '"char"',
        ),
        *("bytea", "uuid", "date", "time", "timestamp", "timestamptz", "inet", "cidr", "macaddr", "macaddr8", "pg_lsn"),
        *("time without time zone", "timestamp without time zone", "timestamp with time zone", "bit", "bit varying"),
    }
)
"""The types, without modifiers, whose equal values always have the same text."""

_CHAR: Final = '"char"'
_NAME: Final = re.compile(r'[a-z0-9 _(),"\[\]-]+')


def column_type(column: Column) -> str:
    """Return the SQL type that holds every value of the column: the source's own, or else the nearest one."""
    if has_text_mask(column):
        return "text"
    if column.type_oid in _SAME and _NAME.fullmatch(column.type_name):
        return unquoted_type(column.type_name)
    return _by_kind(column.type)


def held_shape(shape: ColumnType) -> ColumnType:
    """Return the type as the destination writes its values: those of an extension have PostgreSQL's own notation."""
    return shape if shape.notation is Notation.MULTIRANGE else replace(shape, notation=Notation.PLAIN)


def unquoted_type(name: str) -> str:
    """Return the name of a built-in type as ``format_type`` writes it without the setting ``quote_all_identifiers``.

    The quotes of ``"char"`` belong to its name.
    """
    return name if name.startswith(_CHAR) else name.replace('"', "")


def equal_is_identical(name: str) -> bool:
    """Return True if values of the SQL type that are equal always have the same text.

    It is False for types such as numeric, in which 1.0 equals 1.00, and double precision, in which 0 equals -0.
    """
    return name.partition("(")[0] in _IDENTICAL or name.startswith("numeric(")


def _by_kind(shape: ColumnType) -> str:
    if shape.kind is Kind.DECIMAL:
        return f"numeric({shape.precision},{shape.scale})"
    if shape.kind is Kind.RANGE:
        assert shape.element is not None
        return _RANGES[shape.element.kind]
    if shape.kind is Kind.ARRAY:
        if shape.notation is Notation.MULTIRANGE:
            return _by_kind(shape.scalar).replace("range", "multirange")
        # PostgreSQL's type of an array says nothing about its dimensions.
        return f"{_by_kind(shape.scalar)}[]"
    return _BY_KIND[shape.kind]
