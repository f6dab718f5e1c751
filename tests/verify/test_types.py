"""Every type: equal values are equal, in copied and in streamed rows, and the smallest change of one is found."""

from __future__ import annotations

import threading

import pytest
from tests.rigs.verified_shop import Shop
from tests.verify.every_type import COLUMNS, TYPES, create, insert

from levada.copy.guard import GUARDS, hold_table
from levada.destinations import TableTarget
from levada.postgres.catalog import published_tables, read_table_description
from levada.postgres.idle_connections import IdleReaders
from levada.postgres.slots import export_snapshot
from levada.values import OnUnrepresentable
from levada.verify.differences import Kind
from levada.verify.source_table import SourceTable
from levada.verify.table import VerifyOptions, compare, scope_of


def prepare(shop: Shop) -> None:
    """Make the table, with rows that are copied and rows that are streamed."""
    shop.db.execute(*TYPES, create())  # type: ignore[arg-type]  # made of constants
    shop.db.execute(insert(1))  # type: ignore[arg-type]  # made of constants
    shop.start()
    shop.wait_caught_up()
    shop.db.execute(insert(11))  # type: ignore[arg-type]  # made of constants


def test_values_of_every_type_are_equal(shop: Shop) -> None:
    """Equal tables verify equal for every type: edges, empty values, NULLs, copied and streamed."""
    prepare(shop)
    report = shop.verify()
    assert report.equal, report.examples
    assert (report.source_rows, report.lake_rows) == (8, 8)
    assert not report.not_compared


@pytest.mark.nightly
def test_the_smallest_change_of_each_type_is_found(shop: Shop) -> None:
    """A value that differs as little as its type allows is found, with its key and its column alone."""
    prepare(shop)
    names = list(COLUMNS)
    values = ", ".join(values[0] for _, values, _ in COLUMNS.values())
    rows = [f"({100 + i}, {values})" for i in range(len(names))]
    shop.db.execute("INSERT INTO t VALUES " + ", ".join(rows))  # type: ignore[arg-type]  # made of constants
    assert shop.verify().equal
    shop.db.execute("CREATE SCHEMA other", "CREATE TABLE other.t (LIKE t INCLUDING ALL)", "INSERT INTO other.t TABLE t")
    with shop.db.connect() as connection:
        for i, name in enumerate(names):
            connection.execute(f'UPDATE other.t SET "{name}" = {COLUMNS[name][2]} WHERE id = {100 + i}')  # type: ignore[call-overload]
    shop.db.execute("CREATE PUBLICATION other FOR TABLE other.t")
    shop.wait_caught_up()
    assert shop.pipeline is not None
    destination = shop.pipeline._destination
    with shop.db.connect() as connection:
        [published] = published_tables(connection, "other")
        description = read_table_description(connection, published.id)
        [(oid,)] = connection.execute("SELECT 't'::regclass::oid").fetchall()
        replicated = read_table_description(connection, oid).schema()
    schema = description.schema()
    lake = destination.fixed(TableTarget.of(replicated))
    assert lake is not None
    source = shop.db.connection
    with (
        export_snapshot(source, "other_slot") as snapshot,
        IdleReaders(source, GUARDS) as guards,
        hold_table(guards, published, schema, description) as guard,
    ):
        other = SourceTable(source, snapshot, published, 2, OnUnrepresentable.ERROR, guard, threading.Event())
        found = compare(other, lake, schema, scope_of(schema, schema, lake), snapshot.lsn, VerifyOptions())
    changed = {d.key: d.columns for d in found.report.examples}
    assert changed == {(str(100 + i),): (name,) for i, name in enumerate(names)}
    assert found.report.counts[Kind.CHANGED] == len(names)


@pytest.mark.sampled
@pytest.mark.parametrize("policy", [OnUnrepresentable.NULL, OnUnrepresentable.TEXT])
def test_values_that_a_type_cannot_hold(shop: Shop, policy: OnUnrepresentable) -> None:
    """A value that the policy replaces is no difference: infinite dates, NaN numerics, 24:00 and nested arrays."""
    shop.policy = policy
    shop.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, d date, t time, ts timestamp, tz timestamptz, n numeric(5,2), a int[],"
        " da date[], na numeric(5,2)[], nn numeric)"
    )
    rows = """
        (1, 'infinity', '24:00', '-infinity', 'infinity', 'NaN', '{{1},{2}}', '{infinity}', '{NaN,1}', 'NaN'),
        (2, '2024-01-01', '12:00', '2024-01-01', '2024-01-01', 1, '[0:1]={1,2}', '{2024-01-01}', '{1.5}', 'Infinity'),
        (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"""
    shop.db.execute("INSERT INTO t VALUES " + rows)  # type: ignore[arg-type]  # made of constants
    shop.start()
    shop.wait_caught_up()
    shop.db.execute("INSERT INTO t SELECT id + 10, d, t, ts, tz, n, a, da, na, nn FROM t")
    report = shop.verify()
    assert report.equal, report.examples
    assert report.source_rows == 6
