"""The rows of partitions that are gone, by the partitions' bounds, and that a destination keeps.

A copy of a table takes over these rows alone from the table before it, if the table keeps no deleted rows. Others that
only the table has were deleted while nothing was applied to it.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from levada.runtime.tables.baseline import Baseline
from levada.schema import ReplicatedTableSchema
from levada.schema.kept_rows import EVERY_ROW
from levada.schema.partitions import KeyColumn, Region, region_of
from levada.schema.storage import TableStorage
from levada.stores.interface import PipelineStore
from levada.values import TableId


def storage_subject(table: TableId) -> str:
    """Return the store's key of a table's baseline."""
    return f"storage_{int(table)}"


def _kept_subject(table: TableId) -> str:
    return f"kept_regions_{int(table)}"


def _former_subject(table: TableId) -> str:
    return f"former_storage_{int(table)}"


def kept_region(store: PipelineStore, table: TableId) -> Region | None:
    """Return the rows of all partitions of a table whose rows were kept, None without any.

    They are all rows if the bounds of one do not show its rows exactly.
    """
    text = store.get_fingerprint(_kept_subject(table))
    return None if text is None else Region.from_json(json.loads(text))


def add_kept_region(store: PipelineStore, table: TableId, region: Region | None) -> None:
    """Record the rows of partitions that are kept. None stands for rows that their bounds do not show exactly."""
    known = kept_region(store, table)
    after = EVERY_ROW if region is None else region if known is None else known.union(region)
    if after != known:
        store.store_fingerprint(_kept_subject(table), json.dumps(after.to_json()))


def keep_former_storage(store: PipelineStore, table: TableId) -> None:
    """Keep the baseline of a table that is copied again until `add_gone_partitions` has compared it with the copy."""
    text = store.get_fingerprint(storage_subject(table))
    if text is not None:
        store.store_fingerprint(_former_subject(table), text)


def add_gone_partitions(
    store: PipelineStore, table: TableId, now: TableStorage, version: ReplicatedTableSchema
) -> Region | None:
    """Record the rows of partitions that a copy from the storage ``now`` does not have. Return all that are kept.

    While a table waits for its copy, no statement on its partitions is evaluated. A TRUNCATE of a partition cannot be
    distinguished from a rewrite then.
    """
    text = store.get_fingerprint(storage_subject(table)) or store.get_fingerprint(_former_subject(table))
    if text is not None:
        before = Baseline.from_text(text).storage_but_for(())
        if gone := before.leaves.keys() - now.leaves.keys() - {table}:
            add_kept_region(store, table, lost_region(before, gone, version))
    return kept_region(store, table)


def lost_region(before: TableStorage, gone: Collection[TableId], version: ReplicatedTableSchema) -> Region | None:
    """Return the rows of the leaves ``gone`` of a table, or None if their bounds do not show them exactly."""
    enums = {oid for oid, kind in before.types.items() if kind.kind == "e"}
    columns = {
        held.name: KeyColumn(attnum, column.type.kind, column.type_oid, column.type_oid in enums)
        for attnum, held in before.columns.items()
        # The destination has no value of a masked column that could be compared with a bound.
        if (column := version.by_attnum.get(attnum)) is not None and column.mask is None
    }
    return region_of(gone, {oid: leaf.path for oid, leaf in before.leaves.items()}, before.keys, columns)
