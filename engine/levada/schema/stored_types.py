"""The types that ``columns.types`` chooses for columns, in place of the ones that `resolve_type` gives. Pure.

The names of the manifest are a closed set:

=================== ============================================================ ===================================
Name                Columns                                                      Stored as
=================== ============================================================ ===================================
``Text``            Any column                                                   PostgreSQL's text
``Decimal(p, s)``   numeric                                                      decimal with p digits, s after the
                                                                                 point
``Uuid``            uuid                                                         Iceberg's uuid, in place of text
``List``            vector and halfvec of the extension pgvector                 A list of 32-bit floats
``Range``           int4range, int8range, numrange, daterange, tsrange, tstzrange A struct of bounds
``Multirange``      The multiranges of these                                     A list of such structs
``Map``             hstore                                                       A map from text to text
``Wkb``             geometry and geography of PostGIS                            Bytes, in PostGIS's extended WKB
``List(n)``         Arrays with n dimensions, at least 2                         Lists in lists, to a depth of n
=================== ============================================================ ===================================

A choice holds for the column that has the name, also after a rename. A column with a choice that its type does not take
fails its table, because any other type would be a surprise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from levada.errors import NeedsOperator
from levada.schema.mask_comments import MaskComments
from levada.schema.masks import NO_MASKS, TableMasks
from levada.schema.table import Column, ReplicatedTableSchema
from levada.schema.types import (
    KEY_TEXTS,
    MULTIRANGES,
    NUMERIC_OID,
    RANGES,
    ColumnType,
    Kind,
    Notation,
    TypeInfo,
    base_type,
    resolve_type,
)
from levada.values import QualifiedTable, resync_command

_DECIMAL: Final = re.compile(r"Decimal\((\d+), ?(\d+)\)", re.ASCII)
_NESTED: Final = re.compile(r"List\((\d)\)", re.ASCII)
_EXTENSIONS: Final[Mapping[tuple[str, str], ColumnType]] = {
    ("List", "vector"): ColumnType(Kind.ARRAY, element=ColumnType(Kind.FLOAT4), notation=Notation.VECTOR),
    ("List", "halfvec"): ColumnType(Kind.ARRAY, element=ColumnType(Kind.FLOAT4), notation=Notation.HALFVEC),
    ("Map", "hstore"): ColumnType(Kind.MAP),
    ("Wkb", "geometry"): ColumnType(Kind.BYTEA, notation=Notation.EWKB),
    ("Wkb", "geography"): ColumnType(Kind.BYTEA, notation=Notation.EWKB),
}
"""The types by the name in the manifest and that of an extension's type, which may be in any schema."""


@dataclass(frozen=True, slots=True)
class StoredTypes:
    """The chosen types of a table, as pairs of a column's name and the name of a type."""

    chosen: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, types: Mapping[str, str]) -> StoredTypes:
        """Return the choice of a mapping by column name."""
        return cls(frozenset(types.items()))

    @property
    def by_column(self) -> Mapping[str, str]:
        """The names of types by column, in the order of the columns' names."""
        return dict(sorted(self.chosen))


AS_RESOLVED: Final = StoredTypes()
"""No column has another type than `resolve_type` gives."""


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """The columns that a table's copy and stream leave out, and the types and masks of the others, by the manifest."""

    excluded: frozenset[str] = frozenset()
    types: StoredTypes = AS_RESOLVED
    masks: TableMasks = NO_MASKS

    @classmethod
    def of(cls, version: ReplicatedTableSchema) -> ColumnChoice:
        """Return the choice that a version of a table belongs to."""
        return cls(version.excluded_columns, StoredTypes(version.stored_types), version.masks)


def with_mask_comments(choice: ColumnChoice, comments: MaskComments, key_id: str) -> ColumnChoice:
    """Return the choice with the masks of comments. ``key_id`` is that of `MaskComments.over`."""
    return replace(choice, masks=comments.over(choice.masks, key_id))


