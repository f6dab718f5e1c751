"""State in the memory of the process, for tests and trials. After a restart every table is copied again."""
# ruff: noqa: D102 - the interface documents each method

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from levada.stores.cached import CachedStore
from levada.stores.storage import (
    Change,
    Document,
    DocumentKind,
    Entry,
    Key,
    Storage,
    Versions,
    changes,
    entry,
    require_current,
    selected,
)


class MemoryStorage(Storage):
    """A pipeline's state in this process. Stores with the same instance share the state."""

    volatile = True

    def __init__(self) -> None:
        self._epoch = 0
        self._documents: dict[Entry, Document] = {}
        self._lock = threading.Lock()

    def next_epoch(self, key: Key[Any], check: Callable[[Document | None], object]) -> int:
        with self._lock:
            check(self._documents.get(entry(key)))
            self._epoch += 1
            return self._epoch

    def scan(self, kind: DocumentKind[Any]) -> dict[Key[Any], Document]:
        with self._lock:
            return {Key(kind, table, name): d for (of, table, name), d in self._documents.items() if of == kind.name}

    def get(self, key: Key[Any]) -> Document | None:
        with self._lock:
            return self._documents.get(entry(key))

    def update(self, epoch: int | None, keys: Collection[Key[Any]], change: Change) -> dict[Key[Any], Versions]:
        with self._lock:
            self._require(epoch)
            done = changes(keys, selected(keys, self._documents), change)
            for key, (_, after) in done.items():
                if after is None:
                    self._documents.pop(entry(key), None)
                else:
                    self._documents[entry(key)] = after
            return done

    def clear(self, epoch: int, kept: Key[Any]) -> None:
        with self._lock:
            self._require(epoch)
            self._documents = {of: document for of, document in self._documents.items() if of == entry(kept)}

    def close(self) -> None:
        """Do nothing: another store may use this storage later."""

    def _require(self, epoch: int | None) -> None:
        require_current(epoch, self._epoch, "this", "the memory of this process")


class MemoryStore(CachedStore):
    """A store in memory. With another store's ``storage`` it starts from that store's state."""

    def __init__(self, pipeline: str = "", storage: MemoryStorage | None = None) -> None:
        self.storage = storage or MemoryStorage()
        super().__init__(pipeline, self.storage)
