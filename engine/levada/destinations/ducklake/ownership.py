"""The owner of a table: a pipeline, by its full name, its source database, and one source table."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from levada.destinations.ducklake.tables import FullName
from levada.destinations.interface import DestinationContext
from levada.errors import DestinationChanged
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableOwner:
    """The owner that the state of a table records. ``source_name`` is the source table's name at the first copy."""

    pipeline: str
    source_id: str
    table: TableId
    source_name: QualifiedTable


@dataclass(frozen=True, slots=True)
class Owner:
    """This pipeline with its source. It also owns the tables of its former owners."""

    context: DestinationContext

    @property
    def source_id(self) -> str:
        """The identity of the source database."""
        return "" if self.context.source is None else str(self.context.source)

    def names(self) -> list[str]:
        """Return the pipeline's full name and those of its former owners."""
        return [self.context.full_name, *self.context.former_names()]

    def of(self, schema: ReplicatedTableSchema) -> TableOwner:
        """Return the owner of the table of a source table."""
        return TableOwner(self.context.full_name, self.source_id, schema.id, schema.name)

    def require_replaceable(self, name: FullName, owner: TableOwner, schema: ReplicatedTableSchema) -> None:
        """Raise DestinationChanged unless a copy of the source table may replace the table of ``owner``.

        It may replace its own table, that of a dropped source table of the same name, and any table of the pipeline's
        former source. The code is ``table_not_ours`` for a table of another owner, and ``destination_collision`` for
        that of another source table.
        """
        source, ours = self.context.source, owner.pipeline in self.names()
        if ours and source is not None and source.is_former(owner.source_id):
            _log.warning("%s is a table of the former source of pipeline %s", name, self.context.full_name)
            return
        if not ours or owner.source_id != self.source_id:
            whose = f"Pipeline {owner.pipeline}" + (" with another source database" if ours else "")
            raise not_ours(name, f"belongs to {whose}, but this is Pipeline {self.context.full_name}")
        if owner.table == schema.id:
            return
        if source is not None and owner.source_name == schema.name and not source.has_table(owner.table):
            _log.warning("%s is the table of an earlier %s, which was dropped", name, schema.name)
            return
        raise DestinationChanged(
            "destination_collision",
            f"{name} is the table of {owner.source_name} (OID {owner.table}),"
            f" not of the table with OID {int(schema.id)}",
            hint="set destinationTable in the TableSync of one of the two",
        )


def not_ours(name: FullName, why: str) -> DestinationChanged:
    """Return the error for a table of another owner."""
    return DestinationChanged(
        "table_not_ours",
        f"{name} exists in the catalog and {why}",
        hint="set destinationTable in the table's TableSync, or rename the existing table",
    )
