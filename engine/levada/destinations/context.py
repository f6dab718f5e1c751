"""The context of a destination: its pipeline's names and folders, and the questions it may ask about the source."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from levada.destinations.check_jvm import CheckJvm
from levada.values import OnSchemaChange, QualifiedTable, TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Source(Protocol):
    """The questions that a destination may ask about the source. The methods raise Transient if it does not answer."""

    def __str__(self) -> str:
        """Return the source's identity, which is unique to one database of one server."""
        ...

    def is_former(self, identity: str) -> bool:
        """Return True if the pipeline read from the source of this identity earlier."""
        ...

    def has_table(self, table: TableId) -> bool:
        """Return True if the source has a table with this OID, under any name."""
        ...

    def clock(self) -> float:
        """Return the time of the source's server, in seconds since 1970."""
        ...

    def table_name(self, table: TableId) -> QualifiedTable | None:
        """Return the current name of the table with this OID, or None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class DestinationContext:
    """The engine's context for a destination that is created from a manifest. It has no settings of tables.

    ``work_dir`` is a local folder for caches, which may be lost. ``spark`` is the engine's session for a destination
    with the capability ``spark``, else None. ``credentials`` is a mounted folder with one file per key, or None.
    ``source`` identifies the source, so that a pipeline of the same name with another source does not own the same
    tables. ``only_checks`` is True in
    `levada check`, when the destination must not create anything, not even in `Destination.startup`. ``namespace`` is
    the namespace of the Pipeline, and empty outside of Kubernetes. ``former_names`` reads the full names of the
    pipeline's former owners from the store. The pipeline owns their tables. ``jvm`` is given in place of ``spark`` when
    a destination with the capability ``checks_without_spark`` is checked in a process without a session.
    """

    pipeline: str
    work_dir: Path
    spark: SparkSession | None = None
    credentials: Path | None = None
    on_schema_change: OnSchemaChange = OnSchemaChange.PROPAGATE
    source: Source | None = None
    only_checks: bool = False
    namespace: str = ""
    former_names: Callable[[], Collection[str]] = tuple
    jvm: CheckJvm | None = None

    @property
    def full_name(self) -> str:
        """Return the pipeline's name, prefixed with its namespace if it has one."""
        return f"{self.namespace}/{self.pipeline}" if self.namespace else self.pipeline
