"""Detection of statements after which rows at the destination differ from the source. Pure.

PostgreSQL streams no rows for ``ALTER COLUMN ... TYPE``, ``DROP EXPRESSION`` and ``ALTER TYPE``, nor for a partition
that is attached, detached, dropped or truncated below a published root. Rows at the destination then keep their old
values.

============================== ============================= =================================================
Statement                      New file (``filenode``)       New version of a column (``xmin``)
============================== ============================= =================================================
``ALTER COLUMN TYPE``, rewrite yes                           yes, in the same transaction as the relation's row
``ALTER COLUMN TYPE``, without no                            yes
``SET NOT NULL``, ``RENAME``   no                            yes
``VACUUM FULL``, ``CLUSTER``   yes                           no, except columns that were added with a default, which
                                                             stays the same
``TRUNCATE``                   yes                           no
``SET LOGGED``, ``TABLESPACE`` yes                           no
============================== ============================= =================================================

A new file together with a new version of a column counts as a rewrite. That is wrong if two statements of different
kinds come between two readings of the catalog, or if a transaction alters a column and truncates the table. The event
trigger distinguishes these, because each of its announcements shows the state after one statement. Without it, the
table is then copied without need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from levada.schema.retypes import Cast
from levada.schema.storage import ColumnStorage, LeafStorage, TableStorage
from levada.values import TableId

_WIDENINGS: Final = ((21, 23, 20), (700, 701))
"""int2, int4, int8 and float4, float8: PostgreSQL's cast from one type to a later one of its row keeps every value."""
_LONGER: Final = frozenset({1043, 1083, 1114, 1184, 1266, 1562, 1700})
"""Types whose modifier is the highest length, precision or number of digits of a second. A value below it is kept."""
_NUMERIC: Final = 1700
_TIMESTAMPS: Final = frozenset({1114, 1184})
"""timestamp and timestamptz, which have the same representation of a moment in UTC."""
_TEXTS: Final = frozenset({25, 1043})
"""text and varchar, which have the same representation."""


@dataclass(frozen=True, slots=True)
class RowsChanged:
    """A change of existing rows at the source that was not streamed. ``what`` completes the message "table T: ...".

    ``gone`` has the partitions that the table has lost, ``arrived`` those that were attached with rows, or that were
    detached for a while, and ``renewed`` those with a new file, if that is the change. They are all of the table's, and
    ``together`` is True, if one transaction or part of one has made the new files.
    """

    code: str
    what: str
    gone: frozenset[TableId] = frozenset()
    renewed: frozenset[TableId] = frozenset()
    arrived: frozenset[TableId] = frozenset()
    together: bool = False


@dataclass(frozen=True, slots=True)
class Witness:
    """Evidence about the statements between two states of the storage.

    ``announced`` is True if they are a single ALTER TABLE, and the later state is the one at its end. ``casts`` has the
    columns that the client's query retypes, by attnum, and is empty if that is unknown. ``truncates`` are the
    transactions with a streamed TRUNCATE of the table. ``follows`` is True if the earlier state is the end of an
    announced ALTER TABLE. A column whose catalog row is the same since has not been altered again. ``moments`` are the
    columns that the destination stores as times, and takes for times in UTC when they get or lose a time zone.

    A savepoint has a number of its own in the catalog, and the stream has only that of its transaction. So an announced
    statement is ``truncated`` if its transaction has truncated the table before. The state is ``emptied`` if a streamed
    TRUNCATE comes before it, and no row of the table in between or in the same transaction.
    """

    announced: bool = False
    casts: Mapping[int, Cast] = field(default_factory=dict)
    truncates: frozenset[int] = frozenset()
    follows: bool = False
    moments: frozenset[int] = frozenset()
    truncated: bool = False
    emptied: bool = False


def find_change(
    table: TableId, columns: Mapping[int, str], before: TableStorage, now: TableStorage, witness: Witness
) -> RowsChanged | None:
    """Return the unstreamed change of rows at the destination, or None if there is none.

    ``columns`` maps the attnums of replicated columns to their names. Other columns are ignored.
    """
    found = _types(before, now) or _columns(columns, before, now, witness)
    if found is not None or table in now.leaves:
        return found
    return _leaves(columns, before, now, witness)


def find_missing_key(before: TableStorage, now: TableStorage, witness: Witness) -> RowsChanged | None:
    """Return the change of a table that had no primary key for a while, or None.

    Rows of that time were written by the key, because RELATION messages do not show it under REPLICA IDENTITY FULL.
    """
    if witness.announced or before.primary is None or now.primary is None or not now.primary.replaces(before.primary):
        return None
    what = "its primary key was dropped and made again, and rows from in between may have been taken for one"
    return RowsChanged("key_changed", what)


