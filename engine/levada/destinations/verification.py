"""A fixed version of a destination's table that is compared with the source, and the canonical text of values.

Both sides compute checksums over the same text. A destination computes the text of its own values where the data is.
`levada.destinations.checksum_sql` computes it in SQL at the source. The forms are those of this table, and NULL has no
text.

=============================== ==================================================================================
Kind                            Canonical text
=============================== ==================================================================================
BOOL                            ``true`` or ``false``
INT2, INT4, INT8, OID           Decimal digits
FLOAT4, FLOAT8                  The 8 bytes of the value as a double, in hexadecimal. Every NaN is ``nan``
DECIMAL                         All digits of the type's scale, without an exponent
TEXT, JSON                      The text itself
BYTEA                           The MD5 of the bytes
DATE                            Days since 1970-01-01
TIME                            ``HH:MM:SS.ffffff``
TIMESTAMP, TIMESTAMPTZ          Microseconds since 2000-01-01, as 8 bytes in hexadecimal
UUID                            Lower-case text with hyphens
ARRAY                           The framed elements between brackets
RANGE                           ``empty``, or the framed bounds between the brackets of PostgreSQL's text
MAP                             PostgreSQL's text of the hstore
=============================== ==================================================================================

A *framed* value is its text and ``|``. A text of variable form has its length in UTF-8 bytes and ``:`` in front. NULL
is ``~|``. So a sequence of framed values can be read in one way only. A row's text is the sequence of its framed
columns, and a key's text is the sequence of its framed key columns.

The *hash* of a text is the number of the first 60 bits of its MD5. A checksum of several rows is the exact sum of their
hashes, so that their order has no effect, and a row that occurs twice counts twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from levada.destinations.key_ranges import WHOLE, KeyRange
from levada.errors import DestinationChanged
from levada.schema import Column, ColumnType, ReplicatedTableSchema
from levada.schema.types import FREE_TEXTS, NESTED
from levada.values import Lsn

SAMPLE_PARTS: Final = 10_000
"""The parts of which a sample takes a number."""

CHUNK: Final = "chunk"
ROWS: Final = "rows"
DIGEST: Final = "digest"
KEY_HASH: Final = "key_hash"
KEY: Final = "key"
PLACE: Final = "place"
PART: Final = "part"
DECIMAL: Final = pa.decimal128(38, 0)

CHUNKS: Final = pa.schema([(CHUNK, pa.int64()), (ROWS, pa.int64()), (DIGEST, DECIMAL)])
"""The result of `FixedTable.chunks`, one row per chunk that has rows."""
DIGESTS: Final = pa.schema([(KEY_HASH, pa.int64()), (DIGEST, pa.int64())])
"""The first columns of the result of `FixedTable.digests`, which has one row for each row."""
PLACES: Final = pa.schema([*DIGESTS, (PLACE, pa.string())])
"""The digests of a table in PostgreSQL. The place of a row is its ctid."""


def column_digest(attnum: int) -> str:
    """Return the name of a column's checksum in `rows_schema`."""
    return f"column_{attnum}"


def column_value(attnum: int) -> str:
    """Return the name of a column's text in `values_schema`."""
    return f"value_{attnum}"


def is_framed_by_length(kind: ColumnType) -> bool:
    """Return True if the canonical text of the type may contain any character."""
    return kind.kind in FREE_TEXTS | NESTED


@dataclass(frozen=True, slots=True)
class Comparison:
    """The parts of a table that are compared, and the way in which its rows are divided.

    ``columns`` are the compared columns, in the same order on both sides. ``key`` has those that identify a row, and is
    empty for a table without a key, whose rows are identified by all columns. ``chunks`` is the number of chunks. A row
    belongs to the chunk of its key's hash. The values of a row are compared if its key belongs to the first ``sample``
    of `SAMPLE_PARTS` parts, counted from the part ``offset``. Of the other rows only the keys are compared.

    ``between`` is the range of keys whose rows are compared.
    ``marked`` is None for a table whose deleted rows have no mark. If it is False, the destination leaves out the
    marked rows, and if it is True all others. ``keeps`` is True if rows that only the destination has are no
    differences.
    """

    columns: tuple[Column, ...]
    key: tuple[Column, ...]
    chunks: int
    sample: int = SAMPLE_PARTS
    offset: int = 0
    marked: bool | None = None
    keeps: bool = False
    between: KeyRange = WHOLE

    @property
    def identity(self) -> tuple[Column, ...]:
        """The columns whose text is the key's text."""
        return self.key or self.columns

    @property
    def rows_schema(self) -> pa.Schema:
        """The result of `FixedTable.rows`, one row per hash of a key."""
        digests = [(column_digest(c.attnum), DECIMAL) for c in self.columns]
        return pa.schema([(KEY_HASH, pa.int64()), (KEY, pa.string()), (ROWS, pa.int64()), (DIGEST, DECIMAL), *digests])

    @property
    def values_schema(self) -> pa.Schema:
        """The result of `FixedTable.values`, one row per row."""
        return pa.schema([(KEY_HASH, pa.int64()), *((column_value(c.attnum), pa.string()) for c in self.columns)])


