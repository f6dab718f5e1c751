"""Writes of a store that reach its storage in one step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from levada.stores.storage import Change, Document, Key


class WriteBatch:
    """Writes in their order. As keys and one change they are what `Storage.update` takes."""

    def __init__(self) -> None:
        self._count = 0
        # By the key that selects them, because a start writes documents of every table in one batch.
        self._changes: dict[Key[Any], list[tuple[int, Change]]] = {}

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, keys: Collection[Key[Any]], change: Change) -> None:
        """Add a write of the documents that ``keys`` select. Without keys, only the epoch is required."""
        self._count += 1
        for key in dict.fromkeys(keys):
            self._changes.setdefault(key, []).append((self._count, change))

    @property
    def keys(self) -> Collection[Key[Any]]:
        """The keys of all writes."""
        return self._changes.keys()

    def change(self, key: Key[Any], document: Document | None) -> Document | None:
        """Return the document of a key after the writes that select it."""
        selecting = dict(self._changes.get(key, ()))
        if key.name:
            selecting.update(self._changes.get(replace(key, name=""), ()))
        for _, change in sorted(selecting.items()):
            document = change(key, document)
        return document
