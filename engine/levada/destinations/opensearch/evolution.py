"""The change of an index's fields to a version of the source table.

New fields are added in place. OpenSearch can neither rename nor remove a field, and existing documents lack the
constant of an added column. For these changes the cluster copies the documents to the next generation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from levada.destinations.interface import OnSchemaChange
from levada.destinations.opensearch.layout import Field, Layout, check_fields
from levada.destinations.opensearch.naming import field_name
from levada.destinations.opensearch.types import json_values, shape_of
from levada.destinations.schema_changes import (
    check_policy,
    computed_default,
    unsupported,
)
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
    keep = policy is OnSchemaChange.IGNORE
    step = _Step(current, wanted)
    for before in current.fields:
        step.take(before, keep=keep)
    known = {f.attnum for f in current.fields}
    constants: dict[str, Any] = {}
    for column in () if keep else wanted.columns:
        if column.attnum not in known:
            step.add(column, constants)
    check_policy(wanted, step.changes, policy)
    layout = Layout(tuple(step.fields), current.mode)
    check_fields(wanted, layout)
    names = step.names | {name: name for name in layout.change_fields}
    same = all(old == new for old, new in step.names.items()) and len(step.names) == len(current.fields)
    return Evolution(layout, tuple(step.changes), names, constants, rewrites=not same or bool(constants))


def check_rewrite(current: Layout, evolution: Evolution, wanted: ReplicatedTableSchema) -> None:
    """Raise NeedsOperator ``schema_change_unsupported`` if the cluster would not keep every value.

    It parses the documents, and so would round the numbers within jsonb.
    """
    if any(f.shape.startswith("json") for f in (*current.fields, *evolution.layout.fields)):
        what = f"{', '.join(evolution.changes)}, and OpenSearch would round numbers in its jsonb columns"
        raise unsupported(wanted, what)


@dataclass(slots=True)
class _Step:
    current: Layout
    wanted: ReplicatedTableSchema
    fields: list[Field] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)

    def take(self, before: Field, *, keep: bool) -> None:
        column = self.wanted.by_attnum.get(before.attnum)
        if column is None and not keep:
            self.changes.append(f"column {before.name} is dropped")
            return
        after = before if column is None else self._retyped(before, column)
        if column is not None and not keep and (name := field_name(column.name)) != before.name:
            self.changes.append(f"column {before.name} is renamed to {column.name}")
            after = replace(after, name=name)
        self.fields.append(after)
        self.names[before.name] = after.name

    def add(self, column: Column, constants: dict[str, Any]) -> None:
        if column.rewritten:
            raise computed_default(self.wanted, column)
        added = Field.of(column)
        self.fields.append(added)
        self.changes.append(f"column {column.name} is added")
        if column.missing_value is not None:
            constants[added.name] = _constant(column, self.wanted)

    def _retyped(self, before: Field, column: Column) -> Field:
        if column.type == before.type and shape_of(column) == before.shape:
            return before
        if not widens(before.type, column.type) or shape_of(column) != before.shape:
            raise unsupported(self.wanted, f"the type of column {column.name} changed to {column.type_name}")
        self.changes.append(f"column {column.name} is widened to {column.type_name}")
        return replace(before, type=column.type)


def _constant(column: Column, wanted: ReplicatedTableSchema) -> Any:
    assert column.missing_value is not None
    value = parse_text(column.type, column.missing_value)
    if not value.is_valid:
        raise unsupported(wanted, f"{column.type.arrow} cannot represent the default of column {column.name}")
    return json.loads(json_values(pa.repeat(value, 1), column)[0].as_py())
