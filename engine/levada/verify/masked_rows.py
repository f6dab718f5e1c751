"""The checksums of rows with masked columns, computed by the engine from what the source sends. Pure.

The server cannot compute them: its log would have the key of an HMAC, and only the function of the copy and of the
stream gives the same for every text. The values in clear are in memory for one slice of rows, and in no result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.verification import (
    CHUNKS,
    DECIMAL,
    DIGEST,
    KEY,
    KEY_HASH,
    PLACE,
    PLACES,
    ROWS,
    SAMPLE_PARTS,
    Comparison,
    column_digest,
    column_value,
)
from levada.pgoutput.masking import masked_texts
from levada.schema import Column
from levada.schema.masking import has_text_mask
from levada.schema.masks import MaskKeys
from levada.verify.rows import chunks_of

_NULL_FRAME: Final = "~|"


@dataclass(frozen=True, slots=True)
class HashedRows:
    """Rows of a slice: the frames of their values, the hashes of keys and rows, texts for people, and their places."""

    frames: tuple[pa.Array, ...]
    key_hash: pa.Array
    digest: pa.Array
    shown: tuple[pa.Array, ...]
    place: pa.Array

    def filter(self, wanted: pa.Array) -> HashedRows:
        """Return some of the rows."""
        return HashedRows(
            tuple(f.filter(wanted) for f in self.frames),
            self.key_hash.filter(wanted),
            self.digest.filter(wanted),
            tuple(s.filter(wanted) for s in self.shown),
            self.place.filter(wanted),
        )


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

    def hashed(self, read: pa.Table) -> HashedRows:
        """Mask and hash the rows of a result."""
        columns = self.comparison.columns
        frames = tuple(self._frame(c, _whole(read[f"f{i}"])) for i, c in enumerate(columns))
        at = {c.attnum: i for i, c in enumerate(columns)}
        key_hash = _hashes([frames[at[c.attnum]] for c in self.comparison.identity])
        shown = tuple(self._shown(c, _whole(read[f"s{i}"])) for i, c in enumerate(self.shown))
        digest = self._compared(key_hash, _hashes(frames))
        return HashedRows(frames, pa.array(key_hash), pa.array(digest), shown, _whole(read[PLACE]))

    def chunks(self, rows: HashedRows) -> pa.Table:
        """Return the checksums of rows by chunk, in the schema `CHUNKS`."""
        both = pa.table({KEY_HASH: rows.key_hash, DIGEST: rows.digest})
        return chunks_of(both, self.comparison.chunks) if both.num_rows else CHUNKS.empty_table()

    def digests(self, rows: HashedRows, chunks: Sequence[int] | None) -> pa.Table:
        """Return the hashes of each row of some chunks, None for all, in the schema `PLACES`."""
        some = self._in_chunks(rows, chunks)
        return pa.table([some.key_hash, some.digest, some.place], schema=PLACES)

    def by_key(self, rows: HashedRows, chunks: Sequence[int] | None) -> pa.Table:
        """Return the checksums of the rows of some chunks by key, in the schema `Comparison.rows_schema`."""
        some = self._in_chunks(rows, chunks)
        digests = [column_digest(c.attnum) for c in self.comparison.columns]
        columns = {
            KEY_HASH: some.key_hash,
            KEY: pa.array([json.dumps(key) for key in _rows(some.shown, len(some.place))], pa.string()),
            DIGEST: some.digest.cast(DECIMAL),
            **{d: pa.array(_hashes([f])).cast(DECIMAL) for d, f in zip(digests, some.frames, strict=True)},
        }
        if not len(some.place):
            return self.comparison.rows_schema.empty_table()
        summed = [(DIGEST, "sum"), *((d, "sum") for d in digests), (DIGEST, "count"), (KEY, "min")]
        found = pa.table(columns).group_by(KEY_HASH).aggregate(summed)
        names = {f"{d}_sum": d for d in (DIGEST, *digests)} | {f"{DIGEST}_count": ROWS, f"{KEY}_min": KEY}
        found = found.rename_columns([names.get(name, name) for name in found.column_names])
        return found.select(self.comparison.rows_schema.names).cast(self.comparison.rows_schema)

    def values(self, rows: HashedRows, hashes: pa.Array) -> pa.Table:
        """Return the masked values of the rows whose keys have these hashes, in `Comparison.values_schema`."""
        some = rows.filter(pc.is_in(rows.key_hash, hashes))
        shown = {column_value(c.attnum): s for c, s in zip(self.comparison.columns, some.shown, strict=True)}
        return pa.table({KEY_HASH: some.key_hash, **shown}).cast(self.comparison.values_schema)

    def _in_chunks(self, rows: HashedRows, chunks: Sequence[int] | None) -> HashedRows:
        if chunks is None:
            return rows
        numbers = rows.key_hash.to_numpy() % self.comparison.chunks
        return rows.filter(pa.array(np.isin(numbers, np.array(chunks, np.int64))))

    def _frame(self, column: Column, text: pa.Array) -> pa.Array:
        """Return the framed values. The server has framed those that are not masked, or masked by NULL."""
        if not has_text_mask(column):
            return text
        assert column.mask is not None
        masked = masked_texts(text, column.mask.mask, self.keys)
        size = pc.binary_length(masked).cast(pa.string())
        framed = pc.binary_join_element_wise(size, ":", masked, "|", "")
        return pc.fill_null(framed, _NULL_FRAME)

    def _shown(self, column: Column, text: pa.Array) -> pa.Array:
        if not has_text_mask(column):
            return text
        assert column.mask is not None
        return masked_texts(text, column.mask.mask, self.keys)

    def _compared(self, key_hash: Any, row: Any) -> Any:
        """Return what a row adds to a checksum: its hash if it is in the sample, and else that of its key."""
        comparison = self.comparison
        if not comparison.key or comparison.sample >= SAMPLE_PARTS:
            return row
        part = (key_hash // comparison.chunks + comparison.offset) % SAMPLE_PARTS
        return np.where(part < comparison.sample, row, key_hash)


def is_masked(comparison: Comparison) -> bool:
    """Return True if the engine has to compute the checksums of the source's rows."""
    return any(map(has_text_mask, comparison.columns))


def _hashes(frames: Sequence[pa.Array]) -> Any:
    """Return the hash of each row's joined frames, see `levada.destinations.verification`."""
    joined = frames[0] if len(frames) == 1 else pc.binary_join_element_wise(*frames, "")
    # Nothing in Arrow or numpy computes an MD5, so a row is a Python object for a moment.
    numbers = [
        int.from_bytes(hashlib.md5(text, usedforsecurity=False).digest()[:8], "big") >> 4
        for text in joined.cast(pa.binary()).to_pylist()
    ]
    return np.array(numbers, np.int64)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _rows(columns: Sequence[pa.Array], count: int) -> list[tuple[Any, ...]]:
    return list(zip(*(c.to_pylist() for c in columns), strict=True)) if columns else [()] * count
