"""Every kind of value has all that the engine needs of it."""

from __future__ import annotations

import pytest
from tests.lint.type_page import ROWS, Row, iceberg_type

from levada.pgoutput.binary import BINARY
from levada.pgoutput.text import parse_text
from levada.schema import Kind
from levada.testing.destinations.values import KINDS, kind_rows

SENT_AS_TEXT = {Kind.TEXT, Kind.ARRAY, Kind.RANGE, Kind.MAP}
"""Kinds without a binary decoder: a copy reads the text that the stream has."""


CHOSEN = {Kind.RANGE, Kind.MAP}
"""Kinds for columns that ask for them by ``columns.types`` alone, see ``docs/guides/stored-types.md``."""


def test_every_kind_is_on_the_page() -> None:
    """No kind of value is left out."""
    assert {row.type.kind for row in ROWS} == set(Kind) - CHOSEN


def test_every_kind_has_a_binary_decoder_or_is_sent_as_text() -> None:
    """A kind is in one of the two sets."""
    assert set(BINARY) | SENT_AS_TEXT == set(Kind)
    assert not set(BINARY) & SENT_AS_TEXT


def test_every_kind_has_values_in_the_conformance_suite() -> None:
    """Each row of the suite has a value or NULL for each kind, so that every destination is tested with it."""
    names = {column.name for column in KINDS}
    assert all(row.keys() == names for row in kind_rows())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sql)
def test_text_decoder_and_iceberg_type(row: Row) -> None:
    """A sample is decoded into the kind's Arrow type, and a new Iceberg table has a type for it."""
    assert parse_text(row.type, row.sample).type == row.type.arrow
    assert parse_text(row.type, row.sample).is_valid
    assert iceberg_type(row.type)
