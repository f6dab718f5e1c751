"""A table at one LSN on both sides."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass

from levada.copy.range_reader import RangeReader
from levada.destinations.verification import FixedTable
from levada.runtime.tables.cut_state import Held
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.values import Lsn
from levada.verify.source_table import SourceTable


@dataclass(frozen=True, slots=True)
class Moment:
    """A table at one LSN: in the source's snapshot, and at the destination."""

    source: SourceTable
    schema: ReplicatedTableSchema
    target: TableTarget
    lake: FixedTable
    lsn: Lsn
    held: Held
    reader: RangeReader
    """Reads whole rows of the source under the snapshot."""
    versions: ExitStack
    """Closes each version of the table at the destination."""
    repaired: threading.Event
    """Set once the table was repaired."""