@dataclass(frozen=True, slots=True)
class Repair:
    """The changes of a repair. ``gone`` are the rows of `FixedTable.digests` that differ, and have to go.

    ``written`` are the hashes of the keys of all rows that are written. Those of ``gone`` that are among them come
    back with other values.
    """

    comparison: Comparison
    gone: pa.Table
    written: pa.Array


def is_kept(check: Callable[[], object], repair: Repair) -> bool:
    """Return True if ``check`` passes, by which no other writer has changed a table before its repair.

    The commits of its repair then count as those of batches: wherever it ends, the table goes on from its watermark.
    Raise the DestinationChanged of ``check`` if only a range of the table was compared, because the other rows may
    differ too.
    """
    try:
        check()
    except DestinationChanged:
        if repair.comparison.between != WHOLE:
            raise
        return False
    return True


class FixedTable(ABC):
    """One version of a table at a destination. Later writes do not change what the methods return.

    Another thread may call other methods of the destination for the same table meanwhile. The methods raise
    DestinationChanged ``table_damaged`` if a file of this version is missing or damaged.
    """

    columns: Mapping[int, str]
    """The name at the destination of each column of the source that the table has, by attnum."""
    applied: Lsn
    """The watermark of this version. 0 if it has none."""
    estimated_rows: int = 0
    """The number of rows as far as it is known without reading them."""
    keeps_columns: bool = False
    """True if the destination does not follow changes of the source's columns."""
    is_history: bool = False
    """True for a table that holds every change. Its rows are then the inserted ones without the deleted ones."""

    def check_files(self, former: FixedTable | None = None) -> None:
        """Raise DestinationChanged ``table_damaged`` if the bytes of this version's files are not those written.

        Also bytes that make no difference to `chunks`, and do so to a reader with a filter. The files of ``former``
        have been checked already.
        """
        return

    @abstractmethod
    def chunks(self, comparison: Comparison) -> pa.Table:
        """Return the checksums of all rows by chunk, in the schema `CHUNKS`."""

    def chunks_after(self, comparison: Comparison, former: FixedTable, known: pa.Table) -> pa.Table:
        """Return what `chunks` does. ``known`` is the result for ``former``, from which rows were repaired since."""
        return self.chunks(comparison)

    @abstractmethod
    def rows(self, comparison: Comparison, chunks: Sequence[int]) -> pa.Table:
        """Return the checksums of the rows of some chunks by key, in the schema `Comparison.rows_schema`.

        ``KEY`` is a JSON array of the key's values as text.
        """

    def digests(self, comparison: Comparison, chunks: Sequence[int] | None) -> pa.Table:
        """Return one row for each row of some chunks, None for all: the columns of `DIGESTS` and where the row is.

        The columns for the latter are the destination's own, for `rows_at` and `Destination.repair`. Only a destination
        with the capability ``repairs`` has this method and `rows_at`.
        """
        raise NotImplementedError

    def rows_at(self, comparison: Comparison, places: pa.Table) -> pa.Table:
        """Return the checksums of these rows of `digests` by key, in the schema `Comparison.rows_schema`.

        ``places`` has all rows of a key, or none.
        """
        raise NotImplementedError

    def whole_rows(self, schema: ReplicatedTableSchema, places: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield these rows of `digests` in the columns of ``schema``, which is that of the table's target.

        Only a destination with the capabilities ``repairs`` and ``keeps_deleted`` has this method and `marked_rows`.
        """
        raise NotImplementedError

    def marked_rows(self) -> int:
        """Return the number of rows with the mark of deleted ones."""
        raise NotImplementedError

    @abstractmethod
    def values(self, comparison: Comparison, hashes: pa.Array) -> pa.Table:
        """Return the values of the rows whose keys have these hashes, as text for people, in `values_schema`."""

    def close(self) -> None:
        """Let the destination remove this version when it is not the current one. Later calls have no effect."""
        return
