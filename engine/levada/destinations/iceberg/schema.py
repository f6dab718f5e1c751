"""The columns of an Iceberg table, and their changes to match a version of the source table. Pure.

Columns are identified by attnum. A table property maps each attnum to a field ID, so that any process can distinguish a
rename from a drop and an addition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from levada.destinations.data_files.layout import FIELD_ID, FileLayout
from levada.destinations.interface import OnSchemaChange, TableMode
from levada.destinations.schema_changes import (
    Added,
    Dropped,
    Renamed,
    Widened,
    check_changes,
    check_letter_case,
    schema_diff,
    unsupported,
)
from levada.errors import NeedsOperator
from levada.locations import java_folded
from levada.schema import Column, ColumnType, Kind, ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, UNCHANGED

IcebergType = str | dict[str, Any]
"""A type in the JSON form of Iceberg's specification (appendix C)."""

_METADATA_COLUMNS: Final = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
"""Iceberg's specification, "Reserved Field IDs". A reader adds them to the columns of a table."""
_DECIMAL: Final = re.compile(r"decimal\((\d+), ?(\d+)\)")

_NAMES: Final[Mapping[Kind, str]] = {
    Kind.BOOL: "boolean",
    Kind.INT2: "int",
    Kind.INT4: "int",
    Kind.INT8: "long",
    Kind.OID: "long",
    Kind.FLOAT4: "float",
    Kind.FLOAT8: "double",
    Kind.TEXT: "string",
    Kind.BYTEA: "binary",
    Kind.DATE: "date",
    # Spark cannot read an Iceberg table with a column of type time.
    Kind.TIME: "string",
    Kind.TIMESTAMP: "timestamp",
    Kind.TIMESTAMPTZ: "timestamptz",
    Kind.UUID: "string",
    Kind.JSON: "string",
}

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "uuid": pa.uuid(),
}

_OPTIONAL: Final = {"value-required": False}
_RANGE_FIELDS: Final = [name for name, _ in ColumnType(Kind.RANGE, element=ColumnType(Kind.BOOL)).parts]

CHANGELOG_FIELDS: Final[tuple[tuple[str, IcebergType], ...]] = (
    (OP, "string"),
    (COMMIT_LSN, "long"),
    (ORDINAL, "long"),
    (COMMIT_TS, "timestamptz"),
    (UNCHANGED, {"type": "list", "element": "string", "element-required": False}),
)
"""The additional columns of a changelog. The last one has the names of columns with unknown values."""


@dataclass(frozen=True, slots=True)
class NestedField:
    """A column of an Iceberg table."""

    id: int
    name: str
    type: IcebergType

    @property
    def arrow(self) -> pa.NestedField:
        """The Arrow field, with its field IDs in the form of Parquet."""
        return pa.field(self.name, _arrow_type(self.type, self.name), metadata={FIELD_ID: str(self.id)})


