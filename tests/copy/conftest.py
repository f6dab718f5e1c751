"""What a copy of one table needs: a publication, its schema, an exported snapshot, and processes to run in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.conftest import Database

from levada.copy.process_tasks import ProcessTasks
from levada.copy.snapshot import SnapshotRows
from levada.copy.spark_tasks import SparkTasks
from levada.copy.tasks import TaskRunner
from levada.postgres.catalog import published_tables, read_table_schema
from levada.postgres.slots import export_snapshot
from levada.values import OnUnrepresentable

_slots = itertools.count(1)

CopyOf = Callable[..., SnapshotRows]


@pytest.fixture(scope="session")
def processes() -> Iterator[ProcessTasks]:
    """Worker processes, forked from one process for the whole run."""
    runner = ProcessTasks()
    yield runner
    runner.close()


@pytest.fixture(params=["processes", "spark"])
def runner(request: pytest.FixtureRequest) -> TaskRunner:
    """Each place where tasks run: worker processes, and Spark."""
    if request.param == "spark":
        return SparkTasks(request.getfixturevalue("spark"))
    processes: ProcessTasks = request.getfixturevalue("processes")
    return processes


@pytest.fixture
def copy_of(db: Database, runner: TaskRunner) -> Iterator[CopyOf]:
    """Begin the copy of a table of publication ``pub``: its rows as of now, whatever happens to it afterwards."""
    with ExitStack() as held:

        def begin(
            table: str, *, connections: int = 2, policy: OnUnrepresentable = OnUnrepresentable.ERROR, **kwargs: Any
        ) -> SnapshotRows:
            with db.connect() as c:
                published = next(t for t in published_tables(c, "pub") if t.name.name == table)
                schema = read_table_schema(c, published.id, columns=published.column_attnums, policy=policy)
            snapshot = held.enter_context(export_snapshot(db.connection, f"levada_test_copy_{next(_slots)}"))
            return SnapshotRows(
                runner, db.connection, snapshot, published, schema, connections=connections, policy=policy, **kwargs
            )

        yield begin
