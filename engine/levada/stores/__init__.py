"""The stores of a pipeline's state: phases, schema versions, epochs, progress.

The destination's own commits, not the store, determine what is *applied*. There are three implementations: memory,
PostgreSQL and ConfigMaps. Each is a `Storage`, which persists the state and fences its writers, below one cache,
`CachedStore`. Other packages add stores by the entry-point group ``levada.stores``.
"""

from levada.stores.cached import CachedStore
from levada.stores.config_map import ConfigMapStore
from levada.stores.interface import (
    CopyOrder,
    Cut,
    DestinationMetadataStore,
    DestinationTableMetadata,
    OwnerRecord,
    PipelineStore,
    SchemaStore,
    StateStore,
    StoreContext,
    TableAction,
    TableControls,
    TableLifecycleStore,
)
from levada.stores.memory import MemoryStorage, MemoryStore
from levada.stores.postgres import PostgresStore
from levada.stores.storage import (
    Change,
    Document,
    DocumentKind,
    Entry,
    Key,
    Storage,
    Versions,
    changes,
    document_text,
    entry,
    parsed_document,
    require_current,
    selected,
)
from levada.stores.workers import table_worker

__all__ = [
    "CachedStore",
    "Change",
    "ConfigMapStore",
    "CopyOrder",
    "Cut",
    "DestinationMetadataStore",
    "DestinationTableMetadata",
    "Document",
    "DocumentKind",
    "Entry",
    "Key",
    "MemoryStorage",
    "MemoryStore",
    "OwnerRecord",
    "PipelineStore",
    "PostgresStore",
    "SchemaStore",
    "StateStore",
    "Storage",
    "StoreContext",
    "TableAction",
    "TableControls",
    "TableLifecycleStore",
    "Versions",
    "changes",
    "document_text",
    "entry",
    "parsed_document",
    "require_current",
    "selected",
    "table_worker",
]