@dataclass(frozen=True, slots=True)
class IcebergSchema:
    """The columns of an Iceberg table in order. ``attnums`` maps the source's attnums to field IDs."""

    fields: tuple[NestedField, ...]
    attnums: Mapping[int, int]

    @classmethod
    def of(cls, fields: Sequence[Mapping[str, Any]], columns: Mapping[str, int]) -> IcebergSchema:
        """Parse the fields of a schema in Iceberg's JSON. ``columns`` is the parsed property of `columns_json`."""
        parsed = tuple(NestedField(f["id"], f["name"], f["type"]) for f in fields)
        return cls(parsed, {int(a): i for a, i in columns.items()})

    def to_json(self) -> str:
        """Return the schema in Iceberg's JSON. Every column is optional."""
        fields = [{"id": f.id, "name": f.name, "required": False, "type": f.type} for f in self.fields]
        return json.dumps({"type": "struct", "schema-id": 0, "fields": fields})

    def columns_json(self) -> str:
        """Return the mapping of attnums to field IDs as JSON, for a table property."""
        return json.dumps({str(a): i for a, i in sorted(self.attnums.items())})

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema, with field IDs."""
        return pa.schema([f.arrow for f in self.fields])

    @property
    def files(self) -> FileLayout:
        """The columns of the table's data files."""
        return FileLayout(self.arrow, self.attnums)

    @property
    def by_id(self) -> Mapping[int, NestedField]:
        """The columns by field ID."""
        return {f.id: f for f in self.fields}

    @property
    def uuids(self) -> tuple[str, ...]:
        """The names of the columns in Iceberg's type uuid, which have no bounds, see `storage.parquet_settings`."""
        return tuple(f.name for f in self.fields if f.type == "uuid")

    def column(self, attnum: int) -> NestedField | None:
        """Return the column for a column of the source, or None if the table does not have it."""
        return self.by_id.get(self.attnums.get(attnum, -1))


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The columns after an evolution to a version of the source table.

    ``changes`` has a description of each change. ``filled`` has the added columns whose constant must be written to
    existing rows.
    """

    layout: IcebergSchema
    changes: tuple[str, ...] = ()
    filled: tuple[Column, ...] = ()


@dataclass(slots=True)
class _Ids:
    last: int

    def __call__(self) -> int:
        self.last += 1
        return self.last


def initial_layout(schema: ReplicatedTableSchema, mode: TableMode) -> IcebergSchema:
    """Return the columns of a new table.

    Iceberg assigns the field IDs of a new table itself. The same order is predicted here, and compared when the table
    is created.
    """
    check_names(schema, [(c.name, _iceberg_type(c.type, _Ids(0))) for c in schema.columns])
    extra = CHANGELOG_FIELDS if mode is TableMode.CHANGELOG else ()
    # Iceberg numbers the top-level columns first, then the nested fields.
    ids = _Ids(len(schema.columns) + len(extra))
    fields = [NestedField(i, c.name, _iceberg_type(c.type, ids)) for i, c in enumerate(schema.columns, 1)]
    attnums = {c.attnum: f.id for c, f in zip(schema.columns, fields, strict=True)}
    fields += [NestedField(i, name, _renumbered(kind, ids)) for i, (name, kind) in enumerate(extra, len(fields) + 1)]
    return IcebergSchema(tuple(fields), attnums)


def reconcile(
    current: IcebergSchema, last_id: int, wanted: ReplicatedTableSchema, mode: TableMode, policy: OnSchemaChange
) -> Reconciled:
    """Return the evolution of ``current`` to the version ``wanted``.

    ``last_id`` is the highest field ID that the table ever had. Raise NeedsOperator ``schema_change_unsupported`` for a
    change that Iceberg does not support in place, and ``schema_change_refused`` for any change under the policy
    ``Fail``.
    """
    by_id, ids = current.by_id, _Ids(last_id)
    for column in wanted.columns:
        if current.attnums.get(column.attnum, 0) not in {0, *by_id}:
            raise unsupported(wanted, f"another writer dropped column {column.name} from the Iceberg table")
    held = {a: by_id[i] for a, i in current.attnums.items() if i in by_id}
    changes = schema_diff(held, wanted, policy, _fitted)
    check_changes(wanted, changes, policy, fills=mode is TableMode.UPSERT)
    fields, attnums, filled = dict(by_id), {a: f.id for a, f in held.items()}, []
    for change in changes:
        match change:
            case Dropped(attnum, gone):
                del fields[gone.id], attnums[attnum]
            case Renamed(_, before, name):
                fields[before.id] = replace(before, name=name)
            case Widened(_, before, after):
                fields[before.id] = replace(fields[before.id], type=after.type)
            case Added(column):
                added = NestedField(ids(), column.name, _iceberg_type(column.type, ids))
                fields[added.id], attnums[column.attnum] = added, added.id
                if column.missing_value is not None and mode is TableMode.UPSERT:
                    filled.append(column)
    check_names(wanted, [(f.name, f.type) for f in fields.values()])
    return Reconciled(IcebergSchema(tuple(fields.values()), attnums), tuple(map(str, changes)), tuple(filled))


def replacement_layout(
    current: IcebergSchema, last_id: int, wanted: ReplicatedTableSchema, mode: TableMode
) -> IcebergSchema:
    """Return the columns of a shadow copy: those of the source, regardless of the table's current ones.

    A column keeps its field ID if Iceberg can change its type in place. ``last_id`` is the highest field ID of the
    table.
    """
    check_names(wanted, [(c.name, _iceberg_type(c.type, _Ids(0))) for c in wanted.columns])
    ids, fields = _Ids(last_id), []
    for column in wanted.columns:
        before = current.column(column.attnum)
        kept = None if before is None else _widened(before.type, _iceberg_type(column.type, _Ids(0)))
        if before is not None and kept is not None:
            fields.append(NestedField(before.id, column.name, kept))
        else:
            fields.append(NestedField(ids(), column.name, _iceberg_type(column.type, ids)))
    attnums = {c.attnum: f.id for c, f in zip(wanted.columns, fields, strict=True)}
    if mode is TableMode.CHANGELOG:
        held = {f.name: f for f in current.fields}
        fields += [
            held.get(name) or NestedField(ids(), name, _renumbered(kind, ids)) for name, kind in CHANGELOG_FIELDS
        ]
    return IcebergSchema(tuple(fields), attnums)


def check_names(schema: ReplicatedTableSchema, columns: Sequence[tuple[str, IcebergType]]) -> None:
    """Raise NeedsOperator for names with which Spark cannot read the table. ``columns`` has each name and its type.

    The code is ``ambiguous_columns`` if two names differ only in case, because Spark ignores case, or if one is that of
    a part of another column in Iceberg. It is ``reserved_column_name`` for a name of a metadata column.
    """
    names = [name for name, _ in columns]
    check_letter_case(schema, names, "Iceberg")
    parts = {java_folded(part): name for name, kind in columns for part in _parts(name, kind)}
    for name in names:
        if (array := parts.get(java_folded(name))) is not None:
            raise NeedsOperator(
                "ambiguous_columns",
                f"{schema.name}: column {name} has the name that Iceberg gives to a part of column {array}",
                hint="exclude one of them with columns.exclude in the table's TableSync",
            )
        if java_folded(name) in _METADATA_COLUMNS:
            raise NeedsOperator(
                "reserved_column_name",
                f"column {name} of table {schema.name} has the name of a metadata column of Iceberg",
                hint="rename the column, or exclude it with columns.exclude in the table's TableSync",
            )


def _fitted(before: NestedField, column: Column) -> NestedField | None:
    wanted = _iceberg_type(column.type, _Ids(0))
    kind = _widened(before.type, wanted)
    if kind is None and _widened(wanted, before.type) is not None:
        # The Iceberg column already has a wider type, which represents all values.
        kind = before.type
    return None if kind is None else replace(before, name=column.name, type=kind)


def _iceberg_type(kind: ColumnType, ids: _Ids) -> IcebergType:
    if kind.kind is Kind.DECIMAL:
        return f"decimal({kind.precision}, {kind.scale})"
    if kind.kind is Kind.ARRAY:
        assert kind.element is not None
        id_ = ids()
        element = _iceberg_type(kind.element, ids)
        return {"type": "list", "element-id": id_, "element": element, "element-required": False}
    if kind.kind is Kind.RANGE:
        # Iceberg numbers the fields of a struct before those within them.
        numbered = [(ids(), name, part) for name, part in kind.parts]
        fields = [{"id": i, "name": n, "required": False, "type": _iceberg_type(part, ids)} for i, n, part in numbered]
        return {"type": "struct", "fields": fields}
    if kind.kind is Kind.MAP:
        return {"type": "map", "key-id": ids(), "key": "string", "value-id": ids(), "value": "string", **_OPTIONAL}
    return "uuid" if kind.native else _NAMES[kind.kind]


def _parts(name: str, kind: IcebergType) -> Iterator[str]:
    """Yield the names of the parts of a list, a map or a struct, at each depth."""
    if isinstance(kind, str):
        return
    inner = [(part, kind[part]) for part in ("element", "key", "value") if part in kind]
    inner += [(f["name"], f["type"]) for f in kind.get("fields", ())]
    for part, below in inner:
        yield f"{name}.{part}"
        yield from _parts(f"{name}.{part}", below)


def _renumbered(kind: IcebergType, ids: _Ids) -> IcebergType:
    return kind if isinstance(kind, str) else {**kind, "element-id": ids()}


def _widened(before: IcebergType, after: IcebergType) -> IcebergType | None:
    """Return the type ``after`` if Iceberg can widen ``before`` to it in place, else None.

    List elements keep their IDs.
    """
    if isinstance(before, dict) or isinstance(after, dict):
        if _unnumbered(before) == _unnumbered(after):
            return before
        if not (isinstance(before, dict) and isinstance(after, dict) and before["type"] == after["type"] == "list"):
            return None
        element = _widened(before["element"], after["element"])
        return None if element is None else {**before, "element": element}
    old, new = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if old and new:
        wider = old[2] == new[2] and int(new[1]) >= int(old[1])
        return after if wider else None
    if before == after or (before, after) in {("int", "long"), ("float", "double")}:
        return after
    return None


def _unnumbered(kind: IcebergType) -> IcebergType:
    """Return a struct or a map without the IDs of its parts, and any other type itself."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "map":
        return {**kind, "key-id": 0, "value-id": 0}
    return {"fields": [{**f, "id": 0} for f in kind["fields"]]} if kind["type"] == "struct" else kind


