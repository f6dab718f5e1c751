"""One value of each type that another writer damaged, and sources whose settings change how values are written."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from pyspark.sql import types as st
from tests.rigs.verified_shop import Shop, shop
from tests.verify.every_type import COLUMNS, TYPES, create, insert

from levada.copy.results_in_order import OrderedResults
from levada.runtime.limits import Limits
from levada.segments.limits import BatchLimits
from levada.status import Progress
from levada.verify.differences import Kind

__all__ = ["shop"]

VARIANTS = 4


def damages(column: str, kind: st.DataType) -> dict[str, str]:
    """Return damages by name: expressions that give a value of this type another one, however close."""
    c = f"`{column}`"
    match kind:
        case st.BooleanType():
            return {"other": f"NOT {c}", "set": "false"}
        case st.FloatType() | st.DoubleType():
            of = kind.simpleString()
            other = f"CASE WHEN isnan({c}) THEN CAST('Infinity' AS {of}) ELSE -{c} END"
            return {"other": other, "set": f"CAST('NaN' AS {of})"}
        case st.DecimalType():
            of = kind.simpleString()
            return {"other": f"CAST('{7 / 10**kind.scale:.{kind.scale}f}' AS {of})", "set": f"CAST('0' AS {of})"}
        case st.IntegralType():
            least = f"CASE WHEN {c} < 0 THEN {c} + 1 ELSE {c} - 1 END"
            return {"other": f"CAST({least} AS {kind.simpleString()})", "set": f"CAST(0 AS {kind.simpleString()})"}
        case st.StringType():
            return {"other": f"concat({c}, ' ')", "case": f"concat({c}, '\\u0000')", "set": "''"}
        case st.BinaryType():
            return {"other": f"concat({c}, X'00')", "set": "X''"}
        case st.DateType():
            return {"other": f"date_add({c}, 1)", "set": "DATE '1970-01-01'"}
        case st.TimestampType() | st.TimestampNTZType():
            name = "TIMESTAMP" if isinstance(kind, st.TimestampType) else "TIMESTAMP_NTZ"
            return {"other": f"{c} + INTERVAL '0.000001' SECOND", "set": f"{name} '1970-01-01 00:00:00'"}
        case st.ArrayType():
            none = f"CAST(array() AS {kind.simpleString()})"
            null = f"CAST(array(NULL) AS {kind.simpleString()})"
            return {"other": f"concat({c}, {null})", "set": none, "null": f"concat({null}, {c})"}
    raise AssertionError(kind)


def most_tasks(shop: Shop) -> int:
    """Wait until all is applied, and return the most tasks of a batch. The last one may have been small."""
    assert shop.pipeline is not None
    caught_up, seen = shop.pipeline.caught_up(), [0]

    def applied(progress: Progress) -> bool:
        seen.append(max((t.last_apply_tasks for t in progress.tables), default=0))
        return caught_up(progress)

    shop.wait(applied)
    return max(seen)


@pytest.mark.parametrize("batches", ["by the engine", "by tasks"])
def test_one_damaged_value_of_each_type_is_found(shop: Shop, batches: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each damage is found at its key and column alone, and repaired. NULL and the type's empty value differ."""
    if batches == "by tasks":
        shop.config["limits"] = Limits(batches=BatchLimits(task_rows=20))
        shop.fewest_cores = 1
        # Otherwise this process may fold all of the small ranges before Spark's first worker starts.
        monkeypatch.setattr(OrderedResults, "next_here", lambda self: self.queue.take_now() if self.ended else None)
    shop.db.execute(*TYPES, create())  # type: ignore[arg-type]  # made of constants
    shop.db.execute(insert(1))  # type: ignore[arg-type]  # made of constants
    shop.start()
    shop.wait_caught_up()
    lake = {f.name: f.dataType for f in shop.spark.table(table_name(shop)).schema}
    names = list(COLUMNS)
    first = {name: 1000 + 100 * i for i, name in enumerate(names)}
    with shop.db.connect() as connection, connection.transaction():
        for name in names:
            for way in range(len(damages(name, lake[name])) + 1):
                connection.execute(insert(first[name] + VARIANTS * way))  # type: ignore[arg-type]  # made of constants
    assert (most_tasks(shop) > 0) is (batches == "by tasks")
    assert shop.verify().equal
    changes, expected = [], {}
    for name in names:
        made = {**damages(name, lake[name]), "null": "NULL"}
        cases = []
        nulls = dict(null_rows(shop, name, first[name], VARIANTS * (len(made) + 1)))
        for way, (kind, expression) in enumerate(made.items()):
            at = first[name] + VARIANTS * way
            for id_ in range(at, at + VARIANTS):
                if nulls[id_] is not (kind == "set"):
                    # NULL is set to a value, and values are changed or set to NULL.
                    continue
                cases.append(f"WHEN {id_} THEN {expression}")
                expected[str(id_)] = (name,)
        if cases:
            changes.append(f"`{name}` = CASE id {' '.join(cases)} ELSE `{name}` END")
    assert len(changes) == len(names)
    shop.spark.sql(f"UPDATE {table_name(shop)} SET {', '.join(changes)} WHERE id >= 1000")
    report = shop.verify(examples=10_000)
    found = {d.key[0]: d.columns for d in report.examples}
    assert found == expected
    assert report.counts[Kind.CHANGED] == len(expected)
    sampled = shop.verify(sample=0.5, examples=10_000)
    assert {d.key[0] for d in sampled.examples} < expected.keys()
    assert sampled.differences > len(expected) // 4
    repaired = shop.verify(repair=True)
    assert repaired.repaired_equal
    assert shop.verify().equal


