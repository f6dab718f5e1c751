"""Projects rows of one version of a table to another version, by attnum. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from levada.errors import NeedsOperator, Unrepresentable
from levada.pgoutput.text import decode_text
from levada.pgoutput.wire import Values, WireBuffer, sizes_of
from levada.schema import Column, ColumnType, IdentityKind, Kind, ReplicatedTableSchema
from levada.schema.changes import (
    COMMIT_LSN,
    OLD,
    OLD_KIND,
    OP,
    UNCHANGED,
    UNREPRESENTABLE,
    change_schema,
)
from levada.schema.masking import same_mask
from levada.schema.types import MOMENTS, repeated
from levada.values import (
    UNKNOWN_DEFAULT,
    Lsn,
    OnUnrepresentable,
    resync_command,
    unconvertible_hint,
    unrepresentable_hint,
)

_INTEGERS: Final = (Kind.INT2, Kind.INT4, Kind.INT8)


def layout(table: ReplicatedTableSchema) -> pa.Schema:
    """Return the schema of changes of this version, with all optional columns."""
    return change_schema(table, old=True, unchanged=True, unrepresentable=True)


def widens(source: ColumnType, target: ColumnType) -> bool:
    """Return True if ``target`` represents every value of ``source`` exactly."""
    if source == target:
        return True
    match source.kind, target.kind:
        case (a, b) if a in _INTEGERS and b in _INTEGERS:
            return _INTEGERS.index(a) <= _INTEGERS.index(b)
        case (Kind.FLOAT4, Kind.FLOAT8):
            return True
        case (Kind.DECIMAL, Kind.DECIMAL):
            integer_digits_fit = target.precision - target.scale >= source.precision - source.scale
            return integer_digits_fit and target.scale >= source.scale
        case (Kind.UUID | Kind.JSON, Kind.TEXT) | (Kind.UUID, Kind.UUID):
            return True
        case (Kind.ARRAY, Kind.ARRAY):
            assert source.element is not None
            assert target.element is not None
            return widens(source.element, target.element)
    return False


def is_retyped_in_utc(source: ColumnType, target: ColumnType) -> bool:
    """Return True for a column of times that got or lost its time zone.

    Its rows are of one table only if they were converted in UTC, which the engine makes sure of before. The number of
    microseconds is the same then.
    """
    return {source.kind, target.kind} == MOMENTS


def completed(versions: Sequence[ReplicatedTableSchema]) -> ReplicatedTableSchema:
    """Return the last of ``versions`` with what the older ones know of columns that the first one lacks.

    A rewrite removes the constant of an added column from the catalog, so the last version may lack it. A default that
    was set after the column was added looks as if it was computed for each row. The first version that has the column
    is right about both. If a constant may have another text in the column's type now, the column is ``rewritten``.
    """
    newest = versions[-1]
    if len(versions) == 1:
        return newest
    known, added = versions[0].by_attnum, dict[int, Column]()
    for version in versions:
        for column in version.columns:
            added.setdefault(column.attnum, column)
    columns = tuple(c if c.attnum in known else _as_added(c, added[c.attnum]) for c in newest.columns)
    return newest if columns == newest.columns else replace(newest, columns=columns)


def _as_added(now: Column, first: Column) -> Column:
    if now.missing_value is not None:
        return now
    same_text = (now.type_oid, now.typmod) == (first.type_oid, first.typmod) or (
        now.type.kind in _INTEGERS and first.type.kind in _INTEGERS
    )
    if first.missing_value is not None and not same_text:
        return replace(now, rewritten=True)
    return replace(now, missing_value=first.missing_value, rewritten=first.rewritten)


def check_old_keys(newest: ReplicatedTableSchema, written: Iterable[ReplicatedTableSchema]) -> None:
    """Raise NeedsOperator ``key_changed`` if rows of a version do not show which row of ``newest`` they change.

    ``written`` are the versions of the rows. The old row in an UPDATE or DELETE has the columns of the replica identity
    of that time, and an UPDATE has none if these did not change. While the table had another key, several rows could
    have the same values in the columns of this one. The key can have changed and be the same again. Without a replica
    identity there is no UPDATE or DELETE.
    """
    for version in written:
        if version.identity is IdentityKind.MISSING:
            continue
        lacking = set(newest.key) - set(version.identity_attnums)
        if lacking:
            names = ", ".join(c.name for c in newest.key_columns if c.attnum in lacking)
            raise _key_changed(newest, f"changes of that time do not have the old value of {names}")
        if set(version.key) != set(newest.key):
            names = ", ".join(c.name for c in newest.key_columns)
            raise _key_changed(newest, f"at that time several rows could have the same {names}")


@dataclass(frozen=True, slots=True)
class Projection:
    """A conversion from rows of ``source`` to rows of ``target``, with only ``columns`` of `layout`.

    ``policy`` applies to unrepresentable values. ``added`` maps the attnums of columns that ``source`` lacks to these
    columns in their first version. Only that version is certain to have the value of earlier rows. ``output`` is the
    schema of the rows that `apply` returns.
    """

    source: ReplicatedTableSchema
    target: ReplicatedTableSchema
    columns: tuple[str, ...]
    policy: OnUnrepresentable
    added: Mapping[int, Column]
    output: pa.Schema

    @classmethod
    def of(
        cls,
        source: ReplicatedTableSchema,
        versions: Sequence[ReplicatedTableSchema],
        columns: Sequence[str] | None,
        policy: OnUnrepresentable,
    ) -> Projection:
        """Return the projection from ``source`` to the last of ``versions``.

        ``versions`` are in order, and ``source`` is one of them or older than all. Raise NeedsOperator
        ``schema_change_unsupported`` if a column's type changed to one that cannot represent its values, or if
        PostgreSQL computed the values of an added column. Raise ValueError for a column that is not in the layout.
        """
        target = versions[-1]
        full = layout(target)
        names = full.names
        if columns is not None and (unknown := set(columns) - set(names)):
            raise ValueError(f"{target.name} has no columns {sorted(unknown)}")
        later = [v for v in versions if v.snapshot_id > source.snapshot_id] if source in versions else versions
        added: dict[int, Column] = {}
        for version in later:
            for column in version.columns:
                added.setdefault(column.attnum, column)
        chosen = tuple(names if columns is None else columns)
        projection = cls(source, target, chosen, policy, added, pa.schema([full.field(name) for name in chosen]))
        for column in projection._table_columns(with_old=True):
            before = source.by_attnum.get(column.attnum)
            if before is None and added[column.attnum].rewritten:
                raise _computed(target, column)
            if before is not None and not (
                widens(before.type, column.type) or is_retyped_in_utc(before.type, column.type)
            ):
                raise _retyped(target, before, column)
            if before is not None and not same_mask(before, column):
                raise _unsupported(target, f"column {column.name} had another mask, or none, in earlier rows")
        return projection

    def reads(self, file_columns: Sequence[str], *more: str) -> list[str]:
        """Return the columns of a file that the projection reads, and ``more``. The commit LSN is always among them."""
        before = self.source.by_attnum
        wanted = {COMMIT_LSN, UNREPRESENTABLE, *more}
        target = {c.name: c for c in self.target.columns}
        for name in self.columns:
            column = target.get(name)
            if column is None:
                wanted.add(name)
            elif column.attnum in before:
                wanted.add(before[column.attnum].name)
            elif self.added[column.attnum].missing_value is not None:
                wanted |= {OP, OLD_KIND}
        if OLD in wanted:
            wanted.add(OLD_KIND)
        return [name for name in file_columns if name in wanted]

    def apply(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """Return the projected rows, and the number of unrepresentable values that became NULL.

        Raise Unrepresentable under the policy ``Error``.
        """
        have = {name: rows.column(i) for i, name in enumerate(rows.schema.names)}
        nulled = self._apply_policy(have)
        target, before = {c.name: c for c in self.target.columns}, self.source.by_attnum
        arrays = []
        for field in self.output:
            if (column := target.get(field.name)) is not None:
                own = before.get(column.attnum)
                values = self._added(column, have, rows.num_rows) if own is None else have[own.name]
                arrays.append(_widen(values, field.type))
            elif field.name not in have:
                arrays.append(pa.nulls(rows.num_rows, field.type))
            elif field.name == OLD:
                arrays.append(self._old(have))
            elif field.name == UNCHANGED:
                arrays.append(self._unchanged(have[UNCHANGED], field.type))
            else:
                arrays.append(have[field.name])
        return pa.RecordBatch.from_arrays(arrays, schema=self.output), nulled

    def _table_columns(self, *, with_old: bool) -> list[Column]:
        everything = with_old and OLD in self.columns
        return [c for c in self.target.columns if everything or c.name in self.columns]

    def _added(self, column: Column, have: dict[str, pa.Array], length: int) -> pa.Array:
        known = None
        if self.added[column.attnum].missing_value is not None:
            known = pc.fill_null(pc.not_equal(have[OP], "D"), True)
            if OLD_KIND in have:
                known = pc.or_(known, pc.fill_null(pc.equal(have[OLD_KIND], "O"), False))
        return self._missing(column, known, length)

    def _old(self, have: dict[str, pa.Array]) -> pa.Array:
        old = have[OLD]
        if self.source.arrow.equals(self.target.arrow) and self._same_attnums():
            return old
        known = pc.fill_null(pc.equal(have[OLD_KIND], "O"), False)
        children = []
        for column in self.target.columns:
            before = self.source.by_attnum.get(column.attnum)
            if before is None:
                children.append(self._missing(column, known, len(old)))
            else:
                children.append(_widen(pc.struct_field(old, before.name), column.type.arrow))
        return pa.StructArray.from_arrays(children, fields=list(self.target.arrow), mask=old.is_null())

    def _same_attnums(self) -> bool:
        return [c.attnum for c in self.source.columns] == [c.attnum for c in self.target.columns]

    def _unchanged(self, attnums: pa.Array, kind: pa.DataType) -> pa.Array:
        gone = set(self.source.by_attnum) - set(self.target.by_attnum)
        if not gone or attnums.null_count == len(attnums):
            return attnums
        kept = [None if a is None else [n for n in a if n not in gone] or None for a in attnums.to_pylist()]
        return pa.array(kept, kind)

    def _missing(self, column: Column, known: pa.Array | None, length: int) -> pa.Array:
        """Return the value of an added column for rows from before it. It is NULL where ``known`` is not True."""
        added = self.added[column.attnum]
        if added.missing_value is None or known is None:
            return pa.nulls(length, column.type.arrow)
        text = [added.missing_value.encode()]
        buffer, start, end = WireBuffer.join(text, sizes_of(text))
        decoded = decode_text(Values(buffer, start, end - start), added.type)
        if decoded.refused is not None and self.policy is not OnUnrepresentable.NULL:
            raise _unrepresentable(self.target, column, self.target.snapshot_id)
        if not widens(added.type, column.type):
            raise _retyped(self.target, added, column)
        values = _widen(repeated(decoded.array, length), column.type.arrow)
        return pc.if_else(known, values, pa.scalar(None, column.type.arrow))

    def _apply_policy(self, have: dict[str, pa.Array]) -> int:
        """Apply the policy to unrepresentable values, and return their number. No policy makes a key NULL.

        Rows with such values are expected to be rare.
        """
        unrepresentable = have.get(UNREPRESENTABLE)
        if unrepresentable is None or unrepresentable.null_count == len(unrepresentable):
            return 0
        wanted = {c.attnum: c for c in self._table_columns(with_old=False)}
        nulled = 0
        for i in pc.indices_nonzero(unrepresentable.is_valid()).to_pylist():
            found = [wanted[attnum] for attnum, _ in unrepresentable[i].as_py() if attnum in wanted]
            nulled += len(found)
            refused = [c for c in found if self.policy is not OnUnrepresentable.NULL or c.attnum in self.target.key]
            if refused:
                raise _unrepresentable(self.target, refused[0], Lsn(have[COMMIT_LSN][i].as_py()))
        return nulled


def _widen(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values if values.type == kind else pc.cast(values, kind)


def _computed(table: ReplicatedTableSchema, column: Column) -> NeedsOperator:
    return _unsupported(table, f"column {column.name} was added {UNKNOWN_DEFAULT}")


def _key_changed(table: ReplicatedTableSchema, consequence: str) -> NeedsOperator:
    return NeedsOperator(
        "key_changed",
        f"{table.name}: its key or replica identity was another one for a while, and {consequence}",
        hint=f"copy the table again: {resync_command(table.name)}",
    )


def _retyped(table: ReplicatedTableSchema, before: Column, after: Column) -> NeedsOperator:
    return _unsupported(table, f"column {after.name} changed from {before.type_name} to {after.type_name}")


def _unsupported(table: ReplicatedTableSchema, change: str) -> NeedsOperator:
    return NeedsOperator(
        "schema_change_unsupported",
        f"{table.name}: {change}, and PostgreSQL does not stream the new values of existing rows",
        hint=f"copy the table again: {resync_command(table.name)} (or another resyncNonce of its TableSync)",
    )


def _unrepresentable(table: ReplicatedTableSchema, column: Column, at: Lsn) -> Unrepresentable:
    return Unrepresentable(
        "unrepresentable_value",
        f"{table.name}: column {column.name} ({column.type_name}) has a value that {column.type.arrow} cannot "
        f"represent, in the transaction with commit LSN {Lsn(at)}",
        hint=f"{_remedy(table, column)}change the value, then copy the table again: {resync_command(table.name)}",
    )


def _remedy(table: ReplicatedTableSchema, column: Column) -> str:
    key = column.attnum in table.key
    if column.type.kind in (Kind.TEXT, Kind.JSON):
        return unconvertible_hint(key=key)
    return f"{unrepresentable_hint(key=key, chosen=column.name in dict(table.stored_types))}. Or "