def _arrow_type(kind: IcebergType, column: str) -> pa.DataType:
    if isinstance(kind, dict):
        if kind["type"] == "list":
            element = pa.field(
                "element", _arrow_type(kind["element"], column), metadata={FIELD_ID: str(kind["element-id"])}
            )
            return pa.list_(element)
        if kind["type"] == "map" and kind["key"] == kind["value"] == "string":
            key, value = (NestedField(kind[f"{part}-id"], part, "string").arrow for part in ("key", "value"))
            return pa.map_(key.with_nullable(False), value)
        # A struct of another writer may be nested further, and have fields that are required.
        if kind["type"] == "struct" and [f["name"] for f in kind["fields"]] == _RANGE_FIELDS:
            return pa.struct([NestedField(f["id"], f["name"], f["type"]).arrow for f in kind["fields"]])
        raise _foreign_column(column, kind["type"])
    if found := _DECIMAL.fullmatch(kind):
        return pa.decimal128(int(found[1]), int(found[2]))
    if kind not in _ARROW:
        raise _foreign_column(column, kind)
    return _ARROW[kind]


def _foreign_column(column: str, kind: object) -> NeedsOperator:
    return NeedsOperator(
        "foreign_column",
        f"column {column} of the table in the lake, which another writer added, has the type {kind}, which Levada does"
        " not write",
        hint="drop that column in the lake, then: levada retry MANIFEST TABLE",
    )
