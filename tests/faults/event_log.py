"""A pipeline whose destination writes each batch's events to a file, as a program to be killed.

``python -m tests.faults.event_log PORT DATABASE FOLDER ORDERING``
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import ClassVar

from levada import (
    Durability,
    Pipeline,
    PipelineConfig,
    PostgresConnection,
    PostgresStore,
    PublicationConfig,
    SlotConfig,
    StagingConfig,
    Watermark,
)
from levada.destinations import Capabilities, Destination, EventBatch, Ordering, TableRows, TableTarget
from levada.events import Event, RelationEvent

HIDDEN = "hidden"
"""A published table that the pipeline does not select."""


def shown(event: Event) -> str:
    """Return all values of an event in one line."""
    place = f"{type(event).__name__} {event.commit_lsn} {event.ordinal}"
    if isinstance(event, RelationEvent):
        return f"{place} {event.schema.name} {event.schema.snapshot_id} {[c.name for c in event.schema.columns]}"
    if not hasattr(event, "schema"):
        return f"{place} {event!r}"
    old = getattr(event, "old", None)
    return f"{place} {event.schema.name} {getattr(event, 'row', None)!r} {old!r}".replace("\n", "\\n")


class EventLog(Destination):
    """Writes a file for each call, and nothing else. It has no watermark, so changes come again after a kill."""

    name: ClassVar[str] = "event-log"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    def drop_table_for_copy(self, target: TableTarget, epoch: int | None = None) -> None:
        """Do nothing."""

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        (self._folder / f"copy.{target.name.name}").write_text(str(mark.lsn))
        return Durability.DURABLE

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        if events.only_asks:
            return Durability.DURABLE
        names = ".".join(events.changes(t).schema.name.name for t in events.tables)
        path = self._folder / f"{os.getpid():08d}-{next(self._numbers):05d}-{names[:100]}.log"
        with path.open("w") as file:
            for event in events:
                file.write(f"{shown(event)}\n")
            file.write("end\n")
        return Durability.DURABLE


class InOneCall(EventLog):
    """The same with all tables in one call."""

    capabilities: ClassVar[Capabilities] = Capabilities(ordering=Ordering.PIPELINE)


class ByTable(EventLog):
    """The same with one table per call."""

    capabilities: ClassVar[Capabilities] = Capabilities()


def main() -> None:
    """Run until the process is killed."""
    port, database, folder, ordering = sys.argv[1:]
    where = Path(folder)
    source = PostgresConnection("127.0.0.1", int(port), database, sslmode="disable", user="postgres")
    config = PipelineConfig(
        name="log",
        source=source,
        slot=SlotConfig("levada_log"),
        publication=PublicationConfig("levada_log"),
        staging=StagingConfig(str(where / "staging"), durable=True),
        work_dir=where / "work",
        selects=lambda table: table.schema == "public" and table.name != HIDDEN,
        batch_fill_s=0.1,
        batch_rows=5000,
        freshness_s=0.5,
        discovery_s=1.0,
    )
    kind = InOneCall if ordering == "pipeline" else ByTable
    with Pipeline(config, store=PostgresStore(source, "log"), destination=kind(where)) as running:
        running.wait()


if __name__ == "__main__":
    main()
