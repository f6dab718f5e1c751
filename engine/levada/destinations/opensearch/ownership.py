"""The owner of an index: a pipeline, by its full name, its source database, and one source table."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from levada.destinations.interface import DestinationContext
from levada.errors import DestinationChanged
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableOwner:
    """The owner that an index records in its mapping."""

    pipeline: str
    source_id: str
    table: TableId
    source_name: QualifiedTable
    """The source table's name when the index was created."""

    def to_json(self) -> dict[str, Any]:
        """Return the owner as plain values for JSON."""
        source = [self.source_name.schema, self.source_name.name]
        return {"pipeline": self.pipeline, "sourceId": self.source_id, "tableId": int(self.table), "source": source}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Parse the result of `to_json`."""
        return cls(data["pipeline"], data["sourceId"], TableId(data["tableId"]), QualifiedTable(*data["source"]))


@dataclass(frozen=True, slots=True)
class Owner:
    """This pipeline with its source. It also owns the indices of its former owners."""

    context: DestinationContext

    @property
    def source_id(self) -> str:
        """The identity of the source database."""
        return "" if self.context.source is None else str(self.context.source)

    def of(self, schema: ReplicatedTableSchema) -> TableOwner:
        """Return the owner of the index of a source table."""
        return TableOwner(self.context.full_name, self.source_id, schema.id, schema.name)

    def owns(self, owner: TableOwner, table: TableId) -> bool:
        """Return True if the index is the one of this pipeline's source table."""
        return owner.table == table and owner.source_id == self.source_id and self._is_ours(owner.pipeline)

    def require_replaceable(self, alias: str, owner: TableOwner, schema: ReplicatedTableSchema) -> None:
        """Raise DestinationChanged unless the owner is this source table, or a copy of it may replace the index.

        It may replace the index of a dropped source table of the same name, and any index of the former source. The
        code is ``table_not_ours`` for an index of another owner, and ``destination_collision`` for that of another
        source table.
        """
        source, ours = self.context.source, self._is_ours(owner.pipeline)
        if ours and source is not None and source.is_former(owner.source_id):
            _log.warning("%s is an index of the former source of pipeline %s", alias, self.context.full_name)
            return
        if not ours or owner.source_id != self.source_id:
            whose = f"Pipeline {owner.pipeline}" + (" with another source database" if ours else "")
            raise not_ours(alias, f"belongs to {whose}, but this is Pipeline {self.context.full_name}")
        if owner.table == schema.id:
            return
        if source is not None and owner.source_name == schema.name and not source.has_table(owner.table):
            _log.warning("%s is the index of an earlier %s, which was dropped", alias, schema.name)
            return
        raise DestinationChanged(
            "destination_collision",
            f"{alias} is the index of {owner.source_name} (OID {owner.table}),"
            f" not of the table with OID {int(schema.id)}",
            hint="set destinationTable in the TableSync of one of the two",
        )

    def _is_ours(self, pipeline: str) -> bool:
        # Check the former names last, because reading them needs the store.
        return pipeline == self.context.full_name or pipeline in self.context.former_names()


def not_ours(alias: str, why: str) -> DestinationChanged:
    """Return the error for an index or alias of another owner."""
    return DestinationChanged(
        "table_not_ours",
        f"{alias} exists in OpenSearch and {why}",
        hint="set destinationTable in the table's TableSync, or remove the existing index or alias",
    )
