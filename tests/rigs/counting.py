"""A storage that counts what a pipeline writes to its store.

It is that of the store in memory, so the counts are those of calls. Each is a transaction in a store in PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from levada.stores import Change, Key, MemoryStorage
from levada.stores.storage import Versions


class Counting(MemoryStorage):
    """Counts the writes of documents of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def update(self, epoch: int | None, keys: Collection[Key[Any]], change: Change) -> dict[Key[Any], Versions]:
        self.writes += any(key.table is not None for key in keys)
        return super().update(epoch, keys, change)
