"""PostgreSQL's types, and the Arrow types that hold their values exactly.

The OIDs are those of PostgreSQL's ``pg_type.dat``. Values of a type without an entry are carried as PostgreSQL's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from levada.values import OnUnrepresentable

MAX_DECIMAL_PRECISION: Final = 38


class Kind(StrEnum):
    """The decoding and the Arrow type of a value. Each kind has one Arrow type."""

    BOOL = "bool"
    INT2 = "int2"
    INT4 = "int4"
    INT8 = "int8"
    OID = "oid"
    FLOAT4 = "float4"
    FLOAT8 = "float8"
    DECIMAL = "decimal"
    """numeric with a precision of at most 38 digits. Any other numeric is TEXT."""
    TEXT = "text"
    BYTEA = "bytea"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    UUID = "uuid"
    """In Iceberg canonical text by default, because some engines that read it have no uuid type."""
    JSON = "json"
    """json and jsonb, stored as PostgreSQL's text."""
    ARRAY = "array"
    RANGE = "range"
    """A built-in range type, for columns that ask for it. Its bounds have a type of their own."""
    MAP = "map"
    """hstore, for columns that ask for it: texts by text. A value may be NULL."""


class Notation(StrEnum):
    """The text in which PostgreSQL writes values, where several of its types have one `Kind`."""

    PLAIN = "plain"
    """That of PostgreSQL's own type. A list is an array."""
    VECTOR = "vector"
    """``[1,2.5]``, the type vector of the extension pgvector, with 32-bit floats."""
    HALFVEC = "halfvec"
    """The same text. The binary format has 16-bit floats."""
    MULTIRANGE = "multirange"
    """``{[1,3),[5,)}``, a list of ranges in order, none of which is empty."""
    EWKB = "ewkb"
    """The hexadecimal digits of bytes, as PostGIS writes its types geometry and geography."""


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A row of ``pg_type`` for a type that is not built in."""

    oid: int
    name: str
    typtype: str
    """``typtype``: b base, c composite, d domain, e enum, m multirange, p pseudo, r range."""
    base_oid: int = 0
    """The base type of a domain."""
    base_typmod: int = -1
    element_oid: int = 0
    """The element type of a true array type, and otherwise 0."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column's values.

    ``precision`` and ``scale`` are set only for DECIMAL, and ``notation`` only for ARRAY and BYTEA. ``element`` is the
    type of an ARRAY's elements, or of a RANGE's bounds. The element of an ARRAY may be one too: an array with two
    dimensions is a list of lists. ``native`` is True for a UUID that Iceberg stores in its own type, and not as text.
    """

    kind: Kind
    precision: int = 0
    scale: int = 0
    element: ColumnType | None = None
    notation: Notation = Notation.PLAIN
    native: bool = False

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of the values, the same in copy, stream, segments and destination."""
        if self.kind is Kind.DECIMAL:
            return pa.decimal128(self.precision, self.scale)
        if self.kind is Kind.ARRAY:
            assert self.element is not None
            return pa.list_(pa.field("element", self.element.arrow))
        if self.kind is Kind.RANGE:
            return pa.struct([pa.field(name, part.arrow) for name, part in self.parts])
        return _ARROW[self.kind]

    @property
    def depth(self) -> int:
        """The number of lists that are in each other, 0 for a type that is no ARRAY."""
        return 1 + self.element.depth if self.kind is Kind.ARRAY and self.element is not None else 0

    @property
    def scalar(self) -> ColumnType:
        """The type of the innermost elements of an ARRAY, and any other type itself."""
        return self.element.scalar if self.kind is Kind.ARRAY and self.element is not None else self

    @property
    def parts(self) -> tuple[tuple[str, ColumnType], ...]:
        """The fields of a RANGE, which have the names of PostgreSQL's functions. Any other type has none.

        An infinite bound is NULL and not inclusive, and so are both bounds of the empty range.
        """
        if self.kind is not Kind.RANGE or self.element is None:
            return ()
        flag = ColumnType(Kind.BOOL)
        return (
            ("lower", self.element),
            ("upper", self.element),
            ("lower_inc", flag),
            ("upper_inc", flag),
            ("isempty", flag),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the type as plain values for JSON."""
        out: dict[str, Any] = {"kind": self.kind.value}
        if self.kind is Kind.DECIMAL:
            out |= {"precision": self.precision, "scale": self.scale}
        if self.element is not None:
            out["element"] = self.element.to_json()
        if self.notation is not Notation.PLAIN:
            out["notation"] = self.notation.value
        if self.native:
            out["native"] = True
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ColumnType:
        """Parse the result of `to_json`."""
        element = data.get("element")
        return cls(
            Kind(data["kind"]),
            data.get("precision", 0),
            data.get("scale", 0),
            None if element is None else cls.from_json(element),
            Notation(data.get("notation", Notation.PLAIN)),
            data.get("native", False),
        )


_ARROW: Final[Mapping[Kind, pa.DataType]] = {
    Kind.BOOL: pa.bool_(),
    # Iceberg and Delta have no 16-bit integer. So widening int2 to int4 changes nothing there.
    Kind.INT2: pa.int32(),
    Kind.INT4: pa.int32(),
    Kind.INT8: pa.int64(),
    Kind.OID: pa.int64(),
    Kind.FLOAT4: pa.float32(),
    Kind.FLOAT8: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.BYTEA: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("us"),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    Kind.UUID: pa.string(),
    Kind.JSON: pa.string(),
    Kind.MAP: pa.map_(pa.string(), pa.string()),
}

NUMERIC_OID: Final = 1700

_SCALARS: Final[Mapping[int, Kind]] = {
    16: Kind.BOOL,
    17: Kind.BYTEA,
    18: Kind.TEXT,  # "char"
    19: Kind.TEXT,  # name
    20: Kind.INT8,
    21: Kind.INT2,
    23: Kind.INT4,
    25: Kind.TEXT,
    26: Kind.OID,
    114: Kind.JSON,
    700: Kind.FLOAT4,
    701: Kind.FLOAT8,
    1042: Kind.TEXT,  # bpchar, padding kept
    1043: Kind.TEXT,  # varchar
    1082: Kind.DATE,
    1083: Kind.TIME,
    1114: Kind.TIMESTAMP,
    1184: Kind.TIMESTAMPTZ,
    2950: Kind.UUID,
    3802: Kind.JSON,
}

_ARRAYS: Final[Mapping[int, int]] = {
    199: 114,
    1000: 16,
    1001: 17,
    1002: 18,
    1003: 19,
    1005: 21,
    1007: 23,
    1009: 25,
    1014: 1042,
    1015: 1043,
    1016: 20,
    1021: 700,
    1022: 701,
    1028: 26,
    1115: 1114,
    1182: 1082,
    1183: 1083,
    1185: 1184,
    1231: 1700,
    2951: 2950,
    3807: 3802,
}

RANGES: Final[Mapping[int, int]] = {3904: 23, 3906: NUMERIC_OID, 3908: 1114, 3910: 1184, 3912: 1082, 3926: 20}
"""The OIDs of int4range, numrange, tsrange, tstzrange, daterange and int8range, and those of their bounds."""

MULTIRANGES: Final[Mapping[int, int]] = {4451: 3904, 4532: 3906, 4533: 3908, 4534: 3910, 4535: 3912, 4536: 3926}
"""The OIDs of the multiranges of `RANGES`, and those of their ranges."""

INTEGERS: Final = frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.OID})
"""Kinds whose values fit into a signed integer of 64 bits."""

MOMENTS: Final = frozenset({Kind.TIMESTAMP, Kind.TIMESTAMPTZ})
"""Times without and with a time zone. In UTC both have the same number of microseconds."""

DATES: Final = MOMENTS | {Kind.DATE}
"""Kinds with infinity, which is beyond all other values. A destination may have it as NULL."""

PLAIN: Final = INTEGERS | {Kind.BOOL, Kind.UUID}
"""Kinds that Arrow and PostgreSQL order alike, and whose text has only letters, digits and hyphens."""

NESTED: Final = frozenset({Kind.ARRAY, Kind.RANGE, Kind.MAP})
"""Kinds whose values have several values in them."""

FREE_TEXTS: Final = frozenset({Kind.TEXT, Kind.JSON, Kind.MAP})
"""Kinds whose values may have any character."""

KEY_TEXTS: Final = PLAIN | DATES | {Kind.BYTEA, Kind.TEXT, Kind.TIME}
"""Kinds whose equal values have one text, so that a text identifies a row as the value does."""

STORED_TEXTS: Final = frozenset({Kind.TEXT, Kind.JSON, Kind.ARRAY})
"""Kinds of which a file has the text of a value, while equal values of a PostgreSQL type may have several."""

BUILT_IN: Final = frozenset({*_SCALARS, *_ARRAYS, NUMERIC_OID})
"""The OIDs that `resolve_type` knows without the catalog. They are base types and arrays of base types."""

_HAS_UNREPRESENTABLE: Final = {Kind.DECIMAL, Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.ARRAY}


def repeated(value: pa.Array, count: int) -> pa.Array:
    """Return an array of one value ``count`` times. ``pa.repeat`` raises ArrowInvalid for a list and a count of 0."""
    return pa.repeat(value[0], count) if count else value.slice(0, 0)


def is_builtin(oid: int) -> bool:
    """Return True if `resolve_type` knows the OID without the catalog."""
    return oid in BUILT_IN


def resolve_type(
    oid: int,
    typmod: int,
    catalog: Mapping[int, TypeInfo] | None = None,
    policy: OnUnrepresentable = OnUnrepresentable.ERROR,
) -> ColumnType:
    """Map a type's OID and modifier to a column type.

    ``catalog`` describes the types that are not built in. A domain has its base type, an array of such types is a list,
    and everything else is text. Under ``OnUnrepresentable.TEXT``, a type with values that Arrow's type cannot hold is
    text as well.
    """
    shape = _resolve(oid, typmod, catalog or {})
    if policy is OnUnrepresentable.TEXT and shape.kind in _HAS_UNREPRESENTABLE:
        return ColumnType(Kind.TEXT)
    return shape


def base_type(oid: int, typmod: int, catalog: Mapping[int, TypeInfo]) -> tuple[int, int]:
    """Return the OID and modifier of the type below all domains, which may be the type itself."""
    while (info := catalog.get(oid)) is not None and info.typtype == "d":
        oid, typmod = info.base_oid, info.base_typmod
    return oid, typmod


def _resolve(oid: int, typmod: int, catalog: Mapping[int, TypeInfo]) -> ColumnType:
    if (kind := _SCALARS.get(oid)) is not None:
        return ColumnType(kind)
    if oid == NUMERIC_OID:
        return _numeric(typmod)
    if (element := _ARRAYS.get(oid)) is not None:
        return ColumnType(Kind.ARRAY, element=_resolve(element, typmod, catalog))
    info = catalog.get(oid)
    if info is None:
        return ColumnType(Kind.TEXT)
    if info.typtype == "d":
        return _resolve(info.base_oid, info.base_typmod, catalog)
    if info.element_oid:
        element_type = _resolve(info.element_oid, typmod, catalog)
        # No one-dimensional list can hold an array of a domain over arrays.
        nested = element_type.kind is Kind.ARRAY
        return ColumnType(Kind.TEXT) if nested else ColumnType(Kind.ARRAY, element=element_type)
    return ColumnType(Kind.TEXT)


def _numeric(typmod: int) -> ColumnType:
    """Return the type of a numeric with this modifier.

    The scale may be negative or larger than the precision since PostgreSQL 15 (manual, "Numeric Types").
    """
    if typmod < 4:
        return ColumnType(Kind.TEXT)
    precision = ((typmod - 4) >> 16) & 0xFFFF
    scale = (((typmod - 4) & 0x7FF) ^ 1024) - 1024
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    if precision > MAX_DECIMAL_PRECISION:
        return ColumnType(Kind.TEXT)
    return ColumnType(Kind.DECIMAL, precision, scale)
