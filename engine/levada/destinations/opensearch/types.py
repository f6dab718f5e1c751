"""The field of each column: its mapping in the index, and its form in the JSON of a document. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations import json_text
from levada.destinations.arrow_text import decimal_text
from levada.schema import Column, ColumnType, Kind
from levada.schema.types import DATES, INTEGERS

_JSONB_OIDS: Final = frozenset({3802, 3807})
_FULL_TEXT: Final = frozenset({18, 19, 25, 1002, 1003, 1009, 1014, 1015, 1042, 1043})
"""text, varchar, char, name, and their arrays. Texts of other types, such as enums and inet, are keywords."""
_MAX_TERM: Final = 8191
"""The longest indexed term in characters. Lucene's limit is 32766 bytes, and a character has up to four."""

_FLOATS: Final = frozenset({Kind.FLOAT4, Kind.FLOAT8})
# A value that the index cannot hold stays in the document and can be read, but no search finds it.
_LENIENT: Final = {"ignore_malformed": True}
_KEYWORD: Final = {"type": "keyword", "ignore_above": _MAX_TERM}


def is_document(column: Column) -> bool:
    """Return True for jsonb, whose values are JSON in the document, and not a text with JSON."""
    return column.type_oid in _JSONB_OIDS


def mapping_of(column: Column) -> dict[str, Any]:
    """Return the column's mapping in the index. An array has that of its elements, a range those of its fields."""
    if parts := column.type.scalar.parts:
        return {"properties": {n: mapping_of(replace(column, type=part)) for n, part in parts}}
    kind = column.type.scalar.kind
    if kind is Kind.MAP:
        # Keys as fields would add any number of them to the index, and a dot in one would make an object.
        return {"properties": {"key": dict(_KEYWORD), "value": dict(_KEYWORD)}}
    if kind in INTEGERS:
        return {"type": "long"}
    if kind in _FLOATS or kind is Kind.DECIMAL:
        return {"type": "double", **_LENIENT}
    if kind is Kind.BOOL:
        return {"type": "boolean"}
    if kind in DATES:
        return {"type": "date", "format": "strict_date_optional_time", **_LENIENT}
    if kind is Kind.BYTEA:
        return {"type": "binary"}
    if kind is Kind.JSON:
        # Lucene's limit of 32766 bytes is also that of doc values.
        text = {"type": "keyword", "index": False, "doc_values": False}
        return {"type": "object", "enabled": False} if is_document(column) else text
    if kind is Kind.TEXT and column.type_oid in _FULL_TEXT:
        return {"type": "text", "fields": {"keyword": dict(_KEYWORD)}}
    return dict(_KEYWORD)


def shape_of(column: Column) -> str:
    """Return the form of the values in JSON. Documents of one shape need no change when a type is widened."""
    kind, lists = column.type.scalar.kind, "[]" * column.type.depth
    if parts := column.type.scalar.parts:
        return ",".join(shape_of(replace(column, type=part)) for _, part in parts) + lists
    if kind is Kind.MAP:
        return "map"
    if kind in INTEGERS:
        return "integer" + lists
    if kind in _FLOATS:
        return "float" + lists
    if kind is Kind.JSON and is_document(column):
        return "json" + lists
    return (kind.value if kind in {Kind.BOOL, Kind.BYTEA, Kind.DECIMAL} or kind in DATES else "text") + lists


def json_values(values: pa.Array, column: Column) -> pa.Array:
    """Return the JSON of a column's values, with ``null`` for NULL."""
    return _json(values, column.type, documents=is_document(column))


def _json(values: pa.Array, kind: ColumnType, *, documents: bool) -> pa.Array:
    if kind.parts:
        parts = [_json(f, part, documents=False) for f, (_, part) in zip(values.flatten(), kind.parts, strict=True)]
        return json_text.objects([name for name, _ in kind.parts], parts, values.is_valid())
    if kind.kind is Kind.ARRAY:
        assert kind.element is not None
        return json_text.lists(values, _json(values.flatten(), kind.element, documents=documents))
    if kind.kind is Kind.MAP:
        return json_text.map_pairs(values)
    if kind.kind in INTEGERS:
        return json_text.integers(values)
    if kind.kind in _FLOATS:
        return json_text.floats(values)
    if kind.kind is Kind.BOOL:
        return json_text.booleans(values)
    if kind.kind is Kind.JSON and documents:
        return pc.fill_null(pc.cast(values, pa.large_string()), "null")
    if kind.kind in (Kind.TEXT, Kind.JSON):
        return json_text.quoted(values)
    return json_text.surrounded(plain_text(values, kind))


def plain_text(values: pa.Array, kind: ColumnType) -> pa.Array:
    """Return the text of scalar values as it is in documents and in their ids. NULL stays NULL."""
    if kind.kind is Kind.DECIMAL:
        return decimal_text(values)
    if kind.kind is Kind.DATE:
        return json_text.dates(values)
    if kind.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return json_text.timestamps(values)
    if kind.kind is Kind.BYTEA:
        return json_text.base64(values)
    if kind.kind in _FLOATS:
        # PostgreSQL's keys have one zero, so its sign must not be in an id.
        return pc.cast(pc.add(pc.cast(values, pa.float64()), 0.0), pa.string())
    return pc.cast(values, pa.string()) if not pa.types.is_large_string(values.type) else values
