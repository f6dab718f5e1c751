"""The staged log: immutable slices of the WAL as Parquet files, one manifest each.

Writing, listing, reading and removing segments, on any file system. What fills them is `levada.capture`'s work, what
empties them `levada.apply`'s.
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
