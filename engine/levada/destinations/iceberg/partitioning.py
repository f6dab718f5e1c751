"""The partitions and the sort order of an Iceberg table, from its settings to the rows of a file. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.data_files.layout import Order, Part, field_id
from levada.destinations.iceberg.schema import IcebergSchema, IcebergType
from levada.destinations.iceberg.settings import TableSettings
from levada.destinations.iceberg.terms import Term, parse_partition, parse_sort
from levada.destinations.iceberg.transforms import (
    exceeds,
    fits,
    fitting_types,
    json_value,
    result_type,
    transformed,
)
from levada.errors import NeedsOperator, Unrepresentable
from levada.schema import ReplicatedTableSchema

_FIRST_FIELD: Final = 1000
"""Iceberg numbers partition fields from 1000 on."""
_SUFFIXES: Final[Mapping[str, str]] = {"bucket": "bucket", "truncate": "trunc"}


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A field of a partition spec. ``transform`` is spelled as in Iceberg's metadata."""

    source_id: int
    id: int
    name: str
    transform: str

    @property
    def term(self) -> tuple[int, str]:
        """The column and the transform, which identify the field's values."""
        return self.source_id, self.transform


@dataclass(frozen=True, slots=True)
class SortField:
    """A field of a sort order."""

    source_id: int
    transform: str
    descending: bool
    nulls_first: bool

    def to_json(self) -> dict[str, Any]:
        """Return the field in Iceberg's JSON."""
        return {
            "transform": self.transform,
            "source-id": self.source_id,
            "direction": "desc" if self.descending else "asc",
            "null-order": "nulls-first" if self.nulls_first else "nulls-last",
        }


Spec = tuple[PartitionField, ...]
SortOrder = tuple[SortField, ...]


@dataclass(frozen=True, slots=True)
class FilePartition:
    """The partition of a data file: the ID of its spec, and the values of the spec's fields as JSON by field ID.

    ``sort_order`` is the ID of the order in which its rows are.
    """

    spec_id: int
    values: str = "{}"
    sort_order: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class PartitionLists:
    """The partitions of data files as lists, for `levada.destinations.data_files.range_files.RangeFiles`."""

    def to_json(self, partition: Hashable) -> list[Any] | None:
        """Return the partition as a list, None without one."""
        if not isinstance(partition, FilePartition):
            return None
        return [partition.spec_id, partition.values, partition.sort_order]

    def of_json(self, value: Any) -> FilePartition | None:
        """Return the partition of a list."""
        return None if value is None else FilePartition(int(value[0]), str(value[1]), int(value[2]))


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """The settings of a table, resolved to its columns. ``columns`` has the field ID of each name in the settings."""

    terms: tuple[tuple[int, str], ...] = ()
    order: SortOrder = ()
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    columns: Mapping[str, int] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return the JSON for a table property."""
        return json.dumps(
            {
                "partitionBy": self.partition_by,
                "sortBy": self.sort_by,
                "columns": dict(self.columns),
                "terms": self.terms,
            }
        )

    @classmethod
    def of_text(cls, text: str | None) -> ResolvedSettings:
        """Parse the property without the order. It is empty if invalid, because any writer can set a property."""
        try:
            kept = json.loads(text or "{}")
            return cls(
                tuple((int(source), str(transform)) for source, transform in kept.get("terms", ())),
                partition_by=tuple(kept.get("partitionBy", ())),
                sort_by=tuple(kept.get("sortBy", ())),
                columns={str(name): int(number) for name, number in kept.get("columns", {}).items()},
            )
        except (ValueError, TypeError, AttributeError):
            return cls()


def read_spec(fields: Sequence[Mapping[str, Any]]) -> Spec:
    """Parse the fields of a partition spec in Iceberg's JSON."""
    return tuple(PartitionField(f["source-id"], f["field-id"], f["name"], f["transform"]) for f in fields)


def read_order(fields: Sequence[Mapping[str, Any]]) -> SortOrder:
    """Parse the fields of a sort order in Iceberg's JSON."""
    return tuple(
        SortField(f["source-id"], f["transform"], f["direction"] == "desc", f["null-order"] == "nulls-first")
        for f in fields
    )


