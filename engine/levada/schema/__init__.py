"""Schemas of tables: columns, keys, versions, and the mapping of PostgreSQL's types to Arrow's.

Pure. `levada.postgres` reads a schema from a catalog, and each destination changes its own schemas.
"""

from levada.schema.table import Column, ExcludedColumn, IdentityKind, ReplicatedTableSchema
from levada.schema.target import TableTarget
from levada.schema.types import ColumnType, Kind, TypeInfo, resolve_type

__all__ = [
    "Column",
    "ColumnType",
    "ExcludedColumn",
    "IdentityKind",
    "Kind",
    "ReplicatedTableSchema",
    "TableTarget",
    "TypeInfo",
    "resolve_type",
]
