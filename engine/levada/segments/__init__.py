"""The staged log: immutable segments of the WAL as Parquet files, each with a manifest.

This package writes, lists, reads and removes segments on any file system. `levada.capture` writes them, and
`levada.apply` reads them.
"""

from levada.segments.log import SegmentLog
from levada.segments.manifest import Manifest
from levada.segments.staged import StagedBatch, StagedTable, TableStart
from levada.segments.staging import Staging
from levada.segments.writer import SegmentWriter

__all__ = [
    "Manifest",
    "SegmentLog",
    "SegmentWriter",
    "StagedBatch",
    "StagedTable",
    "Staging",
    "TableStart",
]
