"""Arrow columns as the rows of a text COPY, against a reading of the format in plain Python."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from levada.destinations.postgres.copy_text import copy_rows

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}

texts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12) | st.sampled_from(
    ["", "\\N", "\\.", "NULL", "null", '"', "{}", ",", "\t\r\n\\"]
)
rows = st.lists(
    st.tuples(
        st.none() | texts,
        st.none() | st.binary(max_size=8),
        st.none() | st.lists(st.none() | texts, max_size=4),
        st.none() | st.lists(st.none() | st.binary(max_size=3), max_size=3),
        st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=3),
    ),
    max_size=12,
)
SCHEMA = pa.schema(
    [
        ("a", pa.string()),
        ("b", pa.binary()),
        ("c", pa.list_(pa.string())),
        ("d", pa.list_(pa.binary())),
        ("e", pa.int64()),
        ("f", pa.list_(pa.int32())),
    ]
)


def parse_row(line: str) -> list[str | None]:
    """Parse a line of COPY's text format."""
    return [
        None if field == "\\N" else re.sub(r"\\(.)", lambda m: _ESCAPES[m[1]], field, flags=re.DOTALL)
        for field in line.split("\t")
    ]


def parse_array(text: str | None) -> list[str | None] | None:
    """Parse an array literal of one dimension."""
    if text is None:
        return None
    assert text[0] == "{"
    assert text[-1] == "}"
    elements = re.findall(r'"((?:[^"\\]|\\.)*)"|([^,"]+)', text[1:-1], flags=re.DOTALL)
    return [
        None if plain == "NULL" else plain or re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        for quoted, plain in elements
    ]


def hexadecimal(value: bytes | None) -> str | None:
    """Return the text of a bytea."""
    return None if value is None else "\\x" + value.hex()


@given(rows=rows, first=st.integers(0, 5), size=st.sampled_from([1, 40, 1 << 20]), large=st.booleans())
def test_every_row_is_read_back(rows: list[tuple[Any, ...]], first: int, size: int, large: bool) -> None:
    """Whatever the values, the slices and the size of Arrow's offsets are, the text has the same rows in order."""
    table = pa.table(
        [pa.array([r[i] for r in rows], field.type) for i, field in enumerate(SCHEMA)], schema=SCHEMA
    ).slice(first)
    copied = copy_rows(table, slice_bytes=size, large_bytes=0 if large else 1 << 28)
    lines = b"".join(map(bytes, copied)).decode().split("\n")
    assert lines.pop() == ""
    found = [parse_row(line) for line in lines]
    assert [
        (a, b, parse_array(c), parse_array(d), None if e is None else int(e), parse_array(f))
        for a, b, c, d, e, f in found
    ] == [
        (
            a,
            hexadecimal(b),
            c,
            None if d is None else [hexadecimal(x) for x in d],
            e,
            None if f is None else [None if x is None else str(x) for x in f],
        )
        for a, b, c, d, e, f in rows[first:]
    ]
