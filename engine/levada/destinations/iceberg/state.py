"""What the destination keeps of one table between calls."""

from __future__ import annotations

import random
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from levada.destinations.iceberg.catalog import TableName
from levada.destinations.iceberg.index import KeyIndex
from levada.destinations.iceberg.maintenance import FILES_EVERY_S
from levada.destinations.iceberg.replacement import Replacement
from levada.destinations.iceberg.table import IcebergTable
from levada.schema import ReplicatedTableSchema
from levada.values import TableId, Watermark


@dataclass(slots=True, eq=False)
class TableState:
    """One table: its lock guards everything else here, and every write to the table."""

    id: TableId
    name: TableName
    index_folder: Path
    lock: threading.RLock = field(default_factory=threading.RLock)
    table: IcebergTable | None = None
    loaded_at: float = 0.0
    """`time.monotonic` of when ``table`` was loaded from the catalog."""
    index: KeyIndex | None = None
    schema: ReplicatedTableSchema | None = None
    """The version that was written last."""
    mark: Watermark | None = None
    """What the table was last seen to hold."""
    replacement: Replacement | None = None
    """The copy that is being made to take the table's place."""
    maintained_at: float = 0.0
    """`time.monotonic` of the last look at what maintenance there is."""
    files_due_at: float = field(default_factory=lambda: time.monotonic() + random.uniform(0, FILES_EVERY_S))
    """`time.monotonic` of the next look at the table's files: spread over the tables, and not put off by restarts."""

    def forget(self) -> None:
        """Forget the table, which is no longer there, and its index."""
        self.table = self.mark = None
        self.forget_index()
        self.forget_replacement()

    def forget_index(self) -> None:
        """Forget the index; it is built anew from the table when it is needed."""
        self.index = None
        shutil.rmtree(self.index_folder, ignore_errors=True)

    def forget_replacement(self) -> None:
        """Forget the copy that is being made, with its index; its files are left to who claims the table next."""
        if self.replacement is not None:
            self.replacement.remove_index()
            self.replacement = None
