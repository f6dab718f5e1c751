"""Reads the rows of attached partitions under a snapshot of their own, without the other partitions of the table."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from levada.apply.moves import LeafRows, leaf_file
from levada.copy.guard import TableGuard, hold_table
from levada.copy.plan import BlockRange
from levada.copy.range_reader import RangeReader
from levada.destinations.key_index.index import index_errors
from levada.errors import Transient
from levada.postgres.idle_connections import IdleReaders
from levada.postgres.silence import Interrupt
from levada.postgres.slots import copy_slot_name, export_snapshot
from levada.private import private_folders
from levada.runtime.config_ref import ConfigRef
from levada.runtime.copies.outcomes import cancelled_wait
from levada.runtime.copies.source_table import SnapshotTables
from levada.runtime.tables.requests import CopySettings
from levada.stores.interface import PipelineStore
from levada.values import QualifiedTable, TableId

if TYPE_CHECKING:
    from levada.postgres.catalog import Leaf

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, slots=True)
class LeafReader:
    """Reads leaves of the tables of one pipeline. ``sessions`` hold the locks on them."""

    config_ref: ConfigRef
    store: PipelineStore
    sessions: IdleReaders

    def read(
        self,
        table: TableId,
        name: QualifiedTable,
        settings: CopySettings,
        leaves: frozenset[TableId],
        folder: Path,
        cancelled: threading.Event,
    ) -> LeafRows:
        """Write the rows of ``leaves`` to files in ``folder``, which is replaced.

        A leaf that the table does not have in the snapshot is left out. Raise Transient ``copy_cancelled`` once
        ``cancelled`` is set, and the errors of a copy.
        """
        config = self.config_ref.current
        interrupt = cancelled_wait([cancelled], f"reading a partition of {name}")
        with export_snapshot(config.source, copy_slot_name(config.name, table), interrupt) as snapshot:
            found = SnapshotTables(self.config_ref, self.store, self.sessions).look(snapshot, table, name, settings)
            shutil.rmtree(folder, ignore_errors=True)
            private_folders(config.work_dir, folder)
            mine = tuple(leaf for leaf in found.published.leaves if leaf.id in leaves)
            reader = RangeReader(
                config.source,
                snapshot,
                found.schema,
                found.published.row_filter,
                config.on_unrepresentable,
                config.mask_keys,
            )
            counts: dict[TableId, int] = {}
            if mine:
                locks = config.limits.locks
                part = replace(found.published, leaves=mine)
                with hold_table(self.sessions, part, found.schema, found.description, locks, part=True) as guard:
                    for leaf in mine:
                        counts[leaf.id] = _write(reader, leaf, folder, guard, interrupt)
                    guard.release()
            return LeafRows(snapshot.lsn, found.schema, folder, counts, reader.unrepresentable)


def _write(reader: RangeReader, leaf: Leaf, folder: Path, guard: TableGuard, interrupt: Interrupt) -> int:
    """Write the rows of a leaf to its file, and return their number."""
    before = reader.rows
    try:
        with (
            index_errors(folder, "the file of a partition"),
            pa.OSFile(str(leaf_file(folder, leaf.id)), "wb") as sink,
            pa.ipc.new_file(sink, reader.schema.arrow, options=_COMPRESSED) as writer,
        ):
            for batch in reader.batches(BlockRange(leaf.name, 0, None, leaf.bytes)):
                interrupt()
                if (ended := guard.ended()) is not None:
                    raise ended
                writer.write_batch(batch)
    except Transient as error:
        # The guard ends the reader's session, which raises an error of its own.
        if (ended := guard.ended()) is not None and ended is not error:
            raise ended from error
        raise
    return reader.rows - before
