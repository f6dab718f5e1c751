"""Cuts: tags at the snapshots that hold exactly the changes below an LSN.

A property of each cut has the LSN and the snapshot of its tag, in the same commit as the tag. So a tag that another
writer has made, moved or removed is never taken for a cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

from levada.destinations.fenced import missing
from levada.destinations.iceberg.metadata import CUT
from levada.errors import NeedsOperator, Transient
from levada.values import Lsn

if TYPE_CHECKING:
    from levada.destinations.iceberg.table import IcebergTable
    from levada.destinations.interface import NamedCut


def update_cuts(table: IcebergTable, added: NamedCut | None, removed: Set[str]) -> Mapping[str, Lsn]:
    """Tag the current snapshot for ``added``, remove the tags of other cuts, and return the cuts that there are now.

    ``added`` is not one of ``removed``. The caller has checked that the table is intact. A tag that exists for the same
    LSN stays where it is. Raise CommitConflict if the table changed since it was last read.
    """
    known = table.metadata.cuts
    recorded = table.metadata.properties
    properties: dict[str, str | None] = {CUT + name: None for name in removed if CUT + name in recorded}
    tagged: dict[str, int] = {}
    if added is not None and known.get(added.name) != added.lsn:
        tagged[added.name] = snapshot = _state_at(table, added)
        properties[CUT + added.name] = f"{added.lsn} {snapshot}"
    if properties:
        table.set_tags(tagged, known.keys() & removed, properties)
    return table.metadata.cuts


def _state_at(table: IcebergTable, cut: NamedCut) -> int:
    """Return the current snapshot. Raise an error if it cannot be tagged with the cut's name."""
    metadata = table.metadata
    if metadata.mark is None or metadata.snapshot_id is None:
        raise missing(table.name, None)
    if metadata.mark.lsn > cut.lsn:
        raise Transient(
            "cut_passed",
            f"{table.name} has applied changes up to {metadata.mark.lsn}, beyond cut {cut.name} at {cut.lsn}",
        )
    if cut.name in metadata.refs and cut.name not in metadata.cuts:
        raise NeedsOperator(
            "cut_name_taken",
            f"{table.name} has a branch or tag {cut.name} of another writer",
            hint="choose another name for the cut, or remove that branch or tag",
        )
    return metadata.snapshot_id
