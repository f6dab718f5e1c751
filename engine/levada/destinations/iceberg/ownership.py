"""The owner, the key and the mode of an Iceberg table, as its table properties record them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from levada.destinations import fenced
from levada.destinations.iceberg.catalog_config import TableName
from levada.destinations.iceberg.metadata import Property
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.interface import TableMode
from levada.destinations.ownership import UNKNOWN, Owner, TableOwner
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, TableId


@dataclass(frozen=True, slots=True)
class RecordedOwner:
    """The rules of `Owner` over table properties."""

    owner: Owner

    def properties(self, name: TableName, schema: ReplicatedTableSchema) -> dict[str, str]:
        """Return the table properties that record this owner."""
        made = self.owner.of(schema)
        return {
            Property.PIPELINE.value: made.pipeline,
            Property.SOURCE_ID.value: made.source_id,
            Property.NAME.value: str(name),
            Property.TABLE_ID.value: str(int(made.table)),
            Property.SOURCE.value: json.dumps([made.source_name.schema, made.source_name.name]),
        }

    def renamed(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the properties to change so that an own table has the current full name, or an empty dict."""
        name = self.owner.context.full_name
        return {} if properties.get(Property.PIPELINE) == name else {Property.PIPELINE.value: name}

    def require(self, name: TableName, properties: Mapping[str, str], table: TableId) -> None:
        """Raise DestinationChanged unless the table with these properties is that of the source table."""
        self.owner.require(name, owner_of(properties), table, otherwise=f"or drop {name} in the catalog")

    def require_replaceable(
        self, name: TableName, properties: Mapping[str, str], schema: ReplicatedTableSchema
    ) -> None:
        """Raise DestinationChanged unless a copy of the source table may replace the table with these properties."""
        otherwise = f"or drop {name} in the catalog"
        self.owner.require_replaceable(name, owner_of(properties), schema, otherwise=otherwise)


def owner_of(properties: Mapping[str, str]) -> TableOwner:
    """Return the owner of a table. What cannot be parsed is unknown, and an unknown OID is 0."""
    text, source = properties.get(Property.TABLE_ID, ""), UNKNOWN
    table = TableId(int(text) if text.isdecimal() else 0)
    with suppress(ValueError, TypeError):
        schema, name = json.loads(properties.get(Property.SOURCE, ""))
        source = QualifiedTable(str(schema), str(name)) if table else UNKNOWN
    return TableOwner(properties.get(Property.PIPELINE, ""), properties.get(Property.SOURCE_ID, ""), table, source)


def key_property(schema: ReplicatedTableSchema) -> str:
    """Return the key's attnums in ascending order, as a table property."""
    return json.dumps(sorted(schema.key))


def check_same_table(table: IcebergTable, schema: ReplicatedTableSchema, mode: TableMode) -> None:
    """Raise NeedsOperator if the Iceberg table was created for another mode, or has rows of another key."""
    made_as = table.metadata.properties.get(Property.MODE)
    fenced.check_same_table(table.name, schema, mode, made_as=made_as, same_key=has_key(table, schema))


def check_same_mode(table: IcebergTable, schema: ReplicatedTableSchema, mode: TableMode) -> None:
    """Raise NeedsOperator if the Iceberg table was created for another mode."""
    made_as = table.metadata.properties.get(Property.MODE)
    fenced.check_same_table(table.name, schema, mode, made_as=made_as, same_key=True)


def has_key(table: IcebergTable, schema: ReplicatedTableSchema) -> bool:
    """Return True if the key of ``schema`` identifies the rows of the Iceberg table."""
    return table.metadata.properties.get(Property.KEY) == key_property(schema)
