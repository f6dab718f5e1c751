"""The facts of manifests about files, from Iceberg's JSON. Pure.

Source: Iceberg's specification, appendix D (bounds).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from levada.destinations.data_files.layout import field_id
from levada.destinations.data_files.listed_file import ListedColumn, ListedFile, is_text_or_bytes, physical
from levada.destinations.iceberg.storage import POSITION_DELETES

_FLOATS: Final[Mapping[int, str]] = {4: "<f", 8: "<d"}


def listed_file(found: Mapping[str, Any], columns: pa.Schema) -> ListedFile:
    """Return the facts about a file. ``columns`` are those of the table."""
    nulls, low, high = (_by_id(found, key) for key in ("null-value-counts", "lower-bounds", "upper-bounds"))
    kinds = {number: f.type for f in (*columns, *POSITION_DELETES) if (number := field_id(f)) is not None}
    listed = {
        number: ListedColumn(nulls[number], _bound(kind, low.get(number)), _bound(kind, high.get(number)))
        for number, kind in kinds.items()
        if number in nulls and not pa.types.is_nested(kind)
    }
    return ListedFile(found["file-path"], found["record-count"], found["file-size-in-bytes"], listed)


def _by_id(found: Mapping[str, Any], key: str) -> dict[int, Any]:
    entries = found.get(key) or {"keys": (), "values": ()}
    pairs: Iterator[tuple[int, Any]] = zip(entries["keys"], entries["values"], strict=True)
    return dict(pairs)


def _bound(kind: pa.DataType, text: str | None) -> Any:
    """Return a bound in the form of `physical`."""
    return None if text is None or physical(kind) is None else bound_of(kind, bytes.fromhex(text))


def bound_of(kind: pa.DataType, raw: bytes) -> Any:
    """Return the value of a bound's bytes. A column may have been widened since, so the length decides."""
    if is_text_or_bytes(kind):
        return raw
    if pa.types.is_floating(kind):
        return struct.unpack(_FLOATS[len(raw)], raw)[0]
    return int.from_bytes(raw, "big" if pa.types.is_decimal(kind) else "little", signed=not pa.types.is_boolean(kind))
