"""Evolution of a table's columns to a version of the source table. Each step can be repeated after a crash."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from levada.copy.spark_tasks import SparkTasks
from levada.copy.tasks import run_tasks
from levada.destinations.data_files.layout import FileLayout
from levada.destinations.data_files.rewritten import FillTask
from levada.destinations.data_files.storage import WrittenFile
from levada.destinations.iceberg.arranging import check_names
from levada.destinations.iceberg.metadata import Property
from levada.destinations.iceberg.scan import live_files
from levada.destinations.iceberg.schema import IcebergSchema, reconcile
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.table_properties import without_bounds
from levada.destinations.interface import OnSchemaChange, TableMode
from levada.destinations.schema_changes import unsupported
from levada.pgoutput.text import parse_text
from levada.schema import ReplicatedTableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


def evolve_to(
    table: IcebergTable, schema: ReplicatedTableSchema, mode: TableMode, policy: OnSchemaChange
) -> IcebergSchema:
    """Change the table's columns to those of ``schema`` in one commit. Return the new columns.

    If existing rows need the constant of an added column, the same commit lists the column in a table property, and
    `backfill` writes the constant. Raise NeedsOperator, without writing, for a change that Iceberg does not support.
    """
    current = table.metadata.layout
    step = reconcile(current, table.metadata.last_field_id, schema, mode, policy)
    if not step.changes:
        return current
    check_names(table, step.layout, schema)
    _log.info("%s: %s", table.name, "; ".join(step.changes))
    table.release_columns(step.layout)
    pending = _pending(table) | {c.attnum for c in step.filled}
    pending &= set(step.layout.attnums)
    table.evolve(
        step.layout,
        {
            **without_bounds(step.layout.uuids, current.uuids),
            Property.COLUMNS.value: step.layout.columns_json(),
            Property.FILL.value: json.dumps(sorted(pending)) if pending else None,
        },
    )
    return table.metadata.layout


def backfill(
    table: IcebergTable, schema: ReplicatedTableSchema, layout: IcebergSchema, files: FileLayout, spark: SparkSession
) -> bool:
    """Write the constants of added columns to existing rows, if any are pending. Return True if files were rewritten.

    PostgreSQL gives existing rows the constant without streaming them. No row is written to the table between the
    addition of a column and this backfill, so all rows in the table get the constant. ``files`` is the layout of new
    files.
    """
    columns = {c.attnum: c for c in schema.columns}
    pending = _pending(table)
    if not pending:
        return False
    constants = {}
    for column in (columns[a] for a in sorted(pending & columns.keys())):
        field = layout.column(column.attnum)
        if field is None or column.missing_value is None:
            continue
        constants[field.name] = pa.repeat(parse_text(column.type, column.missing_value), 1)
        if constants[field.name].null_count:
            raise unsupported(schema, f"{column.type.arrow} cannot represent the default of column {column.name}")
    done = {Property.FILL.value: None}
    if not constants or not table.metadata.facts.data_files:
        table.set_properties(done)
        return False
    written = _rewrite(table, files, constants, spark)
    table.write(written, mark=None, replacing=True, properties=done)
    return True


def _pending(table: IcebergTable) -> set[int]:
    return set(json.loads(table.metadata.properties.get(Property.FILL.value, "[]")))


def _rewrite(
    table: IcebergTable, layout: FileLayout, constants: Mapping[str, pa.Array], spark: SparkSession
) -> list[WrittenFile]:
    """Rewrite all rows with the constants. Each data file is one Spark task."""
    task = FillTask(table.storage(), layout, constants, str(table.name))
    written = run_tasks(
        SparkTasks(spark),
        [partial(task, file) for file in live_files(table)],
        f"new column of {table.name}",
        parallel=spark.sparkContext.defaultParallelism,
        cancelled=threading.Event(),
    )
    return [file for files in written for file in files]