def spec_json(spec: Spec) -> str:
    """Return a partition spec in Iceberg's JSON. Its ID is assigned by the table."""
    fields = [{"source-id": f.source_id, "field-id": f.id, "name": f.name, "transform": f.transform} for f in spec]
    return json.dumps({"spec-id": 0, "fields": fields})


def order_json(order: SortOrder) -> str:
    """Return a sort order in Iceberg's JSON. Its ID is assigned by the table."""
    return json.dumps({"order-id": 1 if order else 0, "fields": [f.to_json() for f in order]})


def resolve(
    settings: TableSettings | None, layout: IcebergSchema, schema: ReplicatedTableSchema, before: ResolvedSettings
) -> ResolvedSettings:
    """Return the settings with the field IDs of their columns.

    ``before`` are the settings that the table has. As long as they are the same, a name means the column that it meant
    before, also after a rename at the source. Raise NeedsOperator ``partition_column_missing`` or
    ``partition_type_unsupported``.
    """
    settings = settings or TableSettings()
    unchanged = (settings.partition_by, settings.sort_by) == (before.partition_by, before.sort_by)
    columns = _Columns(layout, schema, before.columns, unchanged)
    partitions = [parse_partition(text) for text in settings.partition_by]
    sorts = [parse_sort(text) for text in settings.sort_by]
    terms = tuple((columns.find(t, "partitionBy"), t.transform) for t in partitions)
    order = tuple(
        SortField(columns.find(s.term, "sortBy"), s.term.transform, s.descending, s.nulls_first) for s in sorts
    )
    return ResolvedSettings(terms, order, settings.partition_by, settings.sort_by, columns.found)


@dataclass(slots=True)
class _Columns:
    layout: IcebergSchema
    schema: ReplicatedTableSchema
    before: Mapping[str, int]
    unchanged: bool
    found: dict[str, int] = field(default_factory=dict)

    def find(self, term: Term, setting: str) -> int:
        number = self._number(term.column)
        if number is None:
            raise NeedsOperator(
                "partition_column_missing",
                f"{self.schema.name}: {setting} names column {term.column}, which the table does not have",
                hint=self._hint(setting),
            )
        kind = self.layout.by_id[number].type
        if not (fits(term.transform, kind) or (setting == "sortBy" and _sorts(term, kind))):
            takes = ", ".join(fitting_types(term.transform))
            raise NeedsOperator(
                "partition_type_unsupported",
                f"{self.schema.name}: {setting} has {term.transform} of column {term.column}, whose type is"
                f" {kind if isinstance(kind, str) else kind['type']}. It takes: {takes}",
                hint=self._hint(setting),
            )
        self.found[term.column] = number
        return number

    def _hint(self, setting: str) -> str:
        return f"correct {setting} in the table's TableSync, then: levada retry MANIFEST {self.schema.name.argument}"

    def _number(self, name: str) -> int | None:
        kept = self.before.get(name)
        kept = kept if kept in self.layout.by_id else None
        if self.unchanged and kept is not None:
            return kept
        named = next((f.id for f in self.layout.fields if f.name == name), None)
        if named is None:
            # With the policy Ignore a renamed column keeps its name in the table.
            attnum = next((c.attnum for c in self.schema.columns if c.name == name), None)
            mine = None if attnum is None else self.layout.column(attnum)
            named = None if mine is None else mine.id
        return kept if named is None else named


def exceeding(field: PartitionField, column: str, kind: str) -> Unrepresentable:
    """Return the error of a column with a value whose partition the type of partitions cannot hold."""
    return Unrepresentable(
        "partition_value_unrepresentable",
        f"column {column} has a value for which {field.transform} is out of the range of Iceberg's type"
        f" {result_type(field.transform, kind)}. Queries that filter by the column would not find the row",
        hint="leave the column out of partitionBy in the table's TableSync, then: levada retry MANIFEST TABLE."
        " Or change the value at the source, then: levada resync MANIFEST TABLE",
    )


def _sorts(term: Term, kind: IcebergType) -> bool:
    return term.transform == "identity" and kind in ("float", "double")


