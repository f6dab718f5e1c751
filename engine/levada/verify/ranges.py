"""The comparison of one range of a table's keys, for a table that is compared range by range.

The source is read first, so that its snapshot ends before the destination is read. A range that differs is compared
again at another LSN by `levada.verify.table`, which finds the keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.key_ranges import KeyRange, has_index_order, is_ordered
from levada.destinations.verification import ROWS, Comparison, FixedTable
from levada.errors import NeedsOperator
from levada.printable import counted
from levada.schema import ReplicatedTableSchema
from levada.verify.differences import compare_chunks
from levada.verify.rows import compare_rows
from levada.verify.source_table import SourceTable
from levada.verify.table import MAX_CHUNKS, MIN_CHUNKS, CompareLimits, Scope, VerifyOptions, comparison_of

MOST_ROWS: Final = 1_000_000
"""The most rows of one range, and of a table whose keys have no order that both sides share."""
_MOST_SCANS: Final = 64
"""The ranges of a table that are aimed at if each of them reads the whole table at the source."""


@dataclass(frozen=True, slots=True)
class SourceRange:
    """The checksums of one range at the source, with the number of its rows."""

    comparison: Comparison
    sums: pa.Table
    rows: int

    @property
    def between(self) -> KeyRange:
        """The keys of the range."""
        return self.comparison.between

    def differs(self, lake: FixedTable) -> bool:
        """Return True if the range of the table at the destination has other checksums."""
        if not self.comparison.keeps:
            return bool(compare_chunks(self.sums, lake.chunks(self.comparison)).chunks)
        return bool(compare_rows(self.sums, lake.digests(self.comparison, None), keeps=True).total)


def read_range(
    source: SourceTable,
    lake: FixedTable,
    schema: ReplicatedTableSchema,
    scope: Scope,
    options: VerifyOptions,
    rows: int,
) -> SourceRange:
    """Read the next ``rows`` rows of the source after the lower bound of ``options.between``, or about as many.

    Raise NeedsOperator ``verify_unsupported`` for a large table whose keys have no order that both sides share.
    """
    comparison = comparison_of(source, lake, schema, scope, options)
    known = max(source.published.estimated_rows or 0, lake.estimated_rows)
    if is_ordered(comparison.key, source.policy):
        if not has_index_order(comparison.key):
            rows = max(rows, known // _MOST_SCANS)
        rows = min(rows, MOST_ROWS)
        between = KeyRange(comparison.between.after, source.last_key(comparison, rows))
    elif known > MOST_ROWS:
        raise NeedsOperator(
            "verify_unsupported",
            f"{schema.name} cannot be compared by ranges: its key has no order that both sides share, and it has about"
            f" {counted(known, 'row')}",
            hint="compare it with spec.verify.everyHours",
        )
    else:
        between, rows = KeyRange(), known
    chunks = min(MAX_CHUNKS, max(MIN_CHUNKS, rows // CompareLimits().chunk_rows))
    comparison = replace(comparison, between=between, chunks=chunks)
    if comparison.keeps:
        digests = source.digests(comparison, None)
        return SourceRange(comparison, digests, digests.num_rows)
    sums = source.chunks(comparison)
    return SourceRange(comparison, sums, int(pc.sum(sums[ROWS]).as_py() or 0))
