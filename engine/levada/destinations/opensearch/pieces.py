"""Cuts the changes of a batch into pieces of a bounded size. Pure.

A piece ends where a block of `levada.destinations.opensearch.versions` ends, so that no two pieces have the same
version.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from levada.destinations.opensearch.versions import Versions, block_ends, versions_of
from levada.schema.changes import COMMIT_LSN, ORDINAL
from levada.segments.batch import TableEvents
from levada.values import Lsn

_MOST_ROWS: Final = 50_000
_MOST_BYTES: Final = 32 << 20
"""The size of a piece, in rows and in Arrow bytes, if the batch's own limits are not lower.

A block that is larger is one piece.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Changes in WAL order. ``version`` is the version of the last one."""

    rows: pa.Table
    version: int


def pieces(
    events: TableEvents,
    after: Lsn,
    above: int,
    truncated_before: tuple[int, int] | None = None,
    stop: int | None = None,
) -> Iterator[Piece]:
    """Yield the changes with commit LSN ``after`` or higher and a version over ``above``, in WAL order.

    Changes before the TRUNCATE at ``truncated_before`` are left out. A piece ends with version ``stop``, if there is a
    change of it.
    """
    table = str(events.schema.name)
    most_rows, most_bytes = min(_MOST_ROWS, events.limits.piece_rows), min(_MOST_BYTES, events.limits.piece_bytes)
    waiting: list[pa.Table] = []
    held: list[Versions] = []
    rows = size = 0
    for batch in events.scan():
        kept, versions = _kept(batch, versions_of(batch, table), after, above, truncated_before)
        if not len(versions):
            continue
        waiting.append(kept)
        held.append(versions)
        rows += kept.num_rows
        size += kept.nbytes
        crosses = stop is not None and held[0][0] <= stop < versions[-1]
        if rows < most_rows and size < most_bytes and not crosses:
            continue
        changes, all_versions = pa.concat_tables(waiting), np.concatenate(held)
        # The last block may continue in the next batch of rows.
        ends = block_ends(all_versions)[:-1]
        start = 0
        while len(ends):
            end = int(ends[-1])
            if stop is not None and all_versions[start] <= stop < all_versions[end - 1]:
                end = int(np.searchsorted(all_versions, stop, side="right"))
            yield Piece(changes.slice(start, end - start), int(all_versions[end - 1]))
            start, ends = end, ends[ends > end]
        waiting, held = [changes.slice(start)], [all_versions[start:]]
        rows, size = waiting[0].num_rows, waiting[0].nbytes
    yield from _rest(waiting, held, stop)


def _rest(waiting: list[pa.Table], held: list[Versions], stop: int | None) -> Iterator[Piece]:
    if not waiting:
        return
    changes, versions = pa.concat_tables(waiting), np.concatenate(held)
    ends = [len(versions)]
    if stop is not None and versions[0] <= stop < versions[-1]:
        ends.insert(0, int(np.searchsorted(versions, stop, side="right")))
    start = 0
    for end in ends:
        yield Piece(changes.slice(start, end - start), int(versions[end - 1]))
        start = end


def _kept(
    batch: pa.RecordBatch, versions: Versions, after: Lsn, above: int, truncated_before: tuple[int, int] | None
) -> tuple[pa.Table, Versions]:
    lsn, ordinal = batch.column(COMMIT_LSN).to_numpy(), batch.column(ORDINAL).to_numpy()
    kept = (lsn >= int(after)) & (versions > above)
    if truncated_before is not None:
        at, number = truncated_before
        kept &= (lsn > at) | ((lsn == at) & (ordinal >= number))
    rows = pa.Table.from_batches([batch])
    return (rows, versions) if kept.all() else (rows.filter(pa.array(kept)), versions[kept])
