"""Writes of a store that reach its storage in one step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from levada.stores.storage import Change, Document, Key


class WriteBatch:
    """Writes in their order. As keys and one change they are what `Storage.update` takes."""

    def __init__(self) -> None:
        self._writes: list[tuple[frozenset[Key[Any]], Change]] = []

    def __bool__(self) -> bool:
        return bool(self._writes)

    def add(self, keys: Collection[Key[Any]], change: Change) -> None:
        """Add a write of the documents that ``keys`` select. Without keys, only the epoch is required."""
        self._writes.append((frozenset(keys), change))

    @property
    def keys(self) -> Collection[Key[Any]]:
        """The keys of all writes."""
        return frozenset[Key[Any]]().union(*(keys for keys, _ in self._writes))

    def change(self, key: Key[Any], document: Document | None) -> Document | None:
        """Return the document of a key after the writes that select it."""
        whole = replace(key, name="")
        for keys, change in self._writes:
            if key in keys or whole in keys:
                document = change(key, document)
        return document
