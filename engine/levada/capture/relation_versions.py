"""A version of a table next to the RELATION message that describes it: columns, replica identity and key. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from levada.capture.attnums import same_columns
from levada.pgoutput.messages import Relation
from levada.postgres.description import TableDescription, key_not_streamed
from levada.schema import Column, ExcludedColumn, IdentityKind, ReplicatedTableSchema
from levada.schema.stored_types import ColumnChoice
from levada.values import QualifiedTable

IDENTITIES: Final[Mapping[str, IdentityKind]] = {
    "d": IdentityKind.PRIMARY_KEY,
    "i": IdentityKind.INDEX,
    "f": IdentityKind.FULL,
    "n": IdentityKind.MISSING,
}
"""The replica identities by their letters in RELATION messages."""


def all_columns(version: ReplicatedTableSchema) -> Sequence[Column | ExcludedColumn]:
    """Return the columns of a version's RELATION, which has the excluded ones too."""
    return sorted([*version.columns, *version.excluded], key=lambda c: c.attnum)


def same_identity(relation: Relation, version: ReplicatedTableSchema) -> bool:
    """Return True if a RELATION has the replica identity of a version."""
    marked = {c.name for c in relation.columns if c.is_key}
    kind = IDENTITIES[relation.identity] if marked else IdentityKind.MISSING
    names = {c.name for c in version.columns if c.attnum in version.identity_attnums}
    return kind is version.identity and names == marked & {c.name for c in version.columns}


def describes(relation: Relation, version: ReplicatedTableSchema, excluded: Collection[str]) -> bool:
    """Return True if a RELATION is that of a version, as far as it shows. ``excluded`` columns are not replicated."""
    columns = [c for c in relation.columns if c.name not in excluded]
    return (
        same_columns(columns, version.columns)
        and [c.name for c in relation.columns] == [c.name for c in all_columns(version)]
        and same_identity(relation, version)
    )


def key_of(
    table: QualifiedTable,
    identity: IdentityKind,
    marked: set[int],
    present: set[int],
    before: ReplicatedTableSchema | None,
    description: TableDescription | None,
) -> tuple[int, ...]:
    """Return the key's attnums, which RELATION does not contain under FULL.

    Raise NeedsOperator ``identity_missing`` for a key with a generated column: that column is not streamed, and several
    rows can have the others' values.
    """
    if identity is IdentityKind.FULL:
        former = () if before is None else before.key
        key = former if description is None else description.primary_key
        # The catalog may show the key of a later transaction. Without any primary key there, several rows may be equal.
        return next((k for k in (key, former) if present.issuperset(k)), ())
    if description is not None:
        streamed = {c.attnum for c in description.columns}
        if marked == streamed.intersection(description.identity_key) != set(description.identity_key):
            raise key_not_streamed(table, set(description.identity_key) - streamed)
    return tuple(sorted(marked))


def same_version(one: ReplicatedTableSchema, other: ReplicatedTableSchema) -> bool:
    """Return True if the versions are equal in all properties that the stream shows. Defaults are not among them.

    The types of excluded columns are not either.
    """
    return _streamed_properties(one) == _streamed_properties(other)


def _streamed_properties(version: ReplicatedTableSchema) -> tuple[object, ...]:
    columns = tuple((c.attnum, c.name, c.type, c.type_oid, c.typmod, c.mask) for c in version.columns)
    excluded = tuple((c.attnum, c.name) for c in version.excluded)
    return columns, version.identity, version.identity_attnums, version.key, excluded, ColumnChoice.of(version)
