"""The look for tables that were created, renamed or published, between two discoveries.

It costs one query of the catalog, which returns two hashes. Names are read only when the hashes change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import psycopg

from levada.postgres.catalog import CatalogVersion, list_tables, read_catalog_version, read_table_ids
from levada.runtime.config import PipelineConfig
from levada.values import QualifiedTable, TableId

_FOUND_S: Final = 0.06
"""Seconds by table after a look that found some, for a source that creates tables all the time.

A discovery follows, which takes about 100 µs of the source's CPU for a table.
"""
_LISTED_S: Final = 0.004
"""The same after a look that only listed the tables, which takes about 6 µs for each."""


class NewTables:
    """Notices the selected tables that the last look did not see. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._version: CatalogVersion | None = None
        self._selected: frozenset[tuple[QualifiedTable, TableId]] = frozenset()
        self._next = 0.0

    def appeared(self, connection: psycopg.Connection[Any], config: PipelineConfig) -> bool:
        """Return True if a discovery may find new tables. The first look always does."""
        version = read_catalog_version(connection, config.publication.name)
        if version == self._version or self._clock() < self._next:
            return False
        listed = list_tables(connection)
        names = [name for name in listed if config.is_selected(name)]
        selected = frozenset(read_table_ids(connection, names).items())
        # The engine is the one that adds tables to a managed publication.
        published = not config.publication.managed and (
            self._version is None or version.publication != self._version.publication
        )
        found = published or not selected <= self._selected
        self._version, self._selected = version, selected
        self._next = self._clock() + len(listed) * (_FOUND_S if found else _LISTED_S)
        return found
