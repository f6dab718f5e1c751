"""The change of an index's fields to a version of the source table.

New fields are added in place. OpenSearch can neither rename nor remove a field, and existing documents lack the
constant of an added column. For these changes the cluster copies the documents to the next generation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from levada.destinations.interface import OnSchemaChange
from levada.destinations.opensearch.layout import Field, Layout, check_fields
from levada.destinations.opensearch.naming import field_name
from levada.destinations.opensearch.types import json_values, shape_of
from levada.destinations.schema_changes import Added, Dropped, Renamed, Widened, check_changes, schema_diff, unsupported
from levada.pgoutput.text import parse_text
from levada.schema import Column, ReplicatedTableSchema
from levada.segments.projection import widens


@dataclass(frozen=True, slots=True)
class Evolution:
    """The steps from one layout to another.

    ``names`` maps the fields that existing documents keep to their new names. ``constants`` maps added fields to their
    values in existing documents.
    """

    layout: Layout
    changes: tuple[str, ...]
    names: Mapping[str, str]
    constants: Mapping[str, Any]
    rewrites: bool
    """Whether existing documents change."""


def evolve(current: Layout, wanted: ReplicatedTableSchema, policy: OnSchemaChange) -> Evolution:
    """Return the steps to the columns of ``wanted``. Pure.

    Raise NeedsOperator ``schema_change_unsupported`` for a change that needs a new copy, and ``schema_change_refused``
    for any change under the policy ``Fail``.
    """
    held = {f.attnum: f for f in current.fields}
    changes = schema_diff(held, wanted, policy, _fitted)
    check_changes(wanted, changes, policy, fills=True)
    fields, constants = dict(held), {}
    for change in changes:
        match change:
            case Dropped(attnum):
                del fields[attnum]
            case Renamed(attnum, before, name):
                fields[attnum] = replace(before, name=name)
            case Widened(column, _, after):
                fields[column.attnum] = replace(fields[column.attnum], type=after.type)
            case Added(column):
                added = fields[column.attnum] = Field.of(column)
                if column.missing_value is not None:
                    constants[added.name] = _constant(column, wanted)
    layout = Layout(tuple(fields.values()), current.mode)
    check_fields(wanted, layout)
    names = {f.name: fields[a].name for a, f in held.items() if a in fields}
    same = all(old == new for old, new in names.items()) and len(names) == len(held)
    names |= {name: name for name in layout.change_fields}
    return Evolution(layout, tuple(map(str, changes)), names, constants, rewrites=not same or bool(constants))


def check_rewrite(current: Layout, evolution: Evolution, wanted: ReplicatedTableSchema) -> None:
    """Raise NeedsOperator ``schema_change_unsupported`` if the cluster would not keep every value.

    It parses the documents, and so would round the numbers within jsonb.
    """
    if any(f.shape.startswith("json") for f in (*current.fields, *evolution.layout.fields)):
        what = f"{', '.join(evolution.changes)}, and OpenSearch would round numbers in its jsonb columns"
        raise unsupported(wanted, what)


def _fitted(before: Field, column: Column) -> Field | None:
    fits = shape_of(column) == before.shape and widens(before.type, column.type)
    return replace(before, name=field_name(column.name), type=column.type) if fits else None


def _constant(column: Column, wanted: ReplicatedTableSchema) -> Any:
    assert column.missing_value is not None
    value = parse_text(column.type, column.missing_value)
    if not value.is_valid:
        raise unsupported(wanted, f"{column.type.arrow} cannot represent the default of column {column.name}")
    return json.loads(json_values(pa.repeat(value, 1), column)[0].as_py())
