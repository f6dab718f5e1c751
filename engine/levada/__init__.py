"""Levada: Postgres tables, kept up to date in a lakehouse.

The names below are the library's interface. Each is imported when it is first used, so that a Spark task that only
decodes rows does not import the rest of the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.lazy import lazy_exports, lazy_names
from levada.version import VERSION

if TYPE_CHECKING:
    from levada.capture import (
        Ack,
        AsyncBatches,
        AsyncChanges,
        Change,
        ChangeCapture,
        ChangeStream,
        Continuity,
        WalChangeCapture,
    )
    from levada.destinations import Destination
    from levada.errors import (
        AccessDenied,
        DestinationChanged,
        InvalidManifest,
        LevadaError,
        NeedsOperator,
        Permanent,
        StaleEpoch,
        Transient,
        Unrepresentable,
    )
    from levada.postgres.connection import PostgresConnection
    from levada.postgres.problems import Problem
    from levada.runtime.config import (
        GuardLimit,
        PipelineConfig,
        PublicationConfig,
        RetryLimits,
        SlotConfig,
        StagingConfig,
        TableConfig,
    )
    from levada.runtime.erasures.eraser import ErasureOptions
    from levada.runtime.host.cleanup import open_cleanup
    from levada.runtime.host.dedicated_copy import DedicatedCopy
    from levada.runtime.host.engine import Engine
    from levada.runtime.host.goals import caught_up
    from levada.runtime.host.outcomes import (
        CaughtUp,
        EngineObserver,
        Refused,
        Stopped,
        Suspended,
        TablesErrored,
        TimedOut,
    )
    from levada.runtime.host.readiness import publication_coverage, start_problems
    from levada.runtime.host.secret_folder import secret_files
    from levada.runtime.host.stored_progress import slot_progress, stored_progress
    from levada.runtime.host.table_requests import resync_tables, retry_tables
    from levada.runtime.host.takeover import take_over_pipeline
    from levada.runtime.host.work_dir import running_progress
    from levada.runtime.limits import Limits
    from levada.runtime.pipeline import Pipeline
    from levada.spec import Manifests, load_manifests
    from levada.status import Progress
    from levada.stores import MemoryStore, PipelineStore, PostgresStore
    from levada.values import (
        CopyMode,
        Deletes,
        Durability,
        Keyless,
        Lsn,
        MetadataColumn,
        OnPartitionGone,
        OnUnrepresentable,
        OnUnstreamable,
        QualifiedTable,
        SnapshotId,
        TableId,
        TableMode,
        Watermark,
    )

__version__ = VERSION

_LAZY_EXPORTS = {
    "AccessDenied": "levada.errors",
    "Ack": "levada.capture",
    "AsyncBatches": "levada.capture",
    "AsyncChanges": "levada.capture",
    "CaughtUp": "levada.runtime.host.outcomes",
    "Change": "levada.capture",
    "ChangeCapture": "levada.capture",
    "ChangeStream": "levada.capture",
    "Continuity": "levada.capture",
    "DedicatedCopy": "levada.runtime.host.dedicated_copy",
    "Deletes": "levada.values",
    "MetadataColumn": "levada.values",
    "Destination": "levada.destinations",
    "DestinationChanged": "levada.errors",
    "Durability": "levada.values",
    "Engine": "levada.runtime.host.engine",
    "EngineObserver": "levada.runtime.host.outcomes",
    "ErasureOptions": "levada.runtime.erasures.eraser",
    "GuardLimit": "levada.runtime.config",
    "InvalidManifest": "levada.errors",
    "LevadaError": "levada.errors",
    "Limits": "levada.runtime.limits",
    "Lsn": "levada.values",
    "Manifests": "levada.spec",
    "MemoryStore": "levada.stores",
    "NeedsOperator": "levada.errors",
    "OnPartitionGone": "levada.values",
    "OnUnrepresentable": "levada.values",
    "CopyMode": "levada.values",
    "Keyless": "levada.values",
    "OnUnstreamable": "levada.values",
    "Permanent": "levada.errors",
    "Pipeline": "levada.runtime.pipeline",
    "PipelineConfig": "levada.runtime.config",
    "PipelineStore": "levada.stores",
    "PostgresConnection": "levada.postgres.connection",
    "PostgresStore": "levada.stores",
    "Problem": "levada.postgres.problems",
    "Progress": "levada.status",
    "PublicationConfig": "levada.runtime.config",
    "QualifiedTable": "levada.values",
    "Refused": "levada.runtime.host.outcomes",
    "RetryLimits": "levada.runtime.config",
    "SlotConfig": "levada.runtime.config",
    "SnapshotId": "levada.values",
    "StagingConfig": "levada.runtime.config",
    "StaleEpoch": "levada.errors",
    "Stopped": "levada.runtime.host.outcomes",
    "Suspended": "levada.runtime.host.outcomes",
    "TableConfig": "levada.runtime.config",
    "TableId": "levada.values",
    "TableMode": "levada.values",
    "TablesErrored": "levada.runtime.host.outcomes",
    "TimedOut": "levada.runtime.host.outcomes",
    "Transient": "levada.errors",
    "Unrepresentable": "levada.errors",
    "WalChangeCapture": "levada.capture",
    "Watermark": "levada.values",
    "caught_up": "levada.runtime.host.goals",
    "load_manifests": "levada.spec",
    "open_cleanup": "levada.runtime.host.cleanup",
    "publication_coverage": "levada.runtime.host.readiness",
    "resync_tables": "levada.runtime.host.table_requests",
    "retry_tables": "levada.runtime.host.table_requests",
    "running_progress": "levada.runtime.host.work_dir",
    "secret_files": "levada.runtime.host.secret_folder",
    "slot_progress": "levada.runtime.host.stored_progress",
    "start_problems": "levada.runtime.host.readiness",
    "stored_progress": "levada.runtime.host.stored_progress",
    "take_over_pipeline": "levada.runtime.host.takeover",
}

__all__ = [
    "AccessDenied",
    "Ack",
    "AsyncBatches",
    "AsyncChanges",
    "CaughtUp",
    "Change",
    "ChangeCapture",
    "ChangeStream",
    "Continuity",
    "CopyMode",
    "DedicatedCopy",
    "Deletes",
    "Destination",
    "DestinationChanged",
    "Durability",
    "Engine",
    "EngineObserver",
    "ErasureOptions",
    "GuardLimit",
    "InvalidManifest",
    "Keyless",
    "LevadaError",
    "Limits",
    "Lsn",
    "Manifests",
    "MemoryStore",
    "MetadataColumn",
    "NeedsOperator",
    "OnPartitionGone",
    "OnUnrepresentable",
    "OnUnstreamable",
    "Permanent",
    "Pipeline",
    "PipelineConfig",
    "PipelineStore",
    "PostgresConnection",
    "PostgresStore",
    "Problem",
    "Progress",
    "PublicationConfig",
    "QualifiedTable",
    "Refused",
    "RetryLimits",
    "SlotConfig",
    "SnapshotId",
    "StagingConfig",
    "StaleEpoch",
    "Stopped",
    "Suspended",
    "TableConfig",
    "TableId",
    "TableMode",
    "TablesErrored",
    "TimedOut",
    "Transient",
    "Unrepresentable",
    "WalChangeCapture",
    "Watermark",
    "caught_up",
    "load_manifests",
    "open_cleanup",
    "publication_coverage",
    "resync_tables",
    "retry_tables",
    "running_progress",
    "secret_files",
    "slot_progress",
    "start_problems",
    "stored_progress",
    "take_over_pipeline",
]

__getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS), lazy_names(__name__, _LAZY_EXPORTS)
