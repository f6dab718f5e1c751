"""A store of one's own: the state of pipelines in an SQLite database on a local disk.

    with Pipeline(config, store=open_store(Path("shop.sqlite"), "shop"), destination=...) as pipeline:

A storage keeps JSON documents by key. `CachedStore` knows what they mean. The storage has two duties: an update is
atomic, also between processes, and a writer with an old epoch changes nothing.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from levada import NeedsOperator, TableId, Transient
from levada.stores import (
    CachedStore,
    Change,
    Document,
    DocumentKind,
    Entry,
    Key,
    Storage,
    Versions,
    changes,
    document_text,
    entry,
    parsed_document,
    require_current,
    selected,
)

SCHEMA = """
CREATE TABLE IF NOT EXISTS epochs (pipeline TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS documents (
    pipeline TEXT NOT NULL, kind TEXT NOT NULL, source_table INTEGER NOT NULL, name TEXT NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (pipeline, kind, source_table, name)
) WITHOUT ROWID;
"""
NO_TABLE = -1
"""Stands for a document that belongs to no table, because NULL is not equal to itself."""
BUSY_S = 30.0


class SqliteStorage(Storage):
    """The documents of one pipeline in an SQLite database."""

    def __init__(self, path: Path, pipeline: str) -> None:
        self._path, self._pipeline = path, pipeline
        self._lock = threading.Lock()
        with self._errors():
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            # A commit is on the disk when it returns, and readers do not wait for writers.
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(SCHEMA)

    def next_epoch(self, key: Key[Any], check: Callable[[Document | None], object]) -> int:
        with self._writing(None):
            check(self._documents(key.kind.name).get(entry(key)))
            epoch = self._epoch() + 1
            self._db.execute("INSERT OR REPLACE INTO epochs VALUES (?, ?)", (self._pipeline, epoch))
            return epoch

    def scan(self, kind: DocumentKind[Any]) -> dict[Key[Any], Document]:
        with self._lock, self._errors():
            found = self._documents(kind.name)
        return {Key(kind, table, name): document for (_, table, name), document in found.items()}

    def get(self, key: Key[Any]) -> Document | None:
        with self._lock, self._errors():
            return self._documents(key.kind.name).get(entry(key))

    def update(self, epoch: int | None, keys: Collection[Key[Any]], change: Change) -> dict[Key[Any], Versions]:
        with self._writing(epoch):
            documents: dict[Entry, Document] = {}
            for kind in {key.kind.name for key in keys}:
                documents |= self._documents(kind)
            done = changes(keys, selected(keys, documents), change)
            for key, (_, after) in done.items():
                self._put(entry(key), after)
            return done

    def clear(self, epoch: int, kept: Key[Any]) -> None:
        with self._writing(epoch):
            document = self._documents(kept.kind.name).get(entry(kept))
            self._db.execute("DELETE FROM documents WHERE pipeline = ?", (self._pipeline,))
            self._put(entry(kept), document)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _writing(self, epoch: int | None) -> Iterator[None]:
        """Run a transaction. Raise an error if another epoch is stored."""
        with self._lock, self._errors():
            # IMMEDIATE takes the write lock now, so that nothing changes between what is read and what is written.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                require_current(epoch, self._epoch(), self._pipeline, str(self._path))
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _epoch(self) -> int:
        row = self._db.execute("SELECT epoch FROM epochs WHERE pipeline = ?", (self._pipeline,)).fetchone()
        return 0 if row is None else int(row[0])

    def _documents(self, kind: str) -> dict[Entry, Document]:
        rows = self._db.execute(
            "SELECT source_table, name, document FROM documents WHERE pipeline = ? AND kind = ?", (self._pipeline, kind)
        )
        return {
            (kind, None if table == NO_TABLE else TableId(table), name): parsed_document(text, f"{self._path}: {kind}")
            for table, name, text in rows
        }

    def _put(self, of: Entry, document: Document | None) -> None:
        kind, table, name = of
        place = (self._pipeline, kind, NO_TABLE if table is None else int(table), name)
        if document is None:
            self._db.execute("DELETE FROM documents WHERE (pipeline, kind, source_table, name) = (?, ?, ?, ?)", place)
        else:
            self._db.execute(
                "INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?)", (*place, document_text(document))
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of the package instead of those of SQLite. The type is the retry policy."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, full, or not readable
                raise Transient("sqlite_unavailable", f"{self._path}: {error}") from error
            hint = f"restore {self._path} from a backup"
            raise NeedsOperator("sqlite_damaged", f"{self._path}: {error}", hint=hint) from error


def open_store(path: Path, pipeline: str) -> CachedStore:
    """Return the store of one pipeline. Several pipelines may share the file."""
    return CachedStore(pipeline, SqliteStorage(path, pipeline))
