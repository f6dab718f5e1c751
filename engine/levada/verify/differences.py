"""Compares the checksums of both sides, first by chunk, then by key. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.verification import CHUNK, DIGEST, KEY, KEY_HASH, ROWS, Comparison, column_digest, column_value

_SIDES: Final = ("source", "lake")


class Kind(StrEnum):
    """A way in which the rows of a key differ."""

    MISSING = "missing"
    """The source has the row, the destination does not."""
    EXTRA = "extra"
    """The destination has a row that the source does not have."""
    CHANGED = "changed"
    """Both have the row, with different values."""
    REPEATED = "repeated"
    """Both have the row, but not the same number of times."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The rows of one key that differ. ``key`` has its values as text. ``columns`` differ if ``kind`` is CHANGED.

    ``values`` has the text at the source and at the destination of each of these columns, if they are wanted.
    """

    kind: Kind
    key: tuple[str | None, ...]
    columns: tuple[str, ...] = ()
    hash: int = 0
    values: tuple[tuple[str | None, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class ChunkDifferences:
    """The chunks that differ, and the number of rows of each side."""

    chunks: tuple[int, ...]
    rows: int
    """The number of rows in these chunks, on the side that has more."""
    source_rows: int
    lake_rows: int


@dataclass(frozen=True, slots=True)
class KeyDifferences:
    """The number of keys that differ by kind, and ``examples`` of them."""

    counts: dict[Kind, int]
    examples: tuple[Difference, ...]

    @property
    def total(self) -> int:
        """The number of keys that differ."""
        return sum(self.counts.values())


def compare_chunks(source: pa.Table, lake: pa.Table) -> ChunkDifferences:
    """Return the chunks whose numbers of rows or checksums differ. Each side may have a chunk several times."""
    both = _joined(_summed(source, CHUNK), _summed(lake, CHUNK), CHUNK)
    wrong = both.filter(_differ(both))
    rows = pc.max_element_wise(wrong[f"{ROWS}_source"], wrong[f"{ROWS}_lake"])
    return ChunkDifferences(
        tuple(sorted(wrong[CHUNK].to_pylist())),
        _total(rows),
        _total(source[ROWS]),
        _total(lake[ROWS]),
    )


def compare_keys(comparison: Comparison, source: pa.Table, lake: pa.Table, examples: int) -> KeyDifferences:
    """Return the keys whose rows differ, with at most ``examples`` of them described."""
    digests = [column_digest(c.attnum) for c in comparison.columns]
    both = _joined(_summed(source, KEY_HASH, digests), _summed(lake, KEY_HASH, digests), KEY_HASH)
    wrong = both.filter(_differ(both)).sort_by(KEY_HASH).combine_chunks()
    there, here = wrong[f"{ROWS}_source"], wrong[f"{ROWS}_lake"]
    masks = {
        Kind.MISSING: pc.equal(here, 0),
        Kind.EXTRA: pc.equal(there, 0),
        Kind.CHANGED: pc.and_(pc.equal(there, here), pc.greater(there, 0)),
    }
    if not comparison.key:
        # Rows are identified by all their values, so that none is changed.
        masks[Kind.CHANGED] = pc.and_(masks[Kind.CHANGED], False)
    known = pc.or_(pc.or_(masks[Kind.MISSING], masks[Kind.EXTRA]), masks[Kind.CHANGED])
    masks[Kind.REPEATED] = pc.invert(known)
    found: list[Difference] = []
    for kind, mask in masks.items():
        some = wrong.filter(mask).slice(0, examples - len(found))
        found += [_described(kind, comparison, row) for row in some.to_pylist()]
    counts = {kind: _total(pc.cast(mask, pa.int64())) for kind, mask in masks.items()}
    return KeyDifferences(counts, tuple(found))


def _described(kind: Kind, comparison: Comparison, row: dict[str, Any]) -> Difference:
    key = tuple(json.loads(row[f"{KEY}_source"] or row[f"{KEY}_lake"])) if comparison.key else ()
    columns: tuple[str, ...] = ()
    if kind is Kind.CHANGED:
        names = ((c.name, column_digest(c.attnum)) for c in comparison.columns)
        columns = tuple(name for name, digest in names if row[f"{digest}_source"] != row[f"{digest}_lake"])
    return Difference(kind, key, columns, row[KEY_HASH])


def with_values(
    comparison: Comparison, found: Sequence[Difference], source: pa.Table, lake: pa.Table
) -> tuple[Difference, ...]:
    """Return the differences with the values of the columns that differ. Both sides are in `values_schema`."""
    names = {c.name: column_value(c.attnum) for c in comparison.columns}
    sides = [{row[KEY_HASH]: row for row in side.to_pylist()} for side in (source, lake)]
    described = []
    for d in found:
        rows = [side.get(d.hash, {}) for side in sides]
        values = tuple((rows[0].get(names[c]), rows[1].get(names[c])) for c in d.columns)
        described.append(replace(d, values=values))
    return tuple(described)


def _summed(side: pa.Table, by: str, digests: Sequence[str] = ()) -> pa.Table:
    """Return the sums of the rows of one chunk or key, which may be in several ranges."""
    shown = [(KEY, "min")] if KEY in side.column_names else []
    sums = [(name, "sum") for name in (ROWS, DIGEST, *digests)]
    found = side.group_by(by).aggregate([*sums, *shown])
    names = {f"{name}_{how}": name for name, how in [*sums, *shown]}
    return found.rename_columns([names.get(name, name) for name in found.column_names])


def _joined(source: pa.Table, lake: pa.Table, by: str) -> pa.Table:
    """Return both sides by chunk or key. What a side does not have has 0 rows and the checksum 0."""
    both = source.join(lake, by, join_type="full outer", left_suffix="_source", right_suffix="_lake")
    for i, field in enumerate(both.schema):
        if field.name != by and not field.name.startswith(f"{KEY}_"):
            both = both.set_column(i, field.name, pc.fill_null(both.column(i), pa.scalar(0).cast(field.type)))
    return both


def _differ(both: pa.Table) -> pa.ChunkedArray:
    pairs = ((both[f"{name}_{_SIDES[0]}"], both[f"{name}_{_SIDES[1]}"]) for name in (ROWS, DIGEST))
    rows, digests = (pc.not_equal(a, b) for a, b in pairs)
    return pc.or_(rows, digests)


def _total(values: Any) -> int:
    return int(pc.sum(values).as_py() or 0)
