"""The partitions and the order of a table, changed to its settings. Each step can be repeated after a crash."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from levada.destinations.data_files.layout import FileLayout
from levada.destinations.data_files.storage import WrittenFile
from levada.destinations.iceberg.metadata import Property, TableMetadata
from levada.destinations.iceberg.partitioning import (
    FilePartition,
    IcebergArrangement,
    ResolvedSettings,
    SortOrder,
    Spec,
    exceeding,
    next_spec,
    resolve,
)
from levada.destinations.iceberg.schema import IcebergSchema
from levada.destinations.iceberg.settings import TableSettings
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.transforms import representable
from levada.destinations.schema_changes import resync_hint
from levada.errors import DestinationChanged, NeedsOperator
from levada.schema import ReplicatedTableSchema, TableTarget

_log = logging.getLogger(__name__)
_SPARE: Final = 10_000


def arrange_as(
    table: IcebergTable, target: TableTarget, layout: IcebergSchema, *, keeps_rows: bool = True
) -> FileLayout:
    """Give the table the partitions and the order of its settings in one commit. Return the layout of new files.

    ``layout`` has the columns of the files. Old files stay in their partitions. Raise NeedsOperator, without writing,
    if a column is missing or has another type, or, with ``keeps_rows``, if rows of the table do not fit new partitions.
    """
    wanted, spec, order = _planned(table, target, layout)
    if _changes(table, wanted, spec, order):
        _log.info("%s: partitions and order of new files changed to the settings", table.name)
        if keeps_rows:
            _check_rows_fit(table, spec)
        empty = not (wanted.partition_by or wanted.sort_by)
        table.arrange(spec, order, {Property.ARRANGEMENT.value: None if empty else wanted.to_text()})
    return _new_files(table, layout, wanted, spec)


def arranged_already(table: IcebergTable, target: TableTarget, layout: IcebergSchema) -> FileLayout | None:
    """Return what `arrange_as` returns, or None if it would change the table."""
    wanted, spec, order = _planned(table, target, layout)
    return None if _changes(table, wanted, spec, order) else _new_files(table, layout, wanted, spec)


def _planned(
    table: IcebergTable, target: TableTarget, layout: IcebergSchema
) -> tuple[ResolvedSettings, Spec, SortOrder]:
    """Return the settings for these columns, and the table's partitions and order under them."""
    metadata = table.metadata
    before = metadata.arrangement
    settings = target.settings if isinstance(target.settings, TableSettings) else None
    wanted = resolve(settings, layout, target.schema, before)
    order = wanted.order if wanted.order or before.sort_by else metadata.order
    spec = metadata.spec
    if sorted(wanted.terms) != sorted(f.term for f in spec):
        spec = next_spec(wanted.terms, layout, list(metadata.specs.values()), metadata.last_partition_id)
    return wanted, spec, order


def _changes(table: IcebergTable, wanted: ResolvedSettings, spec: Spec, order: SortOrder) -> bool:
    metadata = table.metadata
    return (spec, order) != (metadata.spec, metadata.order) or wanted.to_text() != metadata.arrangement.to_text()


def _new_files(table: IcebergTable, layout: IcebergSchema, wanted: ResolvedSettings, spec: Spec) -> FileLayout:
    if not spec and not wanted.order:
        return layout.files
    metadata, kinds = table.metadata, {f.id: f.type for f in layout.fields if isinstance(f.type, str)}
    # The rows are not in the order that another writer gave to the table.
    order_id = metadata.order_id if wanted.order else 0
    return replace(
        layout.files, arrangement=IcebergArrangement(metadata.spec_id, metadata.spec, order_id, wanted.order, kinds)
    )


def _check_rows_fit(table: IcebergTable, spec: Spec) -> None:
    """Raise Unrepresentable if a data file may have a row that Spark's compaction would put into a wrong partition.

    The bounds in the manifests decide. A file without them may have such a row.
    """
    columns = {f.id: f for f in table.metadata.layout.fields}
    for new in (f for f in spec if f not in table.metadata.spec and f.source_id in columns):
        column = columns[new.source_id]
        limits = representable(new.transform, str(column.type))
        if limits is not None and table.may_exceed(column.name, *limits):
            raise exceeding(new, column.name, str(column.type))


def name_taken(metadata: TableMetadata, layout: IcebergSchema) -> str | None:
    """Return a column of ``layout`` that has the name of a partition by another column, or None.

    Iceberg refuses such a column, also if only a former spec has the partition.
    """
    ids = {f.name: f.id for f in layout.fields}
    living = (f for spec in metadata.specs.values() for f in spec if f.source_id in layout.by_id)
    return next((f.name for f in living if ids.get(f.name, f.source_id) != f.source_id), None)


def check_names(table: IcebergTable, layout: IcebergSchema, schema: ReplicatedTableSchema) -> None:
    """Raise NeedsOperator ``partition_name_taken`` for a column as in `name_taken`."""
    if (name := name_taken(table.metadata, layout)) is not None:
        raise NeedsOperator(
            "partition_name_taken",
            f"{schema.name}: column {name} has the name of a partition of {table.name}, which Iceberg does not allow",
            hint=resync_hint(schema),
        )


@dataclass(slots=True)
class FilePartitions:
    """The partitions of a table's data files, read from the table on demand. A path never changes its partition."""

    known: dict[str, FilePartition] = field(default_factory=dict)

    def of(
        self, table: IcebergTable, paths: Sequence[str], written: Iterable[WrittenFile]
    ) -> list[FilePartition | None]:
        """Return the partitions of data files of the current snapshot, and of ``written``, which is not committed."""
        if not table.metadata.ever_partitioned:
            return [None] * len(paths)
        new = _partitions(table, written)
        if any(path not in self.known and path not in new for path in paths):
            self.known = table.partitions()
        try:
            return [new.get(path) or self.known[path] for path in paths]
        except KeyError as error:
            raise DestinationChanged(
                "table_damaged",
                f"a data file of {table.name} is not in its newest snapshot: {error.args[0]}",
                hint="copy the table again: levada resync MANIFEST TABLE",
            ) from None

    def learn(self, table: IcebergTable, written: Iterable[WrittenFile]) -> None:
        """Add files that are committed now."""
        if len(self.known) > 2 * table.metadata.facts.data_files + _SPARE:
            self.known = {}
            return
        if self.known:
            self.known |= _partitions(table, written)


def _partitions(table: IcebergTable, written: Iterable[WrittenFile]) -> dict[str, FilePartition]:
    """Return the partitions of new files. Those without one belong to the spec that has none."""
    none = FilePartition(table.metadata.unpartitioned_spec)
    return {f.path: f.partition if isinstance(f.partition, FilePartition) else none for f in written}
