"""The checksums of rows with masked columns, computed by the engine from what the source sends. Pure.

The server cannot compute them: its log would have the key of an HMAC, and only the function of the copy and of the
stream gives the same for every text. The values in clear are in memory for one slice of rows, and in no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.arrow_text import NULL_FRAME
from levada.destinations.row_hashes import HashedRows, RowHasher
from levada.destinations.verification import PLACE, PLACES, Comparison
from levada.pgoutput.masking import masked_texts
from levada.schema import Column
from levada.schema.masking import has_text_mask
from levada.schema.masks import MaskKeys


@dataclass(frozen=True, slots=True)
class MaskedRows:
    """Masks and hashes the rows of one table. ``shown`` are the columns whose texts for people are read too."""

    comparison: Comparison
    keys: MaskKeys
    shown: tuple[Column, ...]

    @property
    def layout(self) -> pa.Schema:
        """The result of `ChecksumSql.unmasked`."""
        names = [*(f"f{i}" for i in range(len(self.comparison.columns))), *(f"s{i}" for i in range(len(self.shown)))]
        return pa.schema([(name, pa.string()) for name in [*names, PLACE]])

    @property
    def _hasher(self) -> RowHasher:
        return RowHasher(self.comparison)

    def hashed(self, read: pa.Table) -> HashedRows:
        """Mask and hash the rows of a result."""
        frames = [self._frame(c, _whole(read[f"f{i}"])) for i, c in enumerate(self.comparison.columns)]
        shown = [self._shown(c, _whole(read[f"s{i}"])) for i, c in enumerate(self.shown)]
        return self._hasher.hashed(frames, shown, _whole(read[PLACE]))

    def chunks(self, rows: HashedRows) -> pa.Table:
        """Return the checksums of rows by chunk, in the schema `CHUNKS`."""
        return self._hasher.chunks(rows)

    def digests(self, rows: HashedRows, chunks: Sequence[int] | None) -> pa.Table:
        """Return the hashes of each row of some chunks, None for all, in the schema `PLACES`."""
        return self._hasher.digests(rows, chunks).cast(PLACES)

    def by_key(self, rows: HashedRows, chunks: Sequence[int] | None) -> pa.Table:
        """Return the checksums of the rows of some chunks by key, in the schema `Comparison.rows_schema`."""
        return self._hasher.by_key(rows, chunks)

    def values(self, rows: HashedRows, hashes: pa.Array) -> pa.Table:
        """Return the masked values of the rows whose keys have these hashes, in `Comparison.values_schema`."""
        return self._hasher.values(rows, hashes)

    def _frame(self, column: Column, text: pa.Array) -> pa.Array:
        """Return the framed values. The server has framed those that are not masked, or masked by NULL."""
        if not has_text_mask(column):
            return text
        assert column.mask is not None
        masked = masked_texts(text, column.mask.mask, self.keys)
        size = pc.binary_length(masked).cast(pa.string())
        framed = pc.binary_join_element_wise(size, ":", masked, "|", "")
        return pc.fill_null(framed, NULL_FRAME)

    def _shown(self, column: Column, text: pa.Array) -> pa.Array:
        if not has_text_mask(column):
            return text
        assert column.mask is not None
        return masked_texts(text, column.mask.mask, self.keys)


def is_masked(comparison: Comparison) -> bool:
    """Return True if the engine has to compute the checksums of the source's rows."""
    return any(map(has_text_mask, comparison.columns))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
