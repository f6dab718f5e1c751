"""The keys that a table has at the source, to find which rows of a destination the source has deleted.

A copy that takes a part of the rows leaves out rows that the source still has. So what the copy lacks shows nothing
about a row of the destination, and the source is asked for its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from levada.copy.guard import READERS
from levada.copy.keyed_rows import has_literals, keyed_rows
from levada.copy.range_reader import copy_statement
from levada.errors import NeedsOperator
from levada.pgoutput.copybinary import CopyDecoder
from levada.postgres.catalog import PublishedTable
from levada.postgres.connection import PostgresConnection
from levada.postgres.copy_out import copy_out
from levada.postgres.failures import source_errors
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, resync_command

_PLACE: Final = "_levada_place"


class SourceKeys(Protocol):
    """The keys of one table at the source."""

    def has(self, rows: pa.RecordBatch) -> pa.Array:
        """Return for each row whether the source has its key. A row with a NULL in its key is not there."""
        ...


@dataclass(frozen=True, slots=True)
class SnapshotKeys:
    """The keys in the snapshot of the transaction that ``connection`` has open. ``schema`` has the key's columns only.

    Rows outside of ``row_filter`` count as missing.
    """

    connection: WatchedConnection
    schema: ReplicatedTableSchema
    leaves: tuple[QualifiedTable, ...]
    row_filter: str | None

    def has(self, rows: pa.RecordBatch) -> pa.Array:
        """Look the keys up by the index of each leaf."""
        names = [c.name for c in self.schema.columns]
        keys = pa.table({c.name: rows.column(c.name).cast(c.type.arrow) for c in self.schema.columns})
        keys = keys.append_column(_PLACE, pa.array(np.arange(rows.num_rows))).drop_null()
        there = np.zeros(rows.num_rows, np.bool_)
        for part in keyed_rows(self.schema, self.leaves, keys):
            decoder, statement = CopyDecoder(self.schema), copy_statement(self.schema, part, self.row_filter)
            for data, sizes in copy_out(self.connection, statement, f"looking keys up in {part.leaf}"):
                found = pa.Table.from_batches([decoder.decode(data, sizes)]).select(names)
                same = keys.join(found, names, join_type="left semi")
                there[same[_PLACE].to_numpy()] = True
        return pa.array(there)


@contextmanager
def source_keys(
    source: PostgresConnection, schema: ReplicatedTableSchema, published: PublishedTable, lock_wait_s: float
) -> Iterator[SnapshotKeys]:
    """Open a snapshot of the source for the block. ``schema`` is without columns that only the destination has.

    It waits at most ``lock_wait_s`` seconds for a lock. Raise NeedsOperator ``kept_rows_unmovable`` if the keys cannot
    be looked up.
    """
    if not has_literals(schema) or any(c.mask is not None for c in schema.key_columns):
        raise NeedsOperator(
            "kept_rows_unmovable",
            f"the copy of {schema.name} takes a part of its rows, and its key cannot be looked up at the source. So"
            " nothing shows which of the other rows were deleted there",
            hint="set deletes to Apply, which removes kept rows, or copy.mode to All. Then: "
            + resync_command(schema.name),
        )
    columns = replace(schema, columns=tuple(schema.key_columns), identity_attnums=schema.key)
    with source.connect(application=READERS) as connection:
        with source_errors(f"looking for keys of {schema.name}"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", prepare=False)
            connection.execute(f"SET LOCAL lock_timeout = '{int(lock_wait_s * 1000)}ms'", prepare=False)
        leaves = tuple(leaf.name for leaf in published.leaves)
        yield SnapshotKeys(connection, columns, leaves, published.row_filter)
