"""The key index of one table as a cache: opened on demand, rebuilt if it is damaged, forgotten if it is in doubt."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from levada.destinations.key_index.index import KeyIndex, index_errors
from levada.destinations.keys import key_kind
from levada.schema import ReplicatedTableSchema
from levada.segments.checksums import DamageError

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TableIndex:
    """The folder of one table's key index, and the index while it is open. Not thread-safe."""

    folder: Path
    opened: KeyIndex | None = None

    def open(self, schema: ReplicatedTableSchema) -> KeyIndex:
        """Return the index of the key, which is read from the folder at the first call. Remove one of another key."""
        if self.opened is None or self.opened.key != tuple(sorted(schema.key)):
            self.opened = KeyIndex.open(self.folder, key_kind(schema), key=schema.key)
        return self.opened

    def synced(self, schema: ReplicatedTableSchema, sync: Callable[[KeyIndex], None]) -> KeyIndex:
        """Return the index after ``sync`` has updated it to the table's current snapshot and committed it.

        If the index is damaged, ``sync`` is called again with an empty one, and must rebuild it. An error discards
        uncommitted changes.
        """
        with index_errors(self.folder):
            index = self.open(schema)
            try:
                sync(index)
            except DamageError as error:
                _log.warning("rebuilding the damaged key index in %s: %s", self.folder, error)
                self.forget()
                return self.synced(schema, sync)
            except BaseException:
                index.discard()
                raise
            return index

    def build(self, schema: ReplicatedTableSchema, add: Callable[[KeyIndex], None], snapshot: int) -> None:
        """Build the index of ``snapshot``, which is committed, by ``add``, which gets an empty index.

        An index that cannot be written is forgotten.
        """
        try:
            index = self.open(schema)
            index.clear()
            add(index)
        except OSError as error:
            self._give_up(error)
            return
        self.commit(snapshot)

    def commit(self, snapshot: int) -> None:
        """Make the index that of ``snapshot``, which is committed. If it cannot be written, forget it."""
        if self.opened is None:
            return
        try:
            self.opened.commit(snapshot)
        except (OSError, DamageError) as error:
            self._give_up(error)

    def forget(self) -> None:
        """Remove the index. It is rebuilt from the table on demand."""
        self.opened = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _give_up(self, error: Exception) -> None:
        # The table's commit has succeeded. The next batch rebuilds the index.
        _log.warning("the key index in %s cannot be written: %s", self.folder, error)
        self.forget()