def with_stored_types(
    schema: ReplicatedTableSchema, types: StoredTypes, catalog: Mapping[int, TypeInfo]
) -> ReplicatedTableSchema:
    """Return the version with the chosen types. Raise NeedsOperator ``stored_type_refused`` for one that does not fit.

    ``catalog`` describes the columns' types that are not built in. Names that no column has are ignored.
    """
    if not types.chosen:
        return schema
    by_column = types.by_column
    columns = tuple(
        replace(c, type=_stored(schema, c, by_column[c.name], catalog)) if c.name in by_column else c
        for c in schema.columns
    )
    return replace(schema, columns=columns, stored_types=types.chosen)


def _stored(schema: ReplicatedTableSchema, column: Column, name: str, catalog: Mapping[int, TypeInfo]) -> ColumnType:
    in_key = column.attnum in schema.key
    if name == "Text":
        if in_key and column.type.kind not in KEY_TEXTS:
            raise _refused(schema.name, column, name, "its equal values may have several texts, and it is in the key")
        return ColumnType(Kind.TEXT)
    if name == "Uuid":
        if column.type.kind is not Kind.UUID:
            raise _refused(schema.name, column, name, "only uuid is stored as a Uuid")
        return replace(column.type, native=True)
    oid, _ = base_type(column.type_oid, column.typmod, catalog)
    if (found := _DECIMAL.fullmatch(name)) is not None:
        if oid != NUMERIC_OID:
            raise _refused(schema.name, column, name, "only numeric is stored as a Decimal")
        precision, scale = int(found[1]), int(found[2])
        if scale > precision:
            raise _refused(schema.name, column, name, f"of {precision} digits none can have {scale} after the point")
        return ColumnType(Kind.DECIMAL, precision, scale)
    if in_key:
        raise _refused(schema.name, column, name, "it is in the key")
    if name == "Range":
        return _range(schema, column, name, RANGES.get(oid), "only PostgreSQL's own range types are stored as a Range")
    if name == "Multirange":
        why = "only the multiranges of PostgreSQL's own range types are stored as a Multirange"
        element = _range(schema, column, name, RANGES.get(MULTIRANGES.get(oid, 0)), why)
        return ColumnType(Kind.ARRAY, element=element, notation=Notation.MULTIRANGE)
    if (found := _NESTED.fullmatch(name)) is not None:
        # Without the policy of the pipeline, which may have made text of an array.
        plain = resolve_type(column.type_oid, column.typmod, catalog)
        if plain.kind is not Kind.ARRAY:
            raise _refused(schema.name, column, name, f"only arrays are stored as a {name}")
        return _nested(plain, int(found[1]))
    # A base type of an extension has no OID of its own, and only a type that is one is not in the catalog's mapping.
    # A domain over one has its own name, so only the type itself is found.
    stored = _EXTENSIONS.get((name, _plain(column.type_name))) if column.type_oid not in catalog else None
    if stored is None:
        names = " and ".join(of for chosen, of in _EXTENSIONS if chosen == name)
        raise _refused(schema.name, column, name, f"only {names} {_verb(names)} stored as a {name}")
    return stored


def _range(
    schema: ReplicatedTableSchema, column: Column, name: str, bound_oid: int | None, otherwise: str
) -> ColumnType:
    if bound_oid is None:
        raise _refused(schema.name, column, name, otherwise)
    return ColumnType(Kind.RANGE, element=resolve_type(bound_oid, -1))


def _verb(names: str) -> str:
    return "are" if " and " in names else "is"


def _nested(plain: ColumnType, dimensions: int) -> ColumnType:
    return plain if dimensions == 1 else ColumnType(Kind.ARRAY, element=_nested(plain, dimensions - 1))


def _plain(type_name: str) -> str:
    """Return the name of ``format_type`` without schema, quotes and modifier."""
    return type_name.partition("(")[0].rpartition(".")[2].strip('"')


def _refused(table: QualifiedTable, column: Column, name: str, why: str) -> NeedsOperator:
    return NeedsOperator(
        "stored_type_refused",
        f"{table}: columns.types has {name} for column {column.name} of type {column.type_name}, but {why}",
        hint=f"correct columns.types of the table's TableSync, then: {resync_command(table)}",
    )
