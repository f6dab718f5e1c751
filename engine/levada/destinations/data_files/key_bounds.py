"""The rows of a range of keys in data files, in the order of `levada.destinations.key_ranges`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from levada.destinations.data_files.source_types import as_source
from levada.destinations.key_ranges import KeyRange
from levada.pgoutput.text import parse_text
from levada.schema import Column


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """The bounds of a range of keys, in the Arrow types of the source. An empty bound is none.

    Arrow orders numbers, moments and the bytes of texts as `key_ranges` does. It is pickled into tasks.
    """

    key: tuple[Column, ...]
    after: tuple[pa.Scalar, ...]
    upto: tuple[pa.Scalar, ...]

    @classmethod
    def of(cls, key: Sequence[Column], between: KeyRange) -> Self:
        """Return the bounds of a range."""
        after, upto = (
            () if bound is None else tuple(parse_text(c.type, text) for c, text in zip(key, bound, strict=True))
            for bound in (between.after, between.upto)
        )
        return cls(tuple(key), after, upto)

    @property
    def is_whole(self) -> bool:
        """True if every key is in the range."""
        return not (self.after or self.upto)

    def mask(self, columns: Sequence[pa.Array], rows: int) -> pa.Array:
        """Return a mask of the rows in the range. ``columns`` are those of the key in the source's Arrow types."""
        above = _beyond(pc.greater, self.after, columns, rows, at_end=not self.after)
        below = _beyond(pc.less, self.upto, columns, rows, at_end=True)
        return pc.fill_null(pc.and_(above, below), False)

    def may_be_in(self, file: pq.ParquetFile, group: int, name: str) -> bool:
        """Return False if the statistics of a row group exclude all of its rows. ``name`` is the first key column's."""
        metadata = file.metadata.row_group(group)
        for column in (metadata.column(i) for i in range(metadata.num_columns)):
            known = column.statistics if column.path_in_schema == name else None
            if known is None or not known.has_min_max or known.null_count:
                continue
            ends = pa.array([known.min, known.max], file.schema_arrow.field(name).type)
            low, high = as_source(ends, self.key[0].type.arrow)
            above = not self.after or pc.greater_equal(high, self.after[0]).as_py()
            return bool(above and (not self.upto or pc.less_equal(low, self.upto[0]).as_py()))
        return True


def _beyond(
    beyond: pc.Function, bound: Sequence[pa.Scalar], columns: Sequence[pa.Array], rows: int, *, at_end: bool
) -> pa.Array:
    """Return a mask of the rows beyond a bound, column by column. ``at_end`` is the result for rows that equal it."""
    if not bound:
        return pa.repeat(pa.scalar(at_end), rows)
    rest = _beyond(beyond, bound[1:], columns[1:], rows, at_end=at_end)
    return pc.or_(beyond(columns[0], bound[0]), pc.and_(pc.equal(columns[0], bound[0]), rest))
