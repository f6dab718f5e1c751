"""Where a pipeline's decisions live: phases, schema versions, epochs, progress.

What is *applied* is not decided here but by the destination's own commits. Implementations: memory, PostgreSQL,
ConfigMaps. Each is a `Storage` (what is kept, and who may write) beneath one cache, `CachedStore`.
"""

from levada.stores.cached import CachedStore
from levada.stores.config_map import ConfigMapStore
from levada.stores.interface import (
    CopyOrder,
    OwnerRecord,
    PipelineStore,
    SchemaStore,
    StateStore,
    TableAction,
    TableControls,
    TableLifecycleStore,
)
from levada.stores.memory import MemoryStorage, MemoryStore
from levada.stores.postgres import PostgresStore
from levada.stores.storage import Storage, table_worker

__all__ = [
    "CachedStore",
    "ConfigMapStore",
    "CopyOrder",
    "MemoryStorage",
    "MemoryStore",
    "OwnerRecord",
    "PipelineStore",
    "PostgresStore",
    "SchemaStore",
    "StateStore",
    "Storage",
    "TableAction",
    "TableControls",
    "TableLifecycleStore",
    "table_worker",
]
