"""Bringing a table's columns to a version of the source's; every step may be repeated after a crash."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from levada.destinations.iceberg.catalog import CatalogConfig
from levada.destinations.iceberg.files import DataWriter, Storage, WrittenFile, cast_columns
from levada.destinations.iceberg.layout import Layout, reconcile, unsupported
from levada.destinations.iceberg.table import IcebergTable, Property
from levada.destinations.interface import OnSchemaChange, TableMode
from levada.schema import ReplicatedTableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


def bring_to(table: IcebergTable, schema: ReplicatedTableSchema, mode: TableMode, policy: OnSchemaChange) -> Layout:
    """Change the table's columns to those of the version, in one commit; return them.

    Added columns whose constant the rows that are there must get are noted in a property by the same commit; `fill`
    does it. Raise NeedsOperator for what Iceberg cannot take, before anything is written.
    """
    current = table.layout()
    step = reconcile(current, table.last_field_id, schema, mode, policy)
    if not step.changes:
        return current
    _log.info("%s: %s", table.name, "; ".join(step.changes))
    pending = _pending(table) | {c.attnum for c in step.filled}
    pending &= set(step.layout.attnums)
    table.evolve(
        step.layout,
        {
            Property.COLUMNS.value: step.layout.columns_json(),
            Property.FILL.value: json.dumps(sorted(pending)) if pending else None,
        },
    )
    return table.layout()


def fill(
    table: IcebergTable, schema: ReplicatedTableSchema, layout: Layout, spark: SparkSession, catalog: CatalogConfig
) -> bool:
    """Give rows that are there the constants of added columns, if any wait for it; tell whether files were rewritten.

    PostgreSQL does so without a word in the WAL. No row is written to the table between the column and its filling, so
    every row that is there gets the constant.
    """
    columns = {c.attnum: c for c in schema.columns}
    waiting = [columns[a] for a in sorted(_pending(table)) if a in columns and columns[a].missing_value is not None]
    if not waiting and not _pending(table):
        return False
    from levada.pgoutput.text import parse_text

    done = {Property.FILL.value: None}
    if not waiting or table.is_empty:
        table.set_properties(done)
        return False
    constants = {}
    for column in waiting:
        field = layout.column(column.attnum)
        assert field is not None
        value = parse_text(column.type, column.missing_value)
        if not value.is_valid:
            raise unsupported(schema, f"the default of column {column.name} has no place in {column.type.arrow}")
        constants[field.name] = value
    files = _rewrite(table, layout, constants, spark, catalog)
    table.write(files, mark=None, replacing=True, properties=done)
    return True


def _pending(table: IcebergTable) -> set[int]:
    return set(json.loads(table.properties.get(Property.FILL.value, "[]")))


def _rewrite(
    table: IcebergTable,
    layout: Layout,
    constants: Mapping[str, pa.Scalar],
    spark: SparkSession,
    catalog: CatalogConfig,
) -> list[WrittenFile]:
    rows = spark.read.option("snapshot-id", str(table.snapshot_id)).table(catalog.spark_name(table.name))
    task = _FillTask(table.storage(), layout, constants, str(table.name))
    written = rows.select(*(f"`{f.name.replace('`', '``')}`" for f in layout.fields if f.name not in constants))
    found = written.mapInArrow(task, "path string, rows long, bytes long").collect()
    return [WrittenFile(r.path, r.rows, r.bytes) for r in found]


@dataclass(frozen=True, slots=True)
class _FillTask:
    storage: Storage
    layout: Layout
    constants: Mapping[str, pa.Scalar]
    table: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with DataWriter(self.storage, self.layout.arrow) as writer:
            for batch in batches:
                present = dict(zip(batch.schema.names, batch.columns, strict=True))
                arrays = [
                    pa.repeat(self.constants[f.name], batch.num_rows) if f.name in self.constants else present[f.name]
                    for f in self.layout.fields
                ]
                writer.write(cast_columns(arrays, self.layout.arrow, self.table))
        for written in writer.files:
            yield pa.RecordBatch.from_pydict({"path": [written.path], "rows": [written.rows], "bytes": [written.bytes]})
