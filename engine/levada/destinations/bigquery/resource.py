"""A served table as BigQuery's REST API has it: columns, clusters and partitions. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from levada.destinations.bigquery.layout import CHANGELOG
from levada.destinations.bigquery.settings import Layout, PartitionUnit, Settings
from levada.destinations.bigquery.state import Description
from levada.destinations.bigquery.types import CLUSTERABLE, PARTITIONABLE
from levada.destinations.interface import TableMode
from levada.errors import InvalidManifest, NeedsOperator
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable

_MAX_CLUSTERS: Final = 4


def table_resource(settings: Settings, schema: ReplicatedTableSchema, described: Description) -> dict[str, Any]:
    """Return the resource of a new table.

    Raise InvalidManifest for a layout whose columns do not exist, or whose types BigQuery does not allow there.
    """
    fields = [{"name": c.name, "type": c.type, "mode": "NULLABLE"} for c in described.columns.columns]
    if described.mode is TableMode.CHANGELOG:
        fields += [{"name": name, "type": kind, "mode": mode} for name, kind, mode in CHANGELOG]
    resource: dict[str, Any] = {"schema": {"fields": fields}}
    types = {c.name: c.type for c in described.columns.columns}
    found = _layout(settings, schema.name)
    if found is not None and found.partition_by:
        kind = _type(types, found.partition_by, PARTITIONABLE, schema.name)
        if kind == "DATE" and found.partition_unit is PartitionUnit.HOUR:
            raise _invalid(f"{schema.name}: column {found.partition_by} is a date, which has no hours")
        resource["timePartitioning"] = {"type": found.partition_unit.upper(), "field": found.partition_by}
    if found is not None and found.cluster_by:
        for name in found.cluster_by:
            _type(types, name, CLUSTERABLE, schema.name)
        clusters = list(found.cluster_by)
    else:
        names = [c.name for a in described.key if (c := described.columns.get(a)) is not None]
        clusters = [name for name in names if types[name] in CLUSTERABLE][:_MAX_CLUSTERS]
    if clusters:
        resource["clustering"] = {"fields": clusters}
    return resource


def same_place(resource: Mapping[str, Any], wanted: Mapping[str, Any], columns: Collection[str]) -> bool:
    """Return True if a table has the clusters and partitions of ``wanted``, and at least its columns.

    ``columns`` are the names of the table's columns in lower case.
    """
    names = {f["name"].lower() for f in wanted["schema"]["fields"]}
    return names <= set(columns) and _order(resource) == _order(wanted)


def check_keeps_rows(dataset: str, resource: Mapping[str, Any], *, partitioned: bool = False) -> None:
    """Raise NeedsOperator ``destination_loses_rows`` if the defaults of a dataset would lose rows of a new table.

    They are an expiration of tables or, for a partitioned table, of partitions, and a collation that ignores case.
    """
    if resource.get("defaultTableExpirationMs"):
        what = "expiration of tables, so BigQuery would drop the table"
    elif partitioned and resource.get("defaultPartitionExpirationMs"):
        what = "expiration of partitions, so BigQuery would drop rows"
    elif resource.get("defaultCollation"):
        what = "collation, so keys that differ in case alone would be one row"
    else:
        return
    raise NeedsOperator(
        "destination_loses_rows",
        f"the dataset {dataset} has a default {what}",
        hint="remove the default from the dataset, then: levada resync MANIFEST TABLE",
    )


def _order(resource: Mapping[str, Any]) -> tuple[list[str], str, str]:
    partition = resource.get("timePartitioning") or {}
    clusters = (resource.get("clustering") or {}).get("fields") or []
    return list(clusters), str(partition.get("type") or ""), str(partition.get("field") or "")


def _layout(settings: Settings, table: QualifiedTable) -> Layout | None:
    return next((found for found in settings.layouts if QualifiedTable.parse(found.table) == table), None)


def _type(types: Mapping[str, str], name: str, allowed: frozenset[str], table: QualifiedTable) -> str:
    if name not in types:
        raise _invalid(f"{table} has no column {name}")
    if types[name] not in allowed:
        raise _invalid(f"{table}: BigQuery does not allow column {name} of type {types[name]} there")
    return types[name]


def _invalid(what: str) -> InvalidManifest:
    return InvalidManifest("invalid_manifest", f"spec.destination.bigquery.layouts: {what}")
