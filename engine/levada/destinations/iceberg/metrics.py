"""The metrics of new files in Iceberg's JSON, as Iceberg's library would read them from the footers. Pure.

Sources: Iceberg's specification, appendix D (bounds) and "Column metrics" of its configuration.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from levada.destinations.data_files.statistics import ColumnStatistics

_LAST_CODE_POINT: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)
_FULL: Final = 2**31


@dataclass(frozen=True, slots=True)
class Mode:
    """The metrics of a column. ``length`` is the number of characters or bytes of a bound, 0 without bounds."""

    counts: bool
    length: int

    @classmethod
    def parse(cls, text: str) -> Mode:
        """Parse the text of Iceberg's ``MetricsMode``."""
        if text.startswith("truncate("):
            return cls(True, int(text.removeprefix("truncate(").removesuffix(")")))
        return cls(text != "none", _FULL if text == "full" else 0)


FULL: Final = Mode(True, _FULL)
"""The mode of position-delete files. Readers find the deletes of a data file by the bounds of the paths."""


def metrics_json(
    columns: Iterable[ColumnStatistics], mode_of: Callable[[tuple[str, ...]], Mode]
) -> dict[str, dict[str, list[Any]]]:
    """Return the metrics in the JSON of Iceberg's ``ContentFileParser``, without the number of rows.

    ``mode_of`` returns the mode of a column by its path in the table's schema.
    """
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, str] = {}
    upper: dict[int, str] = {}
    for column in columns:
        number, mode = column.leaf.field_id, mode_of(column.leaf.names)
        if number is None or not mode.counts:
            continue
        sizes[number] = column.bytes
        if column.leaf.nested or column.nulls is None:
            continue
        values[number], nulls[number] = column.values, column.nulls
        if not mode.length or column.low is None or column.high is None:
            continue
        kind = column.leaf.type
        lower[number] = _lower_bound(kind, column.low, mode.length).hex()
        if (high := _upper_bound(kind, column.high, mode.length)) is not None:
            upper[number] = high.hex()
    return {
        "column-sizes": _map(sizes),
        "value-counts": _map(values),
        "null-value-counts": _map(nulls),
        "lower-bounds": _map(lower),
        "upper-bounds": _map(upper),
    }


def _map(entries: Mapping[int, Any]) -> dict[str, list[Any]]:
    return {"keys": list(entries), "values": list(entries.values())}


def _lower_bound(kind: pa.DataType, raw: Any, length: int) -> bytes:
    if pa.types.is_string(kind):
        return _first_characters(raw, length)
    return bytes(raw[:length]) if pa.types.is_binary(kind) else _to_bytes(kind, raw)


def _upper_bound(kind: pa.DataType, raw: Any, length: int) -> bytes | None:
    """Return the bound, or None if no value of that length is higher than ``raw``."""
    if pa.types.is_string(kind):
        kept = _first_characters(raw, length)
        return raw if len(kept) == len(raw) else _next_text(kept)
    if not pa.types.is_binary(kind):
        return _to_bytes(kind, raw)
    return raw if len(raw) <= length else _next_bytes(raw[:length])


def _first_characters(raw: bytes, length: int) -> bytes:
    # A character takes at most 4 bytes.
    return raw if len(raw) <= length else raw[: 4 * length].decode(errors="ignore")[:length].encode()


def _next_text(kept: bytes) -> bytes | None:
    text = kept.decode()
    for i in range(len(text) - 1, -1, -1):
        following = ord(text[i]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LAST_CODE_POINT:
            return (text[:i] + chr(following)).encode()
    return None


def _next_bytes(kept: bytes) -> bytes | None:
    raised = kept.rstrip(b"\xff")
    return raised[:-1] + bytes([raised[-1] + 1]) if raised else None


def _to_bytes(kind: pa.DataType, raw: Any) -> bytes:
    # An extension type in Arrow, and no fixed-size binary there.
    if kind == pa.uuid() or pa.types.is_fixed_size_binary(kind):
        return bytes(raw)
    if pa.types.is_decimal(kind):
        number = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
        # One bit more for the sign, as Java's BigInteger has it.
        bits = (number if number >= 0 else ~number).bit_length()
        return int(number).to_bytes(bits // 8 + 1, "big", signed=True)
    return _PACKERS[kind.id](raw)


def _packer(form: str) -> Callable[[Any], bytes]:
    return struct.Struct(form).pack


_PACKERS: Final[Mapping[int, Callable[[Any], bytes]]] = {
    pa.bool_().id: _packer("<?"),
    pa.int32().id: _packer("<i"),
    pa.date32().id: _packer("<i"),
    pa.int64().id: _packer("<q"),
    pa.time64("us").id: _packer("<q"),
    pa.timestamp("us").id: _packer("<q"),
    pa.float32().id: _packer("<f"),
    pa.float64().id: _packer("<d"),
}
