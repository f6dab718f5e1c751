"""The look for tables that were created, renamed or published, between two discoveries.

It costs one query of the catalog, which returns two hashes, and is made only if a transaction was committed since the
last one. Names are read only when the hashes change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import psycopg

from levada.postgres.catalog import CatalogVersion, list_tables, read_catalog_version, read_snapshot, read_table_ids
from levada.runtime.config import PipelineConfig
from levada.values import QualifiedTable, TableId

_FOUND_S: Final = 0.06
"""Seconds by table after a look that found some, for a source that creates tables all the time.

A discovery follows, which takes about 60 µs of the source's CPU for a table.
"""
_LISTED_S: Final = 0.004
"""The same after a look that only listed the tables, which takes about 6 µs for each."""
_LOOK_S: Final = 0.002
"""The same after a look that saw no change, which takes about 2 µs for each."""


class NewTables:
    """Notices the selected tables that the last look did not see. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._version: CatalogVersion | None = None
        self._selected: frozenset[tuple[QualifiedTable, TableId]] = frozenset()
        self._count = 0
        self._next = 0.0
        self._look_next = 0.0
        self._seen: tuple[psycopg.Connection[Any], str] | None = None
        """The session and the snapshot of the last look, None if it was not evaluated."""

    def appeared(self, connection: psycopg.Connection[Any], config: PipelineConfig) -> bool:
        """Return True if a discovery may find new tables. The first look always does."""
        now = self._clock()
        if now < self._look_next:
            return False
        # Read before the catalog, so that whatever is committed meanwhile makes another look.
        snapshot = read_snapshot(connection)
        if snapshot is not None and self._seen == (connection, snapshot):
            return False
        version = read_catalog_version(connection, config.publication.name)
        self._look_next = now + self._count * _LOOK_S
        if version != self._version and now < self._next:
            return False
        self._seen = None if snapshot is None else (connection, snapshot)
        if version == self._version:
            return False
        listed = list_tables(connection)
        names = [name for name in listed if config.is_selected(name)]
        selected = frozenset(read_table_ids(connection, names).items())
        # The engine is the one that adds tables to a managed publication.
        published = not config.publication.managed and (
            self._version is None or version.publication != self._version.publication
        )
        found = published or not selected <= self._selected
        self._version, self._selected, self._count = version, selected, len(listed)
        self._next = self._clock() + len(listed) * (_FOUND_S if found else _LISTED_S)
        return found
