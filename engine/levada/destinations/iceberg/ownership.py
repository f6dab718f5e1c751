"""The owner of an Iceberg table: a pipeline, by its full name, its source database, and one source table."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from levada.destinations.iceberg.catalog_config import TableName
from levada.destinations.iceberg.metadata import Property
from levada.destinations.interface import DestinationContext
from levada.destinations.ownership import collision
from levada.errors import DestinationChanged
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Owner:
    """A pipeline with its source.

    A pipeline of the same name in another namespace, or with another source, is another owner. The pipeline also owns
    the tables of its former owners.
    """

    context: DestinationContext

    def properties(self, name: TableName, schema: ReplicatedTableSchema) -> dict[str, str]:
        """Return the table properties that record this owner."""
        return {
            Property.PIPELINE.value: self.context.full_name,
            Property.SOURCE_ID.value: self._source_id,
            Property.NAME.value: str(name),
            Property.TABLE_ID.value: str(int(schema.id)),
            Property.SOURCE.value: json.dumps([schema.name.schema, schema.name.name]),
        }

    def owns(self, properties: Mapping[str, str]) -> bool:
        """Return True if this owner owns the table with these properties."""
        return properties.get(Property.SOURCE_ID) == self._source_id and self._has_our_name(properties)

    def owned(self, properties: Mapping[str, str]) -> bool:
        """Return True if this pipeline wrote the table from a former source."""
        source, made_for = self.context.source, properties.get(Property.SOURCE_ID)
        former = source is not None and bool(made_for) and source.is_former(str(made_for))
        return former and self._has_our_name(properties)

    def renamed(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the properties to change so that an own table has the current full name, or an empty dict."""
        name = self.context.full_name
        return {} if properties.get(Property.PIPELINE) == name else {Property.PIPELINE.value: name}

    def require(
        self,
        name: TableName,
        properties: Mapping[str, str],
        table: TableId,
        wanted: QualifiedTable | None = None,
    ) -> None:
        """Raise DestinationChanged unless this owner owns the table, and it is the one of the source table.

        The code is ``table_not_ours`` for a table of another owner, and ``destination_collision`` for that of another
        source table. ``wanted`` is the name of the source table, if it is known.
        """
        if not self.owns(properties):
            raise DestinationChanged(
                "table_not_ours",
                f"{name} exists and {self._owner(properties)}",
                hint="set destinationTable in the table's TableSync, or move the existing table away",
            )
        owner = table_id_of(properties)
        if owner != table:
            raise collision(
                name,
                owner or TableId(0),
                source_of(properties),
                self.context.source,
                table,
                wanted,
                otherwise=f"or drop {name} in the catalog",
            )

    def require_replaceable(
        self, name: TableName, properties: Mapping[str, str], schema: ReplicatedTableSchema
    ) -> None:
        """Raise DestinationChanged as `require` does, unless a copy of the source table may replace the table."""
        if not self.may_replace(name, properties, schema):
            self.require(name, properties, schema.id, schema.name)

    def may_replace(self, name: TableName, properties: Mapping[str, str], schema: ReplicatedTableSchema) -> bool:
        """Return True if the table belongs to a former source table.

        That is a dropped source table of the same name, or any table of the pipeline's former source.
        """
        former, source = table_id_of(properties), self.context.source
        if self.owned(properties):
            _log.warning("%s is a table of the former source of pipeline %s", name, self.context.full_name)
            return True
        if source is None or former in (None, schema.id) or source_of(properties) != schema.name:
            return False
        if not self.owns(properties) or source.has_table(former):
            return False
        _log.warning("%s is the table of an earlier %s (OID %d), which was dropped", name, schema.name, former)
        return True

    @property
    def _source_id(self) -> str:
        return "" if self.context.source is None else str(self.context.source)

    def _has_our_name(self, properties: Mapping[str, str]) -> bool:
        named = properties.get(Property.PIPELINE)
        # Check the former names last, because reading them needs the store.
        return bool(named) and (named == self.context.full_name or named in self.context.former_names())

    def _owner(self, properties: Mapping[str, str]) -> str:
        pipeline = properties.get(Property.PIPELINE)
        if not pipeline:
            return "was not created by Levada"
        if pipeline != self.context.full_name:
            return f"belongs to Pipeline {pipeline}, but this is Pipeline {self.context.full_name}"
        return f"belongs to another Pipeline {pipeline} with another source database"


def table_id_of(properties: Mapping[str, str]) -> TableId | None:
    """Return the OID of the source table, or None if the property cannot be parsed."""
    text = properties.get(Property.TABLE_ID, "")
    return TableId(int(text)) if text.isdecimal() else None


def source_of(properties: Mapping[str, str]) -> QualifiedTable | None:
    """Return the source table's name when the Iceberg table was created, or None if it cannot be parsed."""
    try:
        schema, name = json.loads(properties.get(Property.SOURCE, ""))
    except (ValueError, TypeError):
        return None
    return QualifiedTable(str(schema), str(name))
