"""The keys that staged changes of a table touch, for a copy that is resumed. See `levada.copy.kept`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from levada.destinations.fold import key_steps
from levada.destinations.keys import KeyEncoder, Mask, new_seed
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, OLD, OLD_KIND, OP, ORDINAL, UNCHANGED

COMPACT_ROWS: Final = 1 << 20
"""The number of steps from which duplicates are removed. It bounds the memory together with the number of keys."""


@dataclass(frozen=True, slots=True, eq=False)
class StagedKeys:
    """The distinct keys of a range of changes. ``exists`` is a mask of those whose row exists at its end."""

    keys: pa.Table
    exists: Mask
    encoder: KeyEncoder

    @classmethod
    def of(cls, schema: ReplicatedTableSchema, changes: Iterable[pa.RecordBatch]) -> StagedKeys:
        """Read all changes, which are in WAL order and have at least the columns of `columns_of`."""
        encoder = KeyEncoder(schema, new_seed())
        layout = pa.schema([schema.arrow.field(name) for name in encoder.names])
        found = cls(layout.empty_table(), np.zeros(0, np.bool_), encoder)
        waiting: list[tuple[pa.Table, Mask]] = []
        for batch in changes:
            if batch.num_rows:
                waiting.append(key_steps(pa.Table.from_batches([batch]), schema))
            if sum(len(added) for _, added in waiting) >= COMPACT_ROWS:
                found, waiting = found._followed_by(waiting), []
        return found._followed_by(waiting)

    def exist(self, found: pa.Table) -> bool:
        """Return True if ``found`` has exactly the keys that exist at the end, each once, in any order."""
        if found.num_rows != int(self.exists.sum()):
            return False
        wanted = self.encoder.encode(self.keys.filter(pa.array(self.exists)))
        keys = self.encoder.encode(found)
        return bool(wanted.take(wanted.order()).equal(keys.take(keys.order())).all())

    def _followed_by(self, later: list[tuple[pa.Table, Mask]]) -> StagedKeys:
        names = list(self.encoder.names)
        keys = pa.concat_tables([self.keys, *(t.select(names).cast(self.keys.schema) for t, _ in later)])
        exists = np.concatenate([self.exists, *(added for _, added in later)])
        last = np.sort(self.encoder.encode(keys).last())
        return StagedKeys(keys.take(last).combine_chunks(), exists[last], self.encoder)


def columns_of(schema: ReplicatedTableSchema) -> tuple[str, ...]:
    """Return the columns of the changes that `StagedKeys.of` reads."""
    return (*(c.name for c in schema.key_columns), OP, COMMIT_LSN, ORDINAL, OLD_KIND, OLD, UNCHANGED)