def next_spec(terms: Sequence[tuple[int, str]], layout: IcebergSchema, specs: Sequence[Spec], last_id: int) -> Spec:
    """Return the spec with these terms. A field of an earlier spec with the same term keeps its ID and its name.

    ``last_id`` is the highest ID that the table has used for a partition field.
    """
    known = {f.term: f for spec in specs for f in spec}
    names = {f.name for f in layout.fields} | {f.name for f in known.values()}
    fields: list[PartitionField] = []
    last_id = max(last_id, _FIRST_FIELD - 1)
    for source, transform in terms:
        if (kept := known.get((source, transform))) is not None:
            fields.append(kept)
            continue
        last_id += 1
        column = layout.by_id[source].name
        name = _field_name(column, transform)
        taken = names - {column} if transform == "identity" and all(f.name != column for f in known.values()) else names
        if name in taken:
            name = f"{name}_{last_id}"
        fields.append(PartitionField(source, last_id, name, transform))
        names.add(name)
    return tuple(fields)


def _field_name(column: str, transform: str) -> str:
    if transform == "identity":
        return column
    function, _, number = transform.rstrip("]").partition("[")
    return "_".join([column, _SUFFIXES.get(function, function), *([number] if number else [])])


@dataclass(frozen=True, slots=True)
class IcebergArrangement:
    """Divides rows among the partitions of a spec, and sorts them. It is pickled into the tasks of a copy.

    ``kinds`` has the Iceberg types of the columns by field ID.
    """

    spec_id: int
    spec: Spec
    order_id: int
    order: SortOrder
    kinds: Mapping[int, str]

    def arrange(self, rows: pa.Table) -> tuple[Order, Sequence[Part]]:
        """Return the order of the rows by partition and sort order, and the rows of each partition.

        Raise Unrepresentable ``partition_value_unrepresentable``.
        """
        columns = {field_id(f): rows.column(i).combine_chunks() for i, f in enumerate(rows.schema)}
        names = {field_id(f): f.name for f in rows.schema}
        for f in self.spec:
            if exceeds(f.transform, self.kinds[f.source_id], _array(columns[f.source_id])):
                raise exceeding(f, names[f.source_id], self.kinds[f.source_id])
        values = [transformed(f.transform, _array(columns[f.source_id])) for f in self.spec]
        group = _groups(values, rows.num_rows)
        keys = [key for f in self.order for key in _sort_keys(f, _array(columns[f.source_id]))]
        # numpy sorts by the last key first.
        order = np.lexsort([*reversed(keys), group]).astype(np.int64)
        bounds = (
            np.flatnonzero(np.diff(group[order], prepend=-1, append=-1)) if rows.num_rows else np.zeros(1, np.int64)
        )
        parts = [
            Part(self._partition(values, int(order[begin])), int(begin), int(end))
            for begin, end in itertools.pairwise(bounds)
        ]
        return order, parts

    def _partition(self, values: Sequence[pa.Array], row: int) -> FilePartition:
        kinds = [result_type(f.transform, self.kinds[f.source_id]) for f in self.spec]
        its = {str(f.id): json_value(k, v[row]) for f, k, v in zip(self.spec, kinds, values, strict=True)}
        return FilePartition(self.spec_id, json.dumps(its, ensure_ascii=False, separators=(",", ":")), self.order_id)


def _array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


def _groups(values: Sequence[pa.Array], rows: int) -> Order:
    """Return a number for each row, which is the same for rows with the same values."""
    group: Order = np.zeros(rows, np.int64)
    for column in values:
        codes = pc.dictionary_encode(column)
        code = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        _, group = np.unique(group * (len(codes.dictionary) + 1) + code, return_inverse=True)
    return group


def _sort_keys(by: SortField, column: pa.Array) -> list[Order]:
    """Return the keys of a sort field, most significant first: the place of NULLs, then the rank of the values."""
    values = transformed(by.transform, column)
    null = values.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(values.type):
        values = pa.array(_float_order(values), pa.int64(), mask=null)
    rank = pc.rank(values, sort_keys="ascending", tiebreaker="dense")
    ranks = rank.to_numpy(zero_copy_only=False).astype(np.int64)
    ranks = np.where(null, 0, -ranks if by.descending else ranks)
    return [(~null if by.nulls_first else null).astype(np.int64), ranks]


def _float_order(column: pa.Array) -> Order:
    """Return integers in Iceberg's order of floats: -0 is before 0, and every NaN is last."""
    values = column.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    ordered: Order = np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)
    return np.where(np.isnan(values), np.int64(2**63 - 1), ordered)
