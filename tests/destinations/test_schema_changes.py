"""The changes of a source table's columns, as each destination finds and describes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from levada.destinations.bigquery import layout as bigquery
from levada.destinations.bigquery.settings import JsonbType
from levada.destinations.ducklake import columns as ducklake
from levada.destinations.iceberg import schema as iceberg
from levada.destinations.opensearch import evolution as opensearch
from levada.destinations.opensearch import layout as opensearch_layout
from levada.destinations.postgres import columns as postgres
from levada.errors import NeedsOperator
from levada.schema import Column, ColumnType, Kind, ReplicatedTableSchema
from levada.schema.table import IdentityKind
from levada.values import OnSchemaChange, QualifiedTable, TableId, TableMode

UPSERT = TableMode.UPSERT
ID = Column(1, "id", ColumnType(Kind.INT8), "bigint", 20, nullable=False)
QTY = Column(2, "qty", ColumnType(Kind.DECIMAL, 10, 2), "numeric(10,2)", 1700, 10 << 16 | 2 + 4)
SKU = Column(3, "sku", ColumnType(Kind.TEXT), "text", 25)
NOTE = Column(4, "note", ColumnType(Kind.TEXT), "text", 25)
LARGE = replace(QTY, type=ColumnType(Kind.DECIMAL, 38, 2), type_name="numeric(38,2)", typmod=38 << 16 | 2 + 4)
FLAG = replace(QTY, type=ColumnType(Kind.BOOL), type_name="boolean", type_oid=16, typmod=-1)
COMPUTED = replace(NOTE, rewritten=True)


def table(*columns: Column) -> ReplicatedTableSchema:
    """The table with these columns and the key id."""
    return ReplicatedTableSchema(
        TableId(16400), QualifiedTable("public", "orders"), (ID, *columns), IdentityKind.FULL, key=(1,)
    )


BEFORE = table(QTY, SKU)

Follow = Callable[[ReplicatedTableSchema, OnSchemaChange], tuple[Sequence[str], Sequence[str]]]
"""Returns the descriptions of the changes from BEFORE, and the names of the columns after them."""


def in_bigquery(wanted: ReplicatedTableSchema, policy: OnSchemaChange) -> tuple[Sequence[str], Sequence[str]]:
    """Follow the change in BigQuery. Each step is a statement."""
    before = bigquery.Layout.of(BEFORE, JsonbType.JSON)
    steps = bigquery.plan(before, wanted, JsonbType.JSON, policy)
    return [s.change for s in steps if s.change], [c.name for c in (steps[-1].after if steps else before).columns]


def in_ducklake(wanted: ReplicatedTableSchema, policy: OnSchemaChange) -> tuple[Sequence[str], Sequence[str]]:
    """Follow the change in DuckLake."""
    after, changes = ducklake.reconcile(ducklake.initial_columns(BEFORE, UPSERT), 3, wanted, UPSERT, policy)
    return changes, [c.name for c in after.columns]


def in_iceberg(wanted: ReplicatedTableSchema, policy: OnSchemaChange) -> tuple[Sequence[str], Sequence[str]]:
    """Follow the change in Iceberg."""
    found = iceberg.reconcile(iceberg.initial_layout(BEFORE, UPSERT), 3, wanted, UPSERT, policy)
    return found.changes, [f.name for f in found.layout.fields]


def in_opensearch(wanted: ReplicatedTableSchema, policy: OnSchemaChange) -> tuple[Sequence[str], Sequence[str]]:
    """Follow the change in OpenSearch."""
    found = opensearch.evolve(opensearch_layout.Layout.of(BEFORE, UPSERT), wanted, policy)
    return found.changes, [f.name for f in found.layout.fields]


def in_postgres(wanted: ReplicatedTableSchema, policy: OnSchemaChange) -> tuple[Sequence[str], Sequence[str]]:
    """Follow the change in PostgreSQL."""
    found = postgres.reconcile(postgres.Layout.of(BEFORE), wanted, UPSERT, policy)
    return found.changes, [c.name for c in found.layout.columns]


every_destination = pytest.mark.parametrize(
    "follow", [in_bigquery, in_ducklake, in_iceberg, in_opensearch, in_postgres], ids=lambda f: f.__name__[3:]
)


@every_destination
@pytest.mark.parametrize(
    ("wanted", "changes", "names"),
    [
        (BEFORE, [], ["id", "qty", "sku"]),
        (table(QTY), ["column sku was dropped"], ["id", "qty"]),
        (table(QTY, replace(SKU, name="code")), ["column sku was renamed to code"], ["id", "qty", "code"]),
        (table(LARGE, SKU), ["column qty became numeric(38,2)"], ["id", "qty", "sku"]),
        (table(QTY, SKU, NOTE), ["column note was added"], ["id", "qty", "sku", "note"]),
        (
            table(replace(LARGE, name="count"), NOTE),
            [
                "column sku was dropped",
                "column qty was renamed to count",
                "column qty became numeric(38,2)",
                "column note was added",
            ],
            ["id", "count", "note"],
        ),
    ],
    ids=["nothing", "dropped", "renamed", "widened", "added", "all together"],
)
def test_changes_have_one_text(
    follow: Follow, wanted: ReplicatedTableSchema, changes: Sequence[str], names: Sequence[str]
) -> None:
    """Each destination describes a change in the same words, in its log and in the error of the policy Fail."""
    found, after = follow(wanted, OnSchemaChange.PROPAGATE)
    assert (list(found), list(after)) == (changes, names)
    if changes:
        with pytest.raises(NeedsOperator) as refused:
            follow(wanted, OnSchemaChange.FAIL)
        assert refused.value.code == "schema_change_refused"
        expected = f"public.orders: {', '.join(changes)}, but the pipeline's onSchemaChange is Fail"
        assert refused.value.message == expected


@every_destination
def test_names_that_change_places(follow: Follow) -> None:
    """The text has the names of the source, whatever names are needed on the way."""
    swapped = table(replace(QTY, name="sku"), replace(SKU, name="qty"))
    changes, names = follow(swapped, OnSchemaChange.PROPAGATE)
    assert names == ["id", "sku", "qty"]
    assert set(changes) == {"column qty was renamed to sku", "column sku was renamed to qty"}


@every_destination
def test_ignored_changes(follow: Follow) -> None:
    """Under the policy Ignore the columns stay as they are, except for a wider type."""
    wanted = table(replace(LARGE, name="count"), NOTE)
    changes, names = follow(wanted, OnSchemaChange.IGNORE)
    assert (list(changes), list(names)) == (["column qty became numeric(38,2)"], ["id", "qty", "sku"])


@every_destination
@pytest.mark.parametrize("policy", OnSchemaChange)
@pytest.mark.parametrize(
    ("wanted", "what"),
    [
        (table(FLAG, SKU), "column qty became boolean, and the table's column cannot be widened to that"),
        (
            table(QTY, SKU, COMPUTED),
            "column note was added with a default whose values in existing rows are not known: PostgreSQL computed them"
            " for each row, or wrote the table again in the same statement, and it does not stream them",
        ),
    ],
    ids=["retyped", "computed"],
)
def test_changes_that_need_a_copy(
    follow: Follow, policy: OnSchemaChange, wanted: ReplicatedTableSchema, what: str
) -> None:
    """They are refused alike whatever the policy is. One that is ignored refuses no column that is not there."""
    if policy is OnSchemaChange.IGNORE and COMPUTED in wanted.columns:
        assert not follow(wanted, policy)[0]
        return
    with pytest.raises(NeedsOperator) as refused:
        follow(wanted, policy)
    assert (refused.value.code, refused.value.message) == ("schema_change_unsupported", f"public.orders: {what}")
    assert refused.value.hint == "copy the table again: levada resync MANIFEST public.orders"
