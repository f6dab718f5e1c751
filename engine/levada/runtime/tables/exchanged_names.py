"""The tables whose places at the destination follow their names, because names went from one table to another. Pure.

A table that is renamed keeps its place, which costs nothing. That would be wrong where another table has its former
name now, as after ``ALTER TABLE t RENAME TO t_old; ALTER TABLE t_new RENAME TO t``: who reads ``t`` at the destination
would get the rows of ``t_old``. So that one is copied to a place of its name, and then ``t`` to the place that is free.
The same holds for a table that takes the name of one that was dropped.

Of tables that exchange their names none can go first, because each would have to drop the other's rows. They keep their
places.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from levada.runtime.config import PipelineConfig
from levada.runtime.tables.requests import CopySettings
from levada.values import Deletes, OnPartitionGone, QualifiedTable, TableId


def find_followers(
    config: PipelineConfig,
    tables: Mapping[TableId, tuple[QualifiedTable, CopySettings | None]],
    left: Collection[QualifiedTable],
    sizes: Mapping[TableId, int],
) -> set[TableId]:
    """Return the tables whose places must follow their names. ``tables`` has names with the settings of last copies.

    ``left`` are the places of tables that have just left the pipeline. ``sizes`` are the tables' bytes. A table keeps
    its place if the manifest gives it one, or if it is not copied again by itself.
    """
    named = {id_: name for id_, (name, _) in tables.items() if not config.table(name).destination_table}
    held = {before.place: id_ for id_, (_, before) in tables.items() if before is not None}
    moved = {
        id_: before.place
        for id_, (name, before) in tables.items()
        if before is not None
        and id_ in named
        and before.place != name
        and _may_copy(config, name, sizes.get(id_), before)
    }
    wanted, found, free = set(named.values()), set[TableId](), set(left)
    while True:
        more = {
            id_
            for id_ in moved.keys() - found
            if (named[id_] in free or (named[id_] not in held and moved[id_] in wanted))
        }
        if not more:
            return found
        found |= more
        free |= {moved[id_] for id_ in more}


def _may_copy(config: PipelineConfig, table: QualifiedTable, size: int | None, before: CopySettings) -> bool:
    """Return True if a table is copied again by itself, and its former place has no rows that a copy would lack."""
    most, its = config.largest_own_copy, config.table(table)
    if before.lack or before.deletes is not Deletes.APPLY or its.on_partition_gone is OnPartitionGone.KEEP:
        return False
    return its.resyncs_by_itself and (most is None or (size is not None and size <= most))