def null_rows(shop: Shop, name: str, first: int, count: int) -> list[Any]:
    """Return the keys of some rows of the lake's table, each with True if the column is NULL there."""
    where = f"id BETWEEN {first} AND {first + count}"
    found = shop.spark.sql(f"SELECT id, `{name}` IS NULL FROM {table_name(shop)} WHERE {where}")
    return [tuple(r) for r in found.collect()]


def table_name(shop: Shop) -> str:
    """Return the table's name in Spark."""
    return f"levada_{shop.name.replace('-', '_')}.shop_public.t"


SETTINGS = {
    "TimeZone": "'Asia/Kathmandu'",
    "DateStyle": "'German, DMY'",
    "IntervalStyle": "'sql_standard'",
    "extra_float_digits": "-15",
    "bytea_output": "'escape'",
    "xmloption": "'document'",
    "lc_monetary": "'C'",
    "lc_numeric": "'C'",
    "search_path": "pg_catalog, public",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "jit_above_cost": "0",
    "enable_seqscan": "off",
    "default_transaction_isolation": "'serializable'",
    "default_transaction_deferrable": "on",
    "quote_all_identifiers": "on",
    "debug_parallel_query": "on",
    "force_parallel_mode": "on",
    "parallel_setup_cost": "0",
    "statement_timeout": "60000",
}


@pytest.mark.parametrize("scope", ["DATABASE", "ROLE"])
def test_no_setting_of_the_source_makes_a_difference(shop: Shop, scope: str) -> None:
    """Neither a false difference nor a difference that is overlooked, with copied and with streamed rows."""
    target = f"DATABASE {shop.db.name}" if scope == "DATABASE" else f"ROLE postgres IN DATABASE {shop.db.name}"
    shop.db.execute(*TYPES, create())  # type: ignore[arg-type]  # made of constants
    shop.db.execute(insert(1))  # type: ignore[arg-type]  # made of constants
    with shop.db.connect() as connection:
        for name, value in SETTINGS.items():
            try:
                connection.execute(f"ALTER {target} SET {name} = {value}")  # type: ignore[call-overload]
            except psycopg.errors.UndefinedObject:
                continue
    shop.start()
    shop.wait_caught_up()
    with shop.db.connect() as connection:
        connection.execute("SET standard_conforming_strings = on; SET array_nulls = on; SET datestyle = iso")
        connection.execute(insert(11))  # type: ignore[call-overload]  # made of constants
    shop.wait_caught_up()
    report = shop.verify()
    assert report.equal, report
    assert report.source_rows == 8
    shop.sql("UPDATE {t} SET c_interval = concat(c_interval, ' ') WHERE id = 11")
    shop.sql("UPDATE {t} SET c_timestamptz = c_timestamptz + INTERVAL '0.000001' SECOND WHERE id = 1")
    report = shop.verify()
    assert {(d.key[0], d.columns) for d in report.examples} == {("11", ("c_interval",)), ("1", ("c_timestamptz",))}
    assert shop.verify(repair=True).repaired_equal


def test_a_database_with_another_encoding_and_locale(shop: Shop) -> None:
    """Texts of a LATIN1 database are compared by their characters, and a key by the bytes of its text."""
    with psycopg.connect(shop.db.server.uri(), autocommit=True) as admin:
        name = f"{shop.db.name}_latin1"
        admin.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")  # type: ignore[call-overload]
    try:
        shop.db = type(shop.db)(shop.db.server, name)
        shop.db.execute(
            "CREATE TABLE t (id text PRIMARY KEY, a text[], b text, c char(4))",
            "INSERT INTO t VALUES ('\u00e9', ARRAY['\u00fc', NULL, ''], '\u00df|~', '\u00e4'), ('E', '{}', '', '')",
        )
        shop.start()
        shop.wait_caught_up()
        shop.db.execute("INSERT INTO t SELECT id || '\u00ff', a, b || '\u00e9', c FROM t")
        report = shop.verify()
        assert report.equal, report
        assert report.source_rows == 4
        shop.sql("UPDATE {t} SET b = concat(b, 'e') WHERE id = '\u00e9'")
        [found] = shop.verify().examples
        assert (found.kind, found.key, found.columns) == (Kind.CHANGED, ("\u00e9",), ("b",))
    finally:
        shop.stop()
        with psycopg.connect(shop.db.server.uri(), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[call-overload]
