"""The fields of an index, one for each column, and the documents of rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations import json_text
from levada.destinations.data_files.layout import CHANGELOG_COLUMNS
from levada.destinations.opensearch.naming import field_name
from levada.destinations.opensearch.types import json_values, mapping_of, shape_of
from levada.errors import NeedsOperator
from levada.schema import Column, ColumnType, Kind, ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, UNCHANGED
from levada.values import TableMode

_DOCUMENT_BYTES: Final = 16 << 20
"""The size of the Arrow columns that become documents together."""
COPY_PART: Final = "_levada_copy_part"
"""The field of copied documents of a changelog with the number of the task that wrote them."""

_CHANGELOG_KINDS: Final[Mapping[str, ColumnType]] = {
    OP: ColumnType(Kind.UUID),
    COMMIT_LSN: ColumnType(Kind.INT8),
    ORDINAL: ColumnType(Kind.INT8),
    COMMIT_TS: ColumnType(Kind.TIMESTAMPTZ),
    UNCHANGED: ColumnType(Kind.ARRAY, element=ColumnType(Kind.UUID)),
    COPY_PART: ColumnType(Kind.UUID),
}
assert set(CHANGELOG_COLUMNS) <= set(_CHANGELOG_KINDS)


@dataclass(frozen=True, slots=True)
class Field:
    """The field of a column. ``shape`` is the form of its values, see `types.shape_of`."""

    attnum: int
    name: str
    type: ColumnType
    shape: str
    mapping: Mapping[str, Any]

    @classmethod
    def of(cls, column: Column) -> Self:
        """Return the field of a new column."""
        return cls(column.attnum, field_name(column.name), column.type, shape_of(column), mapping_of(column))

    def to_json(self) -> dict[str, Any]:
        """Return the field as plain values for JSON."""
        return {
            "attnum": self.attnum,
            "name": self.name,
            "type": self.type.to_json(),
            "shape": self.shape,
            "mapping": dict(self.mapping),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Parse the result of `to_json`."""
        kind = ColumnType.from_json(data["type"])
        return cls(int(data["attnum"]), data["name"], kind, data["shape"], data["mapping"])


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of a table's documents."""

    fields: tuple[Field, ...]
    mode: TableMode

    @classmethod
    def of(cls, schema: ReplicatedTableSchema, mode: TableMode) -> Self:
        """Return the fields of a new index."""
        return cls(tuple(map(Field.of, schema.columns)), mode)

    @property
    def change_fields(self) -> tuple[str, ...]:
        """The additional fields of a changelog."""
        return tuple(_CHANGELOG_KINDS) if self.mode is TableMode.CHANGELOG else ()

    @property
    def properties(self) -> dict[str, Any]:
        """The fields' mappings."""
        found: dict[str, Any] = {f.name: dict(f.mapping) for f in self.fields}
        for name in self.change_fields:
            found[name] = mapping_of(Column(0, name, _CHANGELOG_KINDS[name], "", 0))
        return found

    def documents(
        self,
        rows: pa.Table,
        schema: ReplicatedTableSchema,
        known: Mapping[int, tuple[pa.Array, pa.Array]] | None = None,
    ) -> Iterator[tuple[slice, pa.Array]]:
        """Yield the JSON of rows, in slices of a bounded size.

        ``rows`` has the columns of ``schema``, and in a changelog those of the changes. ``known`` maps an attnum to a
        mask of the rows whose value is not in ``rows``, and to the JSON of their values.
        """
        step = max(1, int(_DOCUMENT_BYTES // max(1, rows.nbytes / max(1, rows.num_rows))))
        for start in range(0, rows.num_rows, step):
            part = slice(start, min(start + step, rows.num_rows))
            yield part, self._documents(rows.slice(start, part.stop - start), schema, known or {}, part)

    def _documents(
        self,
        rows: pa.Table,
        schema: ReplicatedTableSchema,
        known: Mapping[int, tuple[pa.Array, pa.Array]],
        part: slice,
    ) -> pa.Array:
        columns, pieces = schema.by_attnum, []
        for field in self.fields:
            column = columns.get(field.attnum)
            if column is None:
                pieces.append((field.name, pa.repeat(pa.scalar("null", pa.large_string()), rows.num_rows)))
                continue
            values = json_values(one_array(rows.column(column.name)), column)
            if field.attnum in known:
                mask, replacements = known[field.attnum]
                before = int(np.count_nonzero(mask[: part.start]))
                inside = mask[part]
                chosen = replacements.slice(before, int(np.count_nonzero(inside)))
                values = pc.replace_with_mask(values, pa.array(inside), chosen)
            pieces.append((field.name, values))
        for name in self.change_fields:
            if name in rows.column_names:
                change = Column(0, name, _CHANGELOG_KINDS[name], "", 0)
                pieces.append((name, json_values(one_array(rows.column(name)), change)))
        return _joined(pieces, rows.num_rows)


def check_fields(schema: ReplicatedTableSchema, layout: Layout) -> None:
    """Raise NeedsOperator ``ambiguous_columns`` if two columns have the same field."""
    names = [f.name for f in layout.fields]
    if len(set(names)) != len(names):
        raise NeedsOperator(
            "ambiguous_columns",
            f"{schema.name}: two columns have the same field",
            hint="exclude one of them with columns.exclude in the table's TableSync",
        )


def _joined(pieces: list[tuple[str, pa.Array]], rows: int) -> pa.Array:
    if not pieces:
        return pa.repeat(pa.scalar("{}", pa.large_string()), rows)
    names = json_text.quoted(pa.array([name for name, _ in pieces])).to_pylist()
    parts: list[Any] = []
    for i, (name, (_, values)) in enumerate(zip(names, pieces, strict=True)):
        parts += [("," if i else "{") + name + ":", values]
    return json_text.joined(*parts, "}")


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
