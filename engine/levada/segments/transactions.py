"""The transactions of a segment: written when the segment is closed, read when a destination iterates over events.

They are one small Parquet document, with about four bytes per transaction. The columns have small differences, see
`_ENCODINGS`. Most segments have few transactions, and then the document is within the manifest, so that it costs no
file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Base64UrlBytes

from levada.pgoutput.changes import TRANSACTIONS
from levada.segments.checksums import ChecksumWriter, open_verified
from levada.segments.staging import Staging

_ENCODINGS: Final = dict.fromkeys(TRANSACTIONS.names, "DELTA_BINARY_PACKED")


@dataclass(frozen=True, slots=True)
class TransactionFile:
    """The transactions of a segment that have changes in it, in the layout `TRANSACTIONS`, in WAL order.

    ``content`` is the document if it is in the manifest, else empty. ``path`` is the path of its file relative to the
    staging root, else empty. ``bytes`` is the size of the document. ``checksums`` is that of `SegmentFile`.
    """

    rows: int
    bytes: int
    content: Base64UrlBytes
    path: str
    checksums: tuple[int, ...]

    @classmethod
    def none(cls) -> TransactionFile:
        """Return the document of no transactions."""
        return cls(0, 0, b"", "", ())

    @classmethod
    def write(cls, staging: Staging, path: str, transactions: Sequence[pa.Table]) -> TransactionFile:
        """Write the transactions to the file, unless they are few enough for the manifest."""
        if not transactions:
            return cls.none()
        table = pa.concat_tables(transactions)
        document = _document(table, staging.limits.transaction_rows)
        if len(document) <= staging.limits.inline_bytes:
            return cls(table.num_rows, len(document), document.to_pybytes(), "", ())
        with staging.writing(path), staging.output(path) as sink:
            checked = ChecksumWriter(sink)
            checked.write(document)
        return cls(table.num_rows, len(document), b"", path, checked.checksums)

    def read(self, staging: Staging) -> Iterator[pa.RecordBatch]:
        """Yield the transactions, a row group at a time. Raise DamageError, and the errors of the staging area."""
        if self.content:
            yield from _batches(pa.BufferReader(self.content))
        if not self.path:
            return
        with staging.input(self.path) as source:
            yield from _batches(open_verified(source, self.bytes, self.checksums, staging.limits.whole_bytes))


def _document(transactions: pa.Table, group_rows: int) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(
        transactions,
        sink,
        row_group_size=group_rows,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
        column_encoding=_ENCODINGS,
    )
    return sink.getvalue()


def _batches(source: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    parquet = pq.ParquetFile(source)
    for group in range(parquet.num_row_groups):
        yield from parquet.read_row_group(group).to_batches()
