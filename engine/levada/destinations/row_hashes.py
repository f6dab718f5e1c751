"""The hashes of rows, for checksums that Python computes from framed values. Pure.

`levada.destinations.verification` defines the frames and the hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.verification import (
    CHUNK,
    CHUNKS,
    DECIMAL,
    DIGEST,
    KEY,
    KEY_HASH,
    PLACE,
    ROWS,
    SAMPLE_PARTS,
    Comparison,
    column_digest,
    column_value,
)


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
class RowHasher:
    """Hashes the rows of one table for a comparison."""

    comparison: Comparison

    def hashed(self, frames: Sequence[pa.Array], shown: Sequence[pa.Array], place: pa.Array) -> HashedRows:
        """Hash rows. ``frames`` has the framed values of the comparison's columns, in their order."""
        at = {c.attnum: i for i, c in enumerate(self.comparison.columns)}
        key_hash = _hashes([frames[at[c.attnum]] for c in self.comparison.identity])
        digest = self._compared(key_hash, _hashes(frames))
        return HashedRows(tuple(frames), pa.array(key_hash), pa.array(digest), tuple(shown), place)

    def chunks(self, rows: HashedRows) -> pa.Table:
        """Return the checksums of rows by chunk, in the schema `CHUNKS`."""
        return chunks_of(pa.table({KEY_HASH: rows.key_hash, DIGEST: rows.digest}), self.comparison.chunks)

    def digests(self, rows: HashedRows, chunks: Sequence[int] | None) -> pa.Table:
        """Return the hashes of each row of some chunks, None for all, and the place."""
        some = self._in_chunks(rows, chunks)
        return pa.table({KEY_HASH: some.key_hash, DIGEST: some.digest, PLACE: some.place})

    def by_key(self, rows: HashedRows, chunks: Sequence[int] | None) -> pa.Table:
        """Return the checksums of the rows of some chunks by key, in the schema `Comparison.rows_schema`.

        The texts for people are those of the key.
        """
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
        """Return the texts for people of all columns, of the rows whose keys have these hashes."""
        some = rows.filter(pc.is_in(rows.key_hash, hashes))
        shown = {column_value(c.attnum): s for c, s in zip(self.comparison.columns, some.shown, strict=True)}
        return pa.table({KEY_HASH: some.key_hash, **shown}).cast(self.comparison.values_schema)

    def _in_chunks(self, rows: HashedRows, chunks: Sequence[int] | None) -> HashedRows:
        if chunks is None:
            return rows
        numbers = rows.key_hash.to_numpy() % self.comparison.chunks
        return rows.filter(pa.array(np.isin(numbers, np.array(chunks, np.int64))))

    def _compared(self, key_hash: Any, row: Any) -> Any:
        """Return what a row adds to a checksum: its hash if it is in the sample, and else that of its key."""
        comparison = self.comparison
        if not comparison.key or comparison.sample >= SAMPLE_PARTS:
            return row
        part = (key_hash // comparison.chunks + comparison.offset) % SAMPLE_PARTS
        return np.where(part < comparison.sample, row, key_hash)


def chunks_of(rows: pa.Table, chunks: int) -> pa.Table:
    """Return the checksums by chunk of rows of `FixedTable.digests`, in the schema `CHUNKS`."""
    if not rows.num_rows:
        return CHUNKS.empty_table()
    numbers = pa.array(rows[KEY_HASH].to_numpy() % chunks)
    return summed_chunks(pa.table({CHUNK: numbers, DIGEST: rows[DIGEST].cast(DECIMAL)}), "count")


def summed_chunks(parts: pa.Table, rows: str = "sum") -> pa.Table:
    """Return one row for each chunk of ``parts``, which have the columns of `CHUNKS`, or one row for each row."""
    counted = ROWS if rows == "sum" else DIGEST
    found = parts.group_by(CHUNK).aggregate([(counted, rows), (DIGEST, "sum")])
    found = found.rename_columns({f"{counted}_{rows}": ROWS, f"{DIGEST}_sum": DIGEST})
    return found.select(CHUNKS.names).cast(CHUNKS)


def _hashes(frames: Sequence[pa.Array]) -> Any:
    """Return the hash of each row's joined frames, see `levada.destinations.verification`."""
    joined = frames[0] if len(frames) == 1 else pc.binary_join_element_wise(*frames, "")
    # Nothing in Arrow or numpy computes an MD5, so a row is a Python object for a moment.
    numbers = [
        int.from_bytes(hashlib.md5(text, usedforsecurity=False).digest()[:8], "big") >> 4
        for text in joined.cast(pa.binary()).to_pylist()
    ]
    return np.array(numbers, np.int64)


def _rows(columns: Sequence[pa.Array], count: int) -> list[tuple[Any, ...]]:
    return list(zip(*(c.to_pylist() for c in columns), strict=True)) if columns else [()] * count
