"""The staged log: immutable slices of the WAL as Parquet files, one manifest each.

Writing, listing, reading and removing segments, on any file system. What fills them is `levada.capture`'s work, what
empties them `levada.apply`'s.
"""

from levada.segments.batch import EventBatch, TableEvents
from levada.segments.log import SegmentLog
from levada.segments.manifest import Manifest, SegmentFile
from levada.segments.staged import StagedBatch, StagedTable, TableStart
from levada.segments.staging import Staging
from levada.segments.writer import SegmentWriter

__all__ = [
    "EventBatch",
    "Manifest",
    "SegmentFile",
    "SegmentLog",
    "SegmentWriter",
    "StagedBatch",
    "StagedTable",
    "Staging",
    "TableEvents",
    "TableStart",
]
