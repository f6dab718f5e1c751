"""The tables of the source, as a start or a discovery reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from levada.errors import NeedsOperator, Transient
from levada.postgres.catalog import StreamedTable
from levada.postgres.membership import PublicationState
from levada.schema.mask_comments import MaskComments
from levada.values import QualifiedTable, TableId


@dataclass(frozen=True, slots=True)
class SourceTables:
    """The tables of the source: ``published`` are selected and in the publication.

    ``publication`` covers these and all that the store knows. ``unidentified`` are selected and left out, because they
    have no replica identity. ``refusing`` are published without one. ``incomplete`` is set if the publication lacks
    others that cannot be added, and ``locked`` while it lacks others that another session has locked. ``sizes`` are
    the bytes of those ``published`` tables that were read now, see `levada.runtime.source.table_sizes`.
    """

    published: tuple[StreamedTable, ...]
    publication: PublicationState
    unidentified: tuple[QualifiedTable, ...] = ()
    incomplete: NeedsOperator | None = None
    locked: Transient | None = None
    refusing: tuple[QualifiedTable, ...] = ()
    sizes: Mapping[TableId, int] = field(default_factory=dict)
    append_waits: bool = False
    """True if a new session of the stream is needed, which has the tables of the second publication."""
    comments: Mapping[QualifiedTable, MaskComments] | None = None
    """The comments that mask columns, None if they were not read."""
