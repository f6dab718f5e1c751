"""Versions of tables with masked columns, over renames and changes of types. Pure.

The manifest masks columns by name, and a rename moves a name to another column. PostgreSQL has an attnum for each
column, which no rename changes. So a column that was masked stays masked under its new name. A column that a rename
gives the name of a masked one would have some values in clear and others masked, so the table is parked.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from levada.errors import NeedsOperator
from levada.schema.masks import ColumnMask, Mask, MaskKeys, TableMasks
from levada.schema.table import Column, ReplicatedTableSchema
from levada.schema.types import ColumnType, Kind
from levada.spec.columns import SHORTENING
from levada.values import MaskMethod, QualifiedTable, resync_command

MASKED_TEXT: Final = ColumnType(Kind.TEXT)
"""The type of the values of all masks but ``Null``."""
_TEXTS: Final = frozenset({19, 25, 1042, 1043})
"""The OIDs of name, text, bpchar and varchar."""
_INTEGERS: Final = frozenset({21, 23, 20})


def hmac_text(key: bytes, value: bytes) -> str:
    """Return the mask of one value by HMAC: 64 hexadecimal digits."""
    return hmac.digest(key, value, "sha256").hex()


def mask_text(mask: Mask, text: str, keys: MaskKeys) -> str | None:
    """Return the mask of one value of PostgreSQL's text, None for NULL."""
    match mask.method:
        case MaskMethod.NULL:
            return None
        case MaskMethod.HMAC:
            return hmac_text(keys.key(mask.key_id), text.encode())
        case MaskMethod.TRUNCATE:
            return text[: mask.length]
        case MaskMethod.LAST:
            return text[-mask.length :]


def chosen_masks(
    names: Mapping[int, str],
    masks: TableMasks,
    before: ReplicatedTableSchema | None,
    now: Mapping[int, str] | None = None,
) -> Mapping[int, ColumnMask]:
    """Return the masks of columns, of which ``names`` has the names by attnum.

    A column that ``before`` masks by a name that ``masks`` still has keeps that mask, whatever its name is now. ``now``
    has the names in the catalog, which is read later. A column that is masked there is masked here as well, whatever
    its name was in between, unless ``before`` replicates it in clear under the same masks.
    """
    former = {} if before is None else {c.attnum: c.mask for c in before.columns}
    chosen: dict[int, ColumnMask] = {}
    for attnum, name in names.items():
        known, named = former.get(attnum), [name]
        if known is not None:
            named.append(known.named)
        elif attnum not in former or (before is not None and before.masks != masks):
            named += [] if now is None or attnum not in now else [now[attnum]]
        for each in named:
            if attnum not in chosen and (mask := masks.get(each)) is not None:
                chosen[attnum] = ColumnMask(each, mask)
    return chosen


def with_masks(
    schema: ReplicatedTableSchema,
    masks: TableMasks,
    before: ReplicatedTableSchema | None,
    keys: MaskKeys,
    now: Mapping[int, str] | None = None,
) -> ReplicatedTableSchema:
    """Return a version with its columns masked. ``masks`` are those of the manifest, ``before`` the version before it.

    ``now`` is that of `chosen_masks`. Raise NeedsOperator ``mask_refused`` for a mask that a column cannot have.
    """
    if not masks:
        return schema
    chosen = chosen_masks({c.attnum: c.name for c in schema.columns}, masks, before, now)
    columns = tuple(_masked(schema, c, chosen.get(c.attnum), keys) for c in schema.columns)
    return replace(schema, columns=columns, masks=masks)


def require_same_masks(before: ReplicatedTableSchema, now: ReplicatedTableSchema) -> None:
    """Raise NeedsOperator if rows that are written already have other masks than those of ``now`` will.

    ``masked_column_renamed``: a rename changed the mask of a column. ``masked_column_retyped``: the type changed so
    that equal values may have another text, and so another mask. If the masks of the manifest have changed, the table
    is copied again, and both may be.
    """
    if before.masks != now.masks:
        return
    for column in now.columns:
        old = before.by_attnum.get(column.attnum)
        if old is None:
            continue
        if not same_mask(old, column):
            raise _renamed(now.name, old, column)
        if column.mask is not None and _changes_text(old, column):
            raise NeedsOperator(
                "masked_column_retyped",
                f"{now.name}: masked column {column.name} changed from {old.type_name} to {column.type_name}, so that"
                " rows which are already written may have other masks than their values have now",
                hint=f"copy the table again: {resync_command(now.name)}",
            )


def missing_masks(masks: TableMasks, names: Iterable[str], before: ReplicatedTableSchema | None) -> frozenset[str]:
    """Return the masked names that no column has, and that ``before`` does not show under another name either."""
    known = set(names)
    if before is not None:
        known |= {c.mask.named for c in before.columns if c.mask is not None}
    return masks.names - known


