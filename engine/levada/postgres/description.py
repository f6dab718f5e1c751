"""One table's catalog entry, as the query of `levada.postgres.description_sql` returns it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from levada.errors import NeedsOperator
from levada.schema import Column, ExcludedColumn, IdentityKind, ReplicatedTableSchema, TypeInfo, resolve_type
from levada.schema.storage import TableStorage
from levada.schema.stored_types import AS_RESOLVED, StoredTypes, with_stored_types
from levada.values import OnUnrepresentable, QualifiedTable, SnapshotId, TableId, resync_command

_STORED: Final = "s"


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A column's row of pg_attribute as the query returns it, in this order. JSON has OIDs and numbers of transactions
    as texts.
    """

    attnum: int
    name: str
    type_oid: str
    typmod: int
    type_name: str
    not_null: bool
    generated: str
    identity: str
    xmin: str
    cmin: str
    xmax: str
    has_missing: bool
    missing_value: str | None
    default_oid: str | None

    def described(
        self, types: Mapping[int, TypeInfo], missing: Mapping[str, str], filled_by_type: Collection[int]
    ) -> Column:
        """Return the column. ``missing`` has the values of rows in partitions that are older than a column, by name."""
        oid, value = int(self.type_oid), self.missing_value if self.has_missing else missing.get(self.name)
        filled = bool(self.identity) or self.default_oid is not None or self.attnum in filled_by_type
        return Column(
            attnum=self.attnum,
            name=self.name,
            type=resolve_type(oid, self.typmod, types),
            type_name=self.type_name,
            type_oid=oid,
            typmod=self.typmod,
            nullable=not self.not_null,
            missing_value=value,
            # The catalog has no record of how older rows got their value. A default without a stored constant was
            # computed for each row, or was set after the column was added, or the table was rewritten. The values are
            # unknown then.
            rewritten=filled and value is None,
        )

    def stored(self) -> list[object]:
        """Return the list that `levada.schema.storage` reads."""
        version = [int(self.xmin), bool(self.generated), self.name, _command(self.cmin, self.xmax)]
        return [int(self.type_oid), self.typmod, *version, self.has_missing, int(self.default_oid or 0)]


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table's definition from the catalog: all columns except generated ones in attnum order, and its keys.

    ``generated`` has the generated columns that are stored. PostgreSQL streams no others, and these only if the
    publication says so, see `with_generated`. ``primary_key`` and ``identity_key`` have attnums in key order. A
    deferrable key does not identify a row and is left out. ``validation`` has the SQL that lets the columns of the
    index of the replica identity be without NULL, empty if they are. ``types`` describes the columns' types that are
    not built in. ``storage`` identifies the stored rows.
    """

    id: TableId
    name: QualifiedTable
    columns: tuple[Column, ...]
    identity: IdentityKind
    primary_key: tuple[int, ...]
    identity_key: tuple[int, ...]
    types: Mapping[int, TypeInfo]
    storage: TableStorage
    generated: tuple[Column, ...] = ()
    validation: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableDescription:
        """Parse the query's result. Raise KeyError, TypeError or ValueError for anything else."""
        types = type_infos(data.get("types") or ())
        primary_key, index, validation = _keys(data["indexes"] or ())
        identity, identity_key = _identity(data["replicaIdentity"], primary_key, index)
        rows = sorted((CatalogColumn(*row) for row in data["columns"] or ()), key=lambda row: row.attnum)
        missing, filled = data.get("missing") or {}, frozenset(data.get("filledByType") or ())
        return cls(
            id=TableId(int(data["id"])),
            name=QualifiedTable(data["schema"], data["name"]),
            columns=tuple(row.described(types, missing, filled) for row in rows if not row.generated),
            generated=tuple(row.described(types, missing, filled) for row in rows if row.generated == _STORED),
            identity=identity,
            primary_key=primary_key,
            identity_key=identity_key,
            validation=validation if identity is IdentityKind.INDEX else "",
            types=types,
            storage=TableStorage.from_json(
                {
                    "leaves": data["leaves"] if "leaves" in data else {data["id"]: _one_leaf(*data["leaf"])},
                    "columns": {str(row.attnum): row.stored() for row in rows},
                    "types": data.get("storedTypes") or {},
                    "keys": data.get("keys"),
                    "primary": data.get("primary"),
                }
            ),
        )

    def with_generated(self, names: Collection[str] | None = None) -> TableDescription:
        """Return the definition with the stored generated columns of these names among the others, None for all."""
        found = [c for c in self.generated if names is None or c.name in names]
        if not found:
            return self
        columns = sorted([*self.columns, *found], key=lambda c: c.attnum)
        return replace(self, columns=tuple(columns), generated=tuple(c for c in self.generated if c not in found))

    def require_streamed_key(self, columns: Collection[int] | None) -> None:
        """Raise NeedsOperator ``identity_missing`` if the stream lacks a value of the replica identity.

        ``columns`` are the attnums of the publication's column list, and None means all. Without a part of the key, or
        with NULL in it, a DELETE does not show which row it deletes.
        """
        if self.validation:
            raise NeedsOperator(
                "identity_missing",
                f"the replica identity of table {self.name} has columns that may be NULL, because a NOT NULL constraint"
                " is not validated",
                hint=f"{self.validation}; then {resync_command(self.name)}. It fails while a row has NULL there: give"
                " the row another value first",
            )
        streamed = {c.attnum for c in self.columns if columns is None or c.attnum in columns}
        if lacking := sorted(set(self.identity_key) - streamed):
            raise key_not_streamed(self.name, lacking)

    def schema(
        self,
        *,
        columns: Collection[int] | None = None,
        exclude: Collection[str] = (),
        policy: OnUnrepresentable = OnUnrepresentable.ERROR,
        types: StoredTypes = AS_RESOLVED,
        snapshot_id: SnapshotId | None = None,
    ) -> ReplicatedTableSchema:
        """Return the replicated schema version: the columns with these attnums, except those named in ``exclude``.

        ``columns`` None means all columns. Raise NeedsOperator ``stored_type_refused`` if ``types`` has a type for a
        column that does not take it.
        """
        published = [c for c in self.columns if columns is None or c.attnum in columns]
        replicated = tuple(_typed(c, self.types, policy) for c in published if c.name not in exclude)
        attnums = {c.attnum for c in replicated}
        full = self.identity is IdentityKind.FULL
        key = self.primary_key if full else self.identity_key
        version = ReplicatedTableSchema(
            id=self.id,
            name=self.name,
            columns=replicated,
            identity=self.identity,
            identity_attnums=tuple(sorted(attnums if full else attnums.intersection(self.identity_key))),
            key=key if attnums.issuperset(key) else (),
            snapshot_id=snapshot_id or SnapshotId(0),
            excluded_columns=frozenset(exclude),
            excluded=tuple(
                ExcludedColumn(c.attnum, c.name, c.type_oid, c.typmod) for c in published if c.name in exclude
            ),
        )
        return with_stored_types(version, types, self.types)


