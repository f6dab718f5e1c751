"""Partitions whose changes cannot be applied to the table that they are streamed as. Pure.

PostgreSQL streams a partition's changes as those of the published root. The old row of a change has the columns of the
partition's own replica identity, but its message says that it has those of the root's. ``ALTER TABLE ... REPLICA
IDENTITY`` of the root changes no partition, and a new partition begins with DEFAULT. Changes of an unlogged partition
are not in the WAL at all, and neither are those of a foreign table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from levada.errors import NeedsOperator
from levada.printable import counted
from levada.values import QualifiedTable, resync_command

_LISTED: Final = 10
"""The number of partitions whose statements a hint lists."""


@dataclass(frozen=True, slots=True)
class LeafFlaw:
    """A property of a partition that makes its streamed changes wrong or keeps them out of the stream.

    ``kind`` is ``identity`` if old rows lack columns of the root's identity, ``unlogged`` or ``foreign``. ``remedy``
    is the SQL that corrects it.
    """

    kind: str
    name: QualifiedTable
    remedy: str

    def to_json(self) -> list[str]:
        """Return the list that `from_json` reads."""
        return [self.kind, self.name.schema, self.name.name, self.remedy]

    @classmethod
    def from_json(cls, data: list[str]) -> LeafFlaw:
        """Parse the array that the catalog query returns. Raise TypeError or ValueError for anything else."""
        kind, schema, name, remedy = map(str, data)
        return cls(kind, QualifiedTable(schema, name), remedy)


def flaw_error(table: QualifiedTable, flaws: Iterable[LeafFlaw]) -> NeedsOperator | None:
    """Return the error of a table that has flawed partitions, None if it has none."""
    found = sorted(flaws, key=lambda flaw: (flaw.kind, flaw.name))
    if not found:
        return None
    alike = sum(flaw.kind == found[0].kind for flaw in found) - 1
    more = f", and {counted(alike, 'more partition')} alike" if alike else ""
    hint = "; ".join(flaw.remedy for flaw in found[:_LISTED])
    if len(found) > _LISTED:
        hint += f"; the same for {counted(len(found) - _LISTED, 'more partition')}"
    hint += f"; then {resync_command(table)}"
    which = f"partition {found[0].name}"
    if found[0].kind == "unlogged":
        reason = f"{which} is unlogged, so its changes are not in the WAL{more}"
        return NeedsOperator("partition_unlogged", f"table {table}: {reason}", hint=hint)
    if found[0].kind == "foreign":
        reason = f"{which} is a foreign table, so its rows are not copied, and its changes are not in the WAL{more}"
        return NeedsOperator("partition_foreign", f"table {table}: {reason}", hint=hint)
    reason = f"{which} has another replica identity, so its changes lack columns of the table's{more}"
    return NeedsOperator("partition_identity", f"table {table}: {reason}", hint=hint)
