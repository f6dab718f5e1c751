"""Finds the key columns of encoded keys again, for destinations that delete by key. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.keys import Indices, KeyEncoder, Keys
from levada.schema.changes import OLD


class KeyValues:
    """The key columns of all rows of a batch of changes, old rows included.

    ``changes`` have the layout of `levada.schema.changes`.
    """

    def __init__(self, changes: pa.Table, encoder: KeyEncoder) -> None:
        parts = [changes.select(list(encoder.names))]
        if OLD in changes.column_names and changes.column(OLD).null_count < changes.num_rows:
            old = changes.column(OLD).filter(pc.is_valid(changes.column(OLD)))
            parts.append(pa.table({name: pc.struct_field(old, name) for name in encoder.names}))
        self._rows = pa.concat_tables(parts)
        self._keys = encoder.encode(self._rows)

    def of(self, keys: Keys) -> pa.Table:
        """Return the key columns of keys, which all are keys of the batch, in the same order."""
        return self._rows.take(pa.array(first_places(self._keys, keys)))


def first_places(among: Keys, keys: Keys) -> Indices:
    """Return the index in ``among`` of each of ``keys``. It is ``len(among)`` or more for a key that is missing."""
    if not len(keys):
        return np.empty(0, np.int64)
    both = Keys.concat([among, keys])
    order = both.order(stable=True)
    starts = both.take(order).starts()
    group = np.empty(len(both), np.int64)
    group[order] = np.cumsum(starts) - 1
    # The order is stable, so the first of a group is the one of ``among``, if there is one.
    found: Indices = order[np.flatnonzero(starts)][group[len(among) :]]
    return found
