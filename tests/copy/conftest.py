"""The surroundings of one table's copy: a publication, its schema, an exported snapshot, and processes to run in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.process_tasks import CopyOf, processes, runner

from levada.copy.plan import RANGES
from levada.copy.snapshot import SnapshotRows
from levada.copy.tasks import TaskRunner
from levada.postgres.catalog import published_tables, read_table_schema
from levada.postgres.slots import export_snapshot
from levada.values import OnUnrepresentable

__all__ = ["processes", "runner"]

_slots = itertools.count(1)


@pytest.fixture
def copy_of(db: Database, runner: TaskRunner) -> Iterator[CopyOf]:
    """Begin the copy of a table of publication ``pub``: its rows as of now, whatever happens to it afterwards."""
    with ExitStack() as held:

        def begin(
            table: str,
            *,
            connections: int = 2,
            policy: OnUnrepresentable = OnUnrepresentable.ERROR,
            in_process_bytes: int = 0,
            **kwargs: Any,
        ) -> SnapshotRows:
            with db.connect() as c:
                published = next(t for t in published_tables(c, "pub") if t.name.name == table)
                schema = read_table_schema(c, published.id, columns=published.column_attnums, policy=policy)
            snapshot = held.enter_context(export_snapshot(db.connection, f"levada_test_copy_{next(_slots)}"))
            # Tables of tests are small, and would be read in this process.
            kwargs["limits"] = replace(kwargs.get("limits", RANGES), in_process_bytes=in_process_bytes)
            return SnapshotRows(
                runner, db.connection, snapshot, published, schema, connections=connections, policy=policy, **kwargs
            )

        yield begin