def _types(before: TableStorage, now: TableStorage) -> RowsChanged | None:
    for oid in sorted(before.types.keys() & now.types.keys()):
        old, new = before.types[oid], now.types[oid]
        if old.kind == "c" and new.parts != old.parts:
            return RowsChanged("type_changed", f"the attributes of type {new.name} were changed (ALTER TYPE)")
        if old.kind == "e" and any(new.parts.get(label) != text for label, text in old.parts.items()):
            return RowsChanged("type_changed", f"a value of type {new.name} was renamed (ALTER TYPE)")
    return None


def _columns(
    columns: Mapping[int, str], before: TableStorage, now: TableStorage, witness: Witness
) -> RowsChanged | None:
    rewritten = [leaf for oid, leaf in now.leaves.items() if _new_file(before.leaves.get(oid), leaf)]
    if witness.announced and rewritten and all(leaf.empty for leaf in now.leaves.values()):
        # A new file without a block at the end of the statement has no row that was rewritten.
        return None
    for attnum, new in sorted(now.columns.items()):
        old = before.columns.get(attnum)
        if old is None:
            if rewritten and not witness.announced and not new.generated:
                return RowsChanged("table_rewritten", f"it was rewritten after its column number {attnum} was added")
            continue
        if old.generated and not new.generated:
            return RowsChanged("table_rewritten", f"column number {attnum} is no longer generated (DROP EXPRESSION)")
        if attnum not in columns or (witness.follows and new == old):
            continue
        if new.generated:
            # A new expression, or another type, makes the column's definition again and computes it for each row.
            if new.default != old.default:
                what = f"the generated column {columns[attnum]} has another expression or type"
                return RowsChanged("table_rewritten", f"{what}, and the new values of rows are not streamed")
            continue
        retyped = (new.type_oid, new.typmod) != (old.type_oid, old.typmod)
        if not retyped and _was_only_filled(old, new):
            continue
        if witness.announced and witness.casts and attnum not in witness.casts and not retyped:
            # The query is known, and retypes other columns. A rewrite also updates the catalog row of a column that
            # was added with a default, because the file then contains its values.
            continue
        in_utc = attnum in witness.moments and _are_moments(old, new)
        if _was_rewritten(old, new, rewritten, witness):
            cast = witness.casts.get(attnum, Cast.OTHER)
            kept = in_utc if cast is Cast.UTC else retyped and _keeps_values(before, old, now, new)
            if cast is Cast.OTHER or not kept:
                what = f"column {columns[attnum]} was rewritten (ALTER COLUMN ... TYPE), and the new values of rows"
                return RowsChanged("table_rewritten", f"{what} that existed are not streamed")
        elif retyped and not (in_utc or _reads_alike(_base(before, old.type_oid), _base(now, new.type_oid))):
            # With a file that stays, PostgreSQL has converted times in UTC, as it does in a session with that zone.
            what = f"column {columns[attnum]} has another type, in which values of existing rows have another text"
            return RowsChanged("table_rewritten", what)
    return None


def _was_only_filled(old: ColumnStorage, new: ColumnStorage) -> bool:
    """Return True if the column's catalog row is new because a rewrite wrote the value of older rows into them.

    VACUUM FULL and CLUSTER do that. ALTER COLUMN ... TYPE also makes the default again.
    """
    return old.missing and not new.missing and new.default == old.default != 0


def _was_rewritten(
    old: ColumnStorage, new: ColumnStorage, rewritten: Collection[LeafStorage], witness: Witness
) -> bool:
    # Right after a rewrite, the catalog rows of relation and column have the same transaction. An earlier statement of
    # that transaction may have given the column's row this transaction already, so the row need not have another one.
    # If the file is new for another reason, such as an earlier TRUNCATE, the two transactions differ. But the event
    # trigger itself may write the relation's row once more, within a savepoint, which has a later number.
    if any(leaf.xmin == new.xmin and not (witness.announced and _is_older(leaf, new)) for leaf in rewritten):
        return True
    altered = (old.xmin, old.cmin) != (new.xmin, new.cmin)
    if witness.announced and altered and any(_is_later(leaf, new) and not _is_older(leaf, new) for leaf in rewritten):
        return True
    return not witness.announced and old.xmin != new.xmin and bool(rewritten)


def _is_older(leaf: LeafStorage, column: ColumnStorage) -> bool:
    """Return True if the file was made before this version of the column, by another statement of its transaction.

    ALTER TABLE writes new files after it has altered the columns. Savepoints do not begin the count of commands again.
    """
    return 0 <= leaf.cmin < column.cmin


