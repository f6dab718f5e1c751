"""The interface of a store's persistence: JSON documents, and few operations on them, each fenced by an epoch.

To keep the state in another place, implement the six abstract methods of `Storage`. `CachedStore` makes a store of it.
No storage knows what a document means. `levada.stores.codecs` does.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from levada.errors import LevadaError, NeedsOperator, StaleEpoch, StatementRefused
from levada.values import TableId

T = TypeVar("T")
V = TypeVar("V")

Document = Mapping[str, Any]
"""A JSON object. It is never changed in place."""


@dataclass(frozen=True, slots=True, eq=False)
class DocumentKind(Generic[T]):
    """A kind of stored fact, with its codec.

    ``pipeline_wide`` is True if a document of the kind may belong to the whole pipeline. Otherwise each one belongs to
    a table. ``cleared_by_copy`` is True if a new copy of a table begins without the table's documents of the kind.
    ``reserve`` is True if the kind's documents may use the last free part of a storage of limited size. The reserve
    ensures that a table without room can still be parked.
    """

    name: str
    encode: Callable[[T], Document]
    decode: Callable[[Document], T]
    pipeline_wide: bool = False
    cleared_by_copy: bool = False
    reserve: bool = False


@dataclass(frozen=True, slots=True)
class Key(Generic[T]):
    """The key of a document of one pipeline. ``table`` is None for a document of the whole pipeline.

    A kind has either one document for each table, without a name, or any number of documents with names. A key without
    a name selects every document of its kind and table.
    """

    kind: DocumentKind[T]
    table: TableId | None = None
    name: str = ""


Entry = tuple[str, TableId | None, str]
"""A key as plain values: the kind's name, the table and the name."""


class Versions(NamedTuple):
    """A document before and after an update. None stands for no document."""

    before: Document | None
    after: Document | None


Change = Callable[[Key[Any], Document | None], Document | None]
"""Returns the new document of a key, or None to delete it. It may run several times, and its last result counts."""


class Storage(ABC):
    """One pipeline's part of a place that stores documents.

    Every write takes the writer's epoch. If a higher one is stored, the write raises `StaleEpoch` and changes nothing.
    If a lower one or none is stored, the place has lost the state, and the write may raise `state_lost`, see
    `require_current`. The check and the change are atomic. A write with the epoch None is never refused. A store calls
    one method at a time. Several stores in several processes may share the place. A method that raises Transient is
    called again, so it must have changed nothing.
    """

    volatile: ClassVar[bool] = False
    """True if the documents end with the process, so that each start begins without state."""
    retries: ClassVar[bool] = False
    """True if the methods repeat themselves while the place is away. Otherwise `CachedStore` calls them again."""
    last_error: LevadaError | None = None
    """The error of the last attempt while a call is being retried, else None."""

    @abstractmethod
    def next_epoch(self, key: Key[Any], check: Callable[[Document | None], object]) -> int:
        """Raise the stored epoch by one, atomically, and return it.

        Call ``check`` with the document of ``key`` in the same step. If it raises an error, change nothing.
        """

    @abstractmethod
    def scan(self, kind: DocumentKind[Any]) -> dict[Key[Any], Document]:
        """Return every document of the kind."""

    @abstractmethod
    def get(self, key: Key[Any]) -> Document | None:
        """Return the key's document, or None."""

    @abstractmethod
    def update(self, epoch: int | None, keys: Collection[Key[Any]], change: Change) -> dict[Key[Any], Versions]:
        """Replace each document that ``keys`` select by the result of ``change``, in one step.

        Call ``change`` with None for a key that selects no document. A storage may write the documents of different
        tables in several steps. Return the documents of all keys that ``change`` was called with. If a write is
        repeated because its response was lost, return what the first attempt has changed.
        """

    @abstractmethod
    def clear(self, epoch: int, kept: Key[Any]) -> None:
        """Delete every document except the one of ``kept``."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources. Do nothing if it is closed."""

    def stop_waiting(self) -> None:  # noqa: B027 - a storage that retries nothing has nothing to end
        """End the waits for a place that does not answer soon, also the one that goes on now. From any thread.

        The process ends. What it cannot write any more is as after a kill.
        """

    def require_epoch(self, epoch: int) -> None:
        """Raise StaleEpoch if the stored epoch is higher."""
        self.put(epoch, {})

    def put(self, epoch: int | None, documents: Mapping[Key[Any], Document]) -> None:
        """Store documents, in place of those with the same keys."""
        self.update(epoch, documents.keys(), lambda key, _: documents[key])

    def delete(self, epoch: int, keys: Collection[Key[Any]]) -> dict[Key[Any], Document]:
        """Delete the documents that ``keys`` select, and return them."""
        done = self.update(epoch, keys, lambda key, _: None)
        return {key: before for key, (before, _) in done.items() if before is not None}


