"""What a table looks like: columns, keys, versions, and how PostgreSQL's types map to Arrow's.

Pure: reading a schema from a catalog is `levada.postgres`' work, changing a destination's is the destination's.
"""

from levada.schema.table import Column, IdentityKind, ReplicatedTableSchema
from levada.schema.types import ColumnType, Kind, TypeInfo, resolve_type

__all__ = ["Column", "ColumnType", "IdentityKind", "Kind", "ReplicatedTableSchema", "TypeInfo", "resolve_type"]
