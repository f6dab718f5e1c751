"""Partitions whose changes cannot be applied to the table that they are streamed as. Pure.

PostgreSQL streams a partition's changes as those of the published root. The old row of a change has the columns of the
partition's own replica identity, but its message says that it has those of the root's. ``ALTER TABLE ... REPLICA
IDENTITY`` of the root changes no partition, and a new partition begins with DEFAULT. Changes of an unlogged partition
are not in the WAL at all, and neither are those of a foreign table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from levada.errors import NeedsOperator
from levada.printable import counted
from levada.values import QualifiedTable, resync_command

LISTED: Final = 10
"""The number of partitions whose statements a hint lists. Those of more are made by a query."""


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
    hint = f"{_remedies(table, found)}; then {resync_command(table)}"
    which = f"partition {found[0].name}"
    if found[0].kind == "unlogged":
        reason = f"{which} is unlogged, so its changes are not in the WAL{more}"
        return NeedsOperator("partition_unlogged", f"table {table}: {reason}", hint=hint)
    if found[0].kind == "foreign":
        reason = f"{which} is a foreign table, so its rows are not copied, and its changes are not in the WAL{more}"
        return NeedsOperator("partition_foreign", f"table {table}: {reason}", hint=hint)
    reason = f"{which} has another replica identity, so its changes lack columns of the table's{more}"
    return NeedsOperator("partition_identity", f"table {table}: {reason}", hint=hint)


def for_each_partition(root: QualifiedTable, action: str, condition: str) -> str:
    """Return a query for psql that runs ``ALTER TABLE`` with an action on partitions that store rows.

    ``condition`` limits them by columns of pg_class. Each statement is a transaction of its own.
    """
    literal = root.sql.replace("'", "''")
    return (
        f"SELECT format('ALTER TABLE %s {action}', relid) FROM pg_partition_tree('{literal}')"
        f" JOIN pg_class ON oid = relid WHERE relkind = 'r' AND {condition} \\gexec"
    )


def _remedies(table: QualifiedTable, flaws: Sequence[LeafFlaw]) -> str:
    """Return the SQL that corrects all flaws."""
    if len(flaws) <= LISTED:
        return "; ".join(flaw.remedy for flaw in flaws)
    statements = []
    if any(flaw.kind == "unlogged" for flaw in flaws):
        statements.append(for_each_partition(table, "SET LOGGED", "relpersistence <> 'p'"))
    if any(flaw.kind == "identity" for flaw in flaws):
        # FULL has the columns of each root's identity.
        statements.append(for_each_partition(table, "REPLICA IDENTITY FULL", "relreplident NOT IN ('f')"))
    return f"in psql: {'; '.join(statements)}"