def _is_later(leaf: LeafStorage, column: ColumnStorage) -> bool:
    """Return True if the relation's row has a later transaction than the column's, or a savepoint of the same one."""
    return 0 < (leaf.xmin - column.xmin) % 2**32 < 2**31


def _leaves(
    columns: Mapping[int, str], before: TableStorage, now: TableStorage, witness: Witness
) -> RowsChanged | None:
    if gone := frozenset(before.leaves.keys() - now.leaves.keys()):
        return RowsChanged("partition_changed", "a partition was detached or dropped, and its rows with it", gone)
    new = {oid: now.leaves[oid] for oid in now.leaves.keys() - before.leaves.keys()}
    back = {oid for oid in before.leaves.keys() & now.leaves.keys() if now.leaves[oid].was_away(before.leaves[oid])}
    if arrived := frozenset(oid for oid, leaf in new.items() if not (leaf.empty or leaf.born)) | back:
        what = "a partition was attached that may have had rows"
        if back:
            what = "a partition was detached and attached again, and its rows may have changed meanwhile"
        return RowsChanged("partition_changed", what, arrived=arrived)
    kept = {oid: now.leaves[oid] for oid in before.leaves.keys() & now.leaves.keys()}
    renewed = {oid: leaf for oid, leaf in kept.items() if _new_file(before.leaves[oid], leaf)}
    if not renewed or witness.emptied:
        return None
    numbers = {leaf.xmin for leaf in renewed.values()}
    # TRUNCATE gives no new file to a partition that its own transaction, or the same part of it, created.
    made = witness.truncates | numbers
    kept = {oid: leaf for oid, leaf in kept.items() if oid in renewed or before.leaves[oid].xmin not in made}
    together = len(numbers) == 1 and len(renewed) == len(kept)
    if _was_truncated(numbers, together, witness):
        return None
    what = "a partition was truncated, or rewritten (VACUUM FULL, CLUSTER, ALTER COLUMN ... TYPE)"
    return RowsChanged("partition_changed", what, renewed=frozenset(renewed), together=together)


def _was_truncated(numbers: Collection[int], together: bool, witness: Witness) -> bool:
    """Return True if one streamed TRUNCATE of the root created the new files, which have these numbers.

    Another statement that writes all partitions again may hide that one of them was truncated before. If the own
    transaction of the statement has truncated the root, it holds the locks since then, so no other one made a file.
    """
    if witness.truncated:
        return len(numbers) == 1
    return together and witness.truncates.issuperset(numbers)


def _new_file(before: LeafStorage | None, now: LeafStorage) -> bool:
    return before is not None and before.filenode != now.filenode


def _keeps_values(before: TableStorage, old: ColumnStorage, now: TableStorage, new: ColumnStorage) -> bool:
    """Return True if PostgreSQL's cast of each value, also by way of text, is the same value or has the same text."""
    o, n = old.type_oid, new.type_oid
    if any(o in row and n in row and row.index(o) < row.index(n) for row in _WIDENINGS):
        return True
    if o == n and _is_longer(o, old.typmod, new.typmod):
        return True
    # A varchar with a length may cut blanks.
    return (_is_enum(before, o) or o in _TEXTS) and (_is_enum(now, n) or (n in _TEXTS and new.typmod < 0))


def _is_longer(type_oid: int, old: int, new: int) -> bool:
    """Return True if a type with the modifier ``new`` has every value that it has with ``old``, with the same text.

    An ALTER TABLE that writes the table again for one column casts the values of each column that it retypes.
    """
    if type_oid == _NUMERIC and old >= 0 <= new:
        # The precision is above the scale, which pads the text (PostgreSQL's ``make_numeric_typmod``).
        return (old - 4) & 0xFFFF == (new - 4) & 0xFFFF and old <= new
    return type_oid in _LONGER and old >= 0 and (new < 0 or old <= new)


def _are_moments(old: ColumnStorage, new: ColumnStorage) -> bool:
    """Return True for a timestamp that gets or loses its time zone, without fewer digits of a second."""
    return {old.type_oid, new.type_oid} == _TIMESTAMPS and (new.typmod < 0 or 0 <= old.typmod <= new.typmod)


def _is_enum(storage: TableStorage, oid: int) -> bool:
    return (known := storage.types.get(oid)) is not None and known.kind == "e"


def _reads_alike(old: int, new: int) -> bool:
    """Return True if both types have the same text for the values in an unchanged file."""
    return old == new or _TEXTS.issuperset((old, new))


def _base(storage: TableStorage, oid: int) -> int:
    while (known := storage.types.get(oid)) is not None and known.base:
        oid = known.base
    return oid