def require_current(mine: int | None, stored: int, pipeline: str, place: str) -> None:
    """Raise the error of a writer whose epoch ``mine`` is not the stored one. None is never refused.

    A higher epoch is another driver's: StaleEpoch. No driver lowers it, so with a lower one the state was lost.
    """
    if mine is None or mine == stored:
        return
    if stored > mine:
        raise StaleEpoch(mine, stored)
    raise state_lost(pipeline, place, f"its epoch there is {stored}, and was {mine}")


def state_lost(pipeline: str, place: str, why: str) -> StatementRefused:
    """Return the error ``store_empty`` of a place that lost a pipeline's state under a process that uses it."""
    return StatementRefused(
        "store_empty",
        f"{place} has lost the state of pipeline {pipeline}: {why}. It was emptied, dropped or restored from a backup",
        hint="restore the store as it was. Without a backup of it, stop the engine, and run: levada check MANIFEST",
    )


def entry(key: Key[Any]) -> Entry:
    """Return a key as plain values."""
    return key.kind.name, key.table, key.name


def selected(keys: Collection[Key[Any]], entries: Mapping[Entry, V]) -> dict[Key[Any], V]:
    """Return the entries that ``keys`` select."""
    found = {key: entries[entry(key)] for key in keys if entry(key) in entries}
    groups = {(key.kind.name, key.table): key for key in keys if not key.name and key not in found}
    if groups:
        for (kind, table, name), value in entries.items():
            if (kind, table) in groups:
                found[replace(groups[kind, table], name=name)] = value
    return found


def changes(keys: Collection[Key[Any]], found: Mapping[Key[Any], Document], change: Change) -> dict[Key[Any], Versions]:
    """Return the result of ``change`` for each document that was found, and for each key that selects none of them."""
    groups = {(key.kind, key.table) for key in found}
    absent = [key for key in keys if key not in found and (key.name or (key.kind, key.table) not in groups)]
    return {key: Versions(found.get(key), change(key, found.get(key))) for key in (*found, *absent)}


def document_text(document: Document) -> str:
    """Return a document as compact JSON in ASCII."""
    return json.dumps(document, separators=(",", ":"))


def parsed_document(text: str, where: str) -> Document:
    """Parse a result of `document_text`. Raise NeedsOperator ``store_damaged`` for other text."""
    with readable_as_written(where):
        document: Document = json.loads(text)
        return document


def decoded(kind: DocumentKind[T], document: Document, where: str) -> T:
    """Return the value of a document. Raise NeedsOperator ``store_damaged`` if it is not of the kind's form."""
    with readable_as_written(where):
        return kind.decode(document)


@contextmanager
def readable_as_written(where: str) -> Iterator[None]:
    """Raise NeedsOperator ``store_damaged`` for an error of what reads the stored text."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise NeedsOperator(
            "store_damaged",
            f"{where} is not as this release of Levada writes it: {type(error).__name__}: {error}",
            hint="run the release of Levada that wrote it, or restore the store from a backup",
        ) from error