def masked_column_missing(table: QualifiedTable, missing: Iterable[str], *, copied: bool = False) -> NeedsOperator:
    """Return the error of a table that has no column of a masked name. With ``copied`` it may have had one before."""
    names = ", ".join(sorted(missing))
    unless = ", unless that column was renamed after the last copy" if copied else ""
    return NeedsOperator(
        "masked_column_missing",
        f"columns.mask of table {table} has {names}, which is no column, so the table is not copied{unless}: a column"
        " that should be masked could be replicated in clear",
        hint=f"write the name of the column into columns.mask of the table's TableSync, or remove {names}. Then:"
        f" {resync_command(table)}",
    )


def kept_rows_masked(table: QualifiedTable) -> NeedsOperator:
    """Return the error of a table that keeps deleted rows, whose masks are others now."""
    return NeedsOperator(
        "kept_rows_masked",
        f"columns.mask or the key of masks of table {table} changed, and the table keeps rows that the source has"
        " deleted, which would stay as they are",
        hint=f"give the table its former masks and key. Or set deletes: Apply in its TableSync and"
        f" {resync_command(table)}, which removes these rows, and set deletes again afterwards",
    )


def mask_refusal(schema: ReplicatedTableSchema, column: Column, mask: Mask) -> NeedsOperator | None:
    """Return the error of a column that cannot have the mask, None if it can."""
    is_text = column.type_oid in _TEXTS or column.type_name.split(".")[-1] == "citext"
    if mask.method is not MaskMethod.HMAC and column.attnum in schema.key:
        why = f"is in the key, and {mask.method.value} would give several rows the same key"
    elif mask.method in SHORTENING and not is_text:
        why = f"has the type {column.type_name}, and {mask.method.value} is for text"
    else:
        return None
    return NeedsOperator(
        "mask_refused",
        f"{schema.name}: column {column.name} cannot be masked by {mask.method.value}: it {why}",
        hint=f"use method HMAC for {column.name} in columns.mask of the table's TableSync, or columns.exclude."
        f" Then: {resync_command(schema.name)}",
    )


def same_mask(one: Column, other: Column) -> bool:
    """Return True if both columns have the same mask or none, by whatever name the manifest has it."""
    masks = [None if c.mask is None else c.mask.mask for c in (one, other)]
    return masks[0] == masks[1]


def has_text_mask(column: Column) -> bool:
    """Return True for a column whose mask is text, whatever the type at the source is."""
    return column.mask is not None and column.mask.mask.method is not MaskMethod.NULL


def is_null_mask(column: Column) -> bool:
    """Return True for a column whose mask leaves no value."""
    return column.mask is not None and column.mask.mask.method is MaskMethod.NULL


def plain_column(column: Column) -> Column:
    """Return the column as it is where its values are masked already: text, or its own type under ``Null``."""
    if has_text_mask(column):
        return replace(column, mask=None, type_name="text", type_oid=25, typmod=-1)
    return column if column.mask is None else replace(column, mask=None)


def _masked(schema: ReplicatedTableSchema, column: Column, chosen: ColumnMask | None, keys: MaskKeys) -> Column:
    if chosen is None or (column.mask is not None and column.mask.mask == chosen.mask):
        return column if chosen is None else replace(column, mask=chosen)
    if (refused := mask_refusal(schema, column, chosen.mask)) is not None:
        raise refused
    if chosen.mask.method is MaskMethod.NULL:
        return replace(column, nullable=True, missing_value=None, rewritten=False, mask=chosen)
    missing = column.missing_value
    return replace(
        column,
        type=MASKED_TEXT,
        missing_value=None if missing is None else mask_text(chosen.mask, missing, keys),
        mask=chosen,
    )


def _changes_text(old: Column, now: Column) -> bool:
    """Return True if a change of the type can have changed the text of values. Texts do not lose a length's padding."""
    if not has_text_mask(now) or (old.type_oid, old.typmod) == (now.type_oid, now.typmod):
        return False
    widened = _INTEGERS.issuperset({old.type_oid, now.type_oid})
    return not (widened or {old.type_oid, now.type_oid} <= {25, 1043})


def _renamed(table: QualifiedTable, old: Column, now: Column) -> NeedsOperator:
    return NeedsOperator(
        "masked_column_renamed",
        f"{table}: the column {old.name} was renamed to {now.name}, which columns.mask masks otherwise, so that rows"
        " which are already written have another mask than later ones",
        hint=f"copy the table again: {resync_command(table)}. To leave the column as it was, change columns.mask of the"
        " table's TableSync before",
    )
