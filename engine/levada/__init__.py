"""Levada: Postgres tables, kept up to date in a lakehouse.

The names below are the library's interface. Each is imported when it is first used, so that a Spark task that only
decodes rows does not import the rest of the engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levada.capture import Ack, Change, ChangeCapture, Continuity, WalChangeCapture
    from levada.destinations import Destination
    from levada.errors import LevadaError, NeedsOperator, Permanent, Transient
    from levada.postgres.connection import PostgresConnection
    from levada.runtime.config import PipelineConfig
    from levada.runtime.pipeline import Pipeline
    from levada.status import Progress
    from levada.stores import MemoryStore, PipelineStore, PostgresStore
    from levada.values import Durability, Lsn, QualifiedTable, TableId, Watermark

__version__ = "0.1.0"

_LAZY_EXPORTS = {
    "Ack": "levada.capture",
    "Change": "levada.capture",
    "ChangeCapture": "levada.capture",
    "Continuity": "levada.capture",
    "Destination": "levada.destinations",
    "Durability": "levada.values",
    "LevadaError": "levada.errors",
    "Lsn": "levada.values",
    "MemoryStore": "levada.stores",
    "NeedsOperator": "levada.errors",
    "Permanent": "levada.errors",
    "Pipeline": "levada.runtime.pipeline",
    "PipelineConfig": "levada.runtime.config",
    "PipelineStore": "levada.stores",
    "PostgresConnection": "levada.postgres.connection",
    "PostgresStore": "levada.stores",
    "Progress": "levada.status",
    "QualifiedTable": "levada.values",
    "TableId": "levada.values",
    "Transient": "levada.errors",
    "WalChangeCapture": "levada.capture",
    "Watermark": "levada.values",
}

__all__ = [
    "Ack",
    "Change",
    "ChangeCapture",
    "Continuity",
    "Destination",
    "Durability",
    "LevadaError",
    "Lsn",
    "MemoryStore",
    "NeedsOperator",
    "Permanent",
    "Pipeline",
    "PipelineConfig",
    "PipelineStore",
    "PostgresConnection",
    "PostgresStore",
    "Progress",
    "QualifiedTable",
    "TableId",
    "Transient",
    "WalChangeCapture",
    "Watermark",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY_EXPORTS:
        return getattr(importlib.import_module(_LAZY_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
