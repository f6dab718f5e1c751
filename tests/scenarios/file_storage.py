"""A storage in a file, which another author's package has. Reads create nothing. See `their_package`."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levada.errors import StaleEpoch
from levada.stores import Change, Document, DocumentKind, Key, Storage, Versions, changes, selected
from levada.stores.storage import Entry, entry
from levada.values import TableId


@dataclass
class State:
    """The content of the file."""

    epoch: int = 0
    documents: dict[Entry, Document] = field(default_factory=dict)


class FileStorage(Storage):
    """One pipeline's state in a file, which is replaced with each change."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def next_epoch(self, key: Key[Any], check: Callable[[Document | None], object]) -> int:
        with self._writing(None) as state:
            check(state.documents.get(entry(key)))
            state.epoch += 1
            return state.epoch

    def scan(self, kind: DocumentKind[Any]) -> dict[Key[Any], Document]:
        documents = self._read().documents
        return {Key(kind, table, name): d for (of, table, name), d in documents.items() if of == kind.name}

    def get(self, key: Key[Any]) -> Document | None:
        return self._read().documents.get(entry(key))

    def update(self, epoch: int | None, keys: Collection[Key[Any]], change: Change) -> dict[Key[Any], Versions]:
        with self._writing(epoch) as state:
            done = changes(keys, selected(keys, state.documents), change)
            for key, (_, after) in done.items():
                state.documents.pop(entry(key), None)
                if after is not None:
                    state.documents[entry(key)] = after
            return done

    def clear(self, epoch: int, kept: Key[Any]) -> None:
        with self._writing(epoch) as state:
            state.documents = {of: document for of, document in state.documents.items() if of == entry(kept)}

    def close(self) -> None:
        """Do nothing: the file is open only during a call."""

    @contextmanager
    def _writing(self, epoch: int | None) -> Iterator[State]:
        with open(self._path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self._read()
            if epoch is not None and state.epoch > epoch:
                raise StaleEpoch(epoch, state.epoch)
            yield state
            self._write(state)

    def _read(self) -> State:
        if not self._path.exists():
            return State()
        content = json.loads(self._path.read_text())
        documents = {
            (kind, None if table is None else TableId(table), name): document
            for kind, table, name, document in content["documents"]
        }
        return State(content["epoch"], documents)

    def _write(self, state: State) -> None:
        new = self._path.with_suffix(".new")
        with open(new, "w") as file:
            json.dump({"epoch": state.epoch, "documents": [[*of, d] for of, d in state.documents.items()]}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
