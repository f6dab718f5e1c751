"""The state of one table that the destination keeps between calls."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from levada.destinations.data_files.file_destination import FileTableState
from levada.destinations.iceberg.arranging import FilePartitions
from levada.destinations.iceberg.catalog_config import TableName
from levada.destinations.iceberg.maintenance import FILES_EVERY_S
from levada.destinations.iceberg.replacement import Replacement
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.vectors import LiveVectors
from levada.destinations.key_index.table_index import TableIndex
from levada.schema import ReplicatedTableSchema
from levada.values import TableId


@dataclass(slots=True, eq=False)
class IcebergState(FileTableState):
    """The state of one table. The lock guards each write to the table too."""

    id: TableId
    name: TableName
    index: TableIndex
    table: IcebergTable | None = None
    loaded_at: float = 0.0
    """The `time.monotonic` value when ``table`` was loaded from the catalog."""
    schema: ReplicatedTableSchema | None = None
    """The version that was written last."""
    vectors: LiveVectors | None = None
    """The deletion vectors of the snapshot that was written or read last."""
    partitions: FilePartitions = field(default_factory=FilePartitions)
    replacement: Replacement | None = None
    """The shadow copy, if there is one."""
    tags: set[str] = field(default_factory=set)
    """The tags of the snapshots that verifications read now."""
    maintained_at: float = 0.0
    """The `time.monotonic` value of the last maintenance."""
    files_due_at: float = field(default_factory=lambda: time.monotonic() + random.uniform(0, FILES_EVERY_S))
    """The `time.monotonic` value from which the table's files are checked.

    It is random, so that checks are spread over the tables, and frequent restarts do not postpone them for ever.
    """

    def forget(self) -> None:
        """Discard the state of a dropped table, with its index and shadow copy."""
        FileTableState.forget(self)
        self.table = self.vectors = None
        self.partitions = FilePartitions()
        self.index.forget()
        self.forget_replacement()

    def forget_replacement(self) -> None:
        """Discard the shadow copy and its index. The next copy removes its files when it takes the lease."""
        if self.replacement is not None:
            self.replacement.remove_index()
            self.replacement = None