def key_not_streamed(table: QualifiedTable, lacking: Collection[int]) -> NeedsOperator:
    """Return the error of a table whose replica identity has columns, by attnum, that are not streamed."""
    numbers = ", ".join(map(str, sorted(lacking)))
    return NeedsOperator(
        "identity_missing",
        f"the replica identity of table {table} has columns that are not streamed, number {numbers}: generated ones, or"
        " ones that the publication's column list lacks",
        hint="give the table a primary key without generated columns, and publish all of its columns; then"
        f" {resync_command(table)}",
    )


def type_infos(rows: Collection[Mapping[str, Any]]) -> Mapping[int, TypeInfo]:
    """Parse the JSON array of types."""
    return {
        r["oid"]: TypeInfo(r["oid"], r["name"], r["typtype"], r["baseOid"], r["baseTypmod"], r["elementOid"])
        for r in rows
    }


def _typed(column: Column, types: Mapping[int, TypeInfo], policy: OnUnrepresentable) -> Column:
    return replace(column, type=resolve_type(column.type_oid, column.typmod, types, policy))


def _identity(
    relreplident: str, primary_key: tuple[int, ...], index: tuple[int, ...]
) -> tuple[IdentityKind, tuple[int, ...]]:
    if relreplident == "f":
        return IdentityKind.FULL, ()
    if relreplident == "d" and primary_key:
        return IdentityKind.PRIMARY_KEY, primary_key
    if relreplident == "i" and index:
        return IdentityKind.INDEX, index
    return IdentityKind.MISSING, ()


def _keys(indexes: Collection[Sequence[Any]]) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """Return the attnums of the primary key, and of the index of the replica identity, empty for none.

    The text is the SQL that validates the NOT NULL constraints of that index.
    """
    primary: tuple[int, ...] = ()
    identity: tuple[int, ...] = ()
    validation = ""
    for attnums, count, is_primary, is_identity, statements in indexes:
        key = tuple(map(int, attnums[:count]))
        primary = key if is_primary else primary
        if is_identity:
            identity, validation = key, statements or ""
    return primary, identity, validation


def _one_leaf(filenode: str, xmin: str, cmin: str, xmax: str, empty: bool) -> list[object]:
    return [filenode, xmin, empty, True, None, _command(cmin, xmax)]


def _command(cmin: str, xmax: str) -> int:
    """Return the command's number in a row's version. After a savepoint that was rolled back it is another number."""
    return int(cmin) if int(xmax) == 0 else -1
