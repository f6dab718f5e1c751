"""The contract of a destination that writes the first copies of several small tables together.

A small table costs less than the transactions around it. `Destination.group_writer` is optional. Without it the copies
are written one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from levada.copy.rows import TableRows
from levada.schema import TableTarget
from levada.values import TableId, Watermark


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table that the destination does not have yet, with the rows of its copy, which are in memory."""

    target: TableTarget
    rows: TableRows

    @property
    def id(self) -> TableId:
        """The OID of the source table."""
        return self.target.id


class GroupWriter(Protocol):
    """Writes the first copies of several small tables in a few commits. Several threads call it, for other tables each.

    A table that is left out of a result is copied by itself, by `Destination.check_place`,
    `Destination.drop_table_for_copy` and `Destination.write_table_rows`. These report what is wrong with it. So one
    table must not stop the others, and no error of a single table is raised here.
    """

    def free(self, targets: Sequence[TableTarget]) -> Collection[TableId]:
        """Return the tables whose places are free, of which nothing is at the destination, and that may be created.

        Leave out a table that needs more than that, such as one of a former copy.
        """
        ...

    def write(self, tables: Sequence[NewTable], mark: Watermark) -> Collection[TableId]:
        """Create the tables, write the rows, and store ``mark`` for each, under the rules of `write_table_rows`.

        Return the tables whose commits are durable. A table that is left out may have the remains of an interrupted
        copy. Raise only what concerns the pipeline, such as StaleEpoch, or the whole destination.
        """
        ...
