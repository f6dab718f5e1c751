"""The identity of a table's stored rows according to the catalog: files, versions of columns, definitions of types.

A statement that changes the values of existing rows without streaming them changes this identity.
`levada.schema.rewrites` evaluates the change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from levada.schema.flaws import LeafFlaw
from levada.schema.partitions import BoundAt, PartitionKey
from levada.values import TableId


@dataclass(frozen=True, slots=True)
class LeafStorage:
    """The file of one relation that stores rows.

    ``filenode`` changes with each rewrite and TRUNCATE. ``xmin`` changes with each version of the relation's row in
    pg_class. ``born`` is False if the relation, or a table between it and the root, was attached as a partition.
    ``empty`` is True if the file of an attached relation had no block, or that of a table at the end of an announced
    statement. ``flaw`` is None for a table that is no partition. ``cmin`` is the number of the command, in the
    transaction ``xmin``, that wrote this version, -1 if it is unknown. ``path`` has the partitions from below the root
    down to the leaf. It is empty if it is unknown, and for a table that is no partition.
    """

    filenode: int
    xmin: int
    empty: bool
    born: bool
    flaw: LeafFlaw | None = None
    cmin: int = -1
    path: tuple[BoundAt, ...] = ()

    def was_away(self, before: LeafStorage) -> bool:
        """Return True if the leaf, or a table above it, was detached since an earlier state, and attached again."""
        if not (self.path and before.path):
            return False
        levels = zip(self.path, before.path, strict=False)
        return len(self.path) != len(before.path) or not all(now.is_attached_as(then) for now, then in levels)


@dataclass(frozen=True, slots=True)
class ColumnStorage:
    """One column, including generated ones. ``xmin`` changes with each version of its row in pg_attribute.

    The name is no part of the identity, because a new name changes no row. ``cmin`` is that of `LeafStorage`.
    ``missing`` is True if rows from before the column have its value in the catalog, until the table is rewritten.
    ``default`` is the OID of the default, 0 for none. A new type makes the default again, under another OID.
    """

    type_oid: int
    typmod: int
    xmin: int
    generated: bool
    name: str = ""
    cmin: int = -1
    missing: bool = False
    default: int = 0


@dataclass(frozen=True, slots=True)
class TypeStorage:
    """An enum, a composite or a domain that the table's columns use, directly or inside another type.

    ``kind`` is pg_type's ``typtype``: e, c or d. ``parts`` maps an enum's label OIDs to labels, or a composite's
    attribute numbers to types and modifiers. ``base`` is a domain's base type, and otherwise 0.
    """

    kind: str
    name: str
    parts: Mapping[str, str]
    base: int


@dataclass(frozen=True, slots=True)
class PrimaryKey:
    """A primary key by the OIDs of its constraint and of its index.

    ``full`` is True if the table has REPLICA IDENTITY FULL, with which rows can be deleted that no key identifies.
    """

    constraint: int
    index: int
    full: bool

    def replaces(self, former: PrimaryKey) -> bool:
        """Return True if there was no primary key for a while since an earlier state, and any row could be deleted."""
        return self.constraint != former.constraint and self.index != former.index and (self.full or former.full)


@dataclass(frozen=True, slots=True)
class TableStorage:
    """A table's storage at one moment: leaves by OID, columns by attnum, types by OID.

    ``keys`` has the partition keys of the root and of its partitions that have partitions, by OID. ``primary`` is None
    if the table has no primary key, and in an announcement.
    """

    leaves: Mapping[TableId, LeafStorage]
    columns: Mapping[int, ColumnStorage]
    types: Mapping[int, TypeStorage]
    keys: Mapping[TableId, PartitionKey] = field(default_factory=dict)
    primary: PrimaryKey | None = None

    @property
    def flaws(self) -> tuple[LeafFlaw, ...]:
        """The flaws of all partitions."""
        return tuple(leaf.flaw for leaf in self.leaves.values() if leaf.flaw is not None)

    @property
    def generated(self) -> frozenset[int]:
        """The attnums of the generated columns."""
        return frozenset(attnum for attnum, column in self.columns.items() if column.generated)

    def has_rows_of(self, earlier: TableStorage) -> bool:
        """Return True if files, columns and type definitions are the same as in an earlier state.

        A new partition that had no rows before it was attached changes nothing, because all its rows are streamed.
        Privileges and statistics create new versions of catalog rows, so versions are not compared.
        """
        kept = {
            oid: leaf for oid, leaf in self.leaves.items() if oid in earlier.leaves or not (leaf.born or leaf.empty)
        }
        if any(leaf.was_away(earlier.leaves[oid]) for oid, leaf in kept.items() if oid in earlier.leaves):
            return False
        return _identity(replace(self, leaves=kept)) == _identity(earlier)

    def has_key_of(self, earlier: TableStorage) -> bool:
        """Return True if the primary key is the same as in an earlier state, or if there was none in both."""
        own, former = self.primary, earlier.primary
        return (own and own.constraint) == (former and former.constraint)

    def to_text(self) -> str:
        """Return the storage as JSON, in the form that `from_json` reads."""
        return json.dumps(
            {
                "leaves": {str(int(k)): leaf_to_json(v) for k, v in self.leaves.items()},
                "columns": {str(k): _column_to_json(v) for k, v in self.columns.items()},
                "types": {str(k): [v.kind, v.name, dict(v.parts), v.base] for k, v in self.types.items()},
                "keys": {str(int(k)): v.to_json() for k, v in self.keys.items()},
                "primary": self.primary and [self.primary.constraint, self.primary.index, self.primary.full],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> TableStorage:
        """Parse the text that `to_text` returned."""
        return cls.from_json(json.loads(text))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableStorage:
        """Parse the object that the catalog query returns.

        Raise KeyError, TypeError or ValueError for anything else.
        """
        return cls(
            leaves_from_json(data["leaves"]),
            {int(k): _column(*column) for k, column in data["columns"].items()},
            {int(k): TypeStorage(str(t), str(n), dict(p), int(b)) for k, (t, n, p, b) in data["types"].items()},
            {TableId(int(k)): PartitionKey.from_json(key) for k, key in (data.get("keys") or {}).items()},
            None if (primary := data.get("primary")) is None else _primary(*primary),
        )


def leaves_from_json(data: Mapping[str, Any]) -> Mapping[TableId, LeafStorage]:
    """Parse leaves by OID. Raise KeyError, TypeError or ValueError for anything else."""
    return {TableId(oid): leaf_from_json(leaf) for oid, leaf in data.items()}


def leaf_to_json(leaf: LeafStorage) -> list[object]:
    """Return the list that `leaf_from_json` reads."""
    path = [[int(bound.parent), bound.text, bound.attached, bound.command] for bound in leaf.path]
    return [leaf.filenode, leaf.xmin, leaf.empty, leaf.born, leaf.flaw and leaf.flaw.to_json(), leaf.cmin, path]


def leaf_from_json(data: Sequence[Any]) -> LeafStorage:
    """Parse the array that the catalog query returns. Raise TypeError or ValueError for anything else.

    One of an earlier version of this program has no path, or a path without transactions.
    """
    filenode, xmin, empty, born, flaw, cmin, *path = data
    its = None if flaw is None else LeafFlaw.from_json(flaw)
    levels = (path[0] or ()) if path else ()
    bounds = tuple(BoundAt(TableId(parent), str(text), *map(int, rest)) for parent, text, *rest in levels)
    return LeafStorage(int(filenode), int(xmin), bool(empty), bool(born), its, int(cmin), bounds)


def _primary(constraint: int, index: int, full: bool) -> PrimaryKey:
    return PrimaryKey(int(constraint), int(index), bool(full))


def _column_to_json(column: ColumnStorage) -> list[object]:
    kept = [column.type_oid, column.typmod, column.xmin, column.generated, column.name, column.cmin]
    return [*kept, column.missing, column.default]


def _column(
    oid: int, typmod: int, xmin: int, generated: bool, name: str, cmin: int, missing: bool = False, default: int = 0
) -> ColumnStorage:
    """Return a column. A text of an earlier version of this program lacks the last two."""
    return ColumnStorage(
        int(oid), int(typmod), int(xmin), bool(generated), str(name), int(cmin), bool(missing), int(default)
    )


def _identity(storage: TableStorage) -> tuple[object, ...]:
    leaves = {oid: leaf.filenode for oid, leaf in storage.leaves.items()}
    columns = {n: (c.type_oid, c.typmod, c.generated) for n, c in storage.columns.items()}
    return leaves, columns, storage.types
