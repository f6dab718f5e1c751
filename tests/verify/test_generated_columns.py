"""Generated columns that PostgreSQL 18 streams, in the copy, in the stream and in comparisons."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rigs.replicated import Replicated, T, replicated
from tests.rigs.waiting import until

from levada.errors import NeedsOperator
from levada.runtime.config import PublicationConfig, TableConfig
from levada.schema.masks import Mask, TableMasks
from levada.values import GeneratedColumns, MaskMethod

__all__ = ["replicated"]

pytestmark = pytest.mark.since(18)
GENERATED = "GENERATED ALWAYS AS"


def start(shop: Replicated, generated: GeneratedColumns = GeneratedColumns.REPLICATE, **more: Any) -> None:
    """Start the pipeline, and wait until it has caught up."""
    if shop.pipeline is not None:
        shop.pipeline.stop()
    shop.start(publication=PublicationConfig(f"levada_{shop.db.name}", generated_columns=generated), **more)


def rows(shop: Replicated) -> tuple[list[Any], list[Any]]:
    """Return the rows of both sides as text, without virtual columns."""
    source = shop.db.query("SELECT (to_jsonb(t) - 'virtual')::text FROM t ORDER BY id")
    copied = shop.replica.query("SELECT to_jsonb(t)::text FROM shop_public.t ORDER BY id")
    return source, copied


def check(shop: Replicated) -> None:
    """Check that both sides are equal, also by a comparison."""
    shop.wait_caught_up()
    source, copied = rows(shop)
    assert copied == source
    report = shop.verify()
    assert report.equal, report


def test_stored_ones_are_replicated(replicated: Replicated) -> None:
    """Copied, streamed, with an unchanged TOASTed value, and after each statement that changes one."""
    db = replicated.db
    db.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, a int, b text, g int {GENERATED} (a * 2) STORED,"
        f" u text {GENERATED} (upper(b)) STORED, virtual int {GENERATED} (a + 1) VIRTUAL)",
        "INSERT INTO t (id, a, b) VALUES (1, 1, 'x'), (2, NULL, NULL)",
    )
    start(replicated)
    check(replicated)
    db.execute(
        "INSERT INTO t (id, a, b) SELECT 3, 7, string_agg(md5(n::text), '') FROM generate_series(1, 500) n",
        "UPDATE t SET a = 8 WHERE id = 3",
        "UPDATE t SET a = 5 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    )
    check(replicated)
    for statement in (
        f"ALTER TABLE t ADD added int {GENERATED} (a + 100) STORED",
        "ALTER TABLE t RENAME g TO doubled",
        "ALTER TABLE t ALTER doubled SET EXPRESSION AS (a * 3)",
        "ALTER TABLE t ALTER added DROP EXPRESSION",
        "ALTER TABLE t DROP COLUMN doubled",
    ):
        db.execute(
            statement, "UPDATE t SET a = a + 1 WHERE id = 1", "INSERT INTO t (id, a) SELECT max(id) + 1, 1 FROM t"
        )
        check(replicated)


def test_the_setting_decides_and_can_be_taken_back(replicated: Replicated) -> None:
    """Without it they are left out. A table gets them by a new copy and loses them again, without a change of a row."""
    db = replicated.db
    db.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, a int, g int {GENERATED} (a * 2) STORED)", "INSERT INTO t VALUES (1, 1)"
    )
    columns = "SELECT string_agg(attname::text, ' ' ORDER BY attname) FROM pg_attribute"
    columns += " WHERE attrelid = 'shop_public.t'::regclass AND attnum > 0 AND NOT attisdropped"
    start(replicated, GeneratedColumns.LEAVE_OUT)
    assert replicated.replica.query(columns) == [("a id",)]  # type: ignore[arg-type]  # made of constants
    start(replicated)
    until(lambda: replicated.replica.query(columns) == [("a g id",)])  # type: ignore[arg-type]  # as above
    check(replicated)
    db.execute("INSERT INTO t VALUES (2, 2)")
    check(replicated)
    start(replicated, GeneratedColumns.LEAVE_OUT)
    until(lambda: replicated.replica.query(columns) == [("a id",)])  # type: ignore[arg-type]  # as above
    assert replicated.verify().equal


@pytest.mark.nightly
def test_an_excluded_one_stays_out(replicated: Replicated) -> None:
    """A column that columns.exclude names is not replicated, and the others are."""
    db = replicated.db
    db.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, a int, g int {GENERATED} (a * 2) STORED, h int {GENERATED} (a) STORED)",
        "INSERT INTO t VALUES (1, 1)",
    )
    start(replicated, tables={T: TableConfig(excluded_columns=frozenset({"g"}))})
    db.execute("INSERT INTO t VALUES (2, 2)")
    replicated.wait_caught_up()
    assert replicated.replica.query("SELECT to_jsonb(t)::text FROM shop_public.t ORDER BY id") == [
        ('{"a": 1, "h": 1, "id": 1}',), ('{"a": 2, "h": 2, "id": 2}',)
    ]  # fmt: skip
    assert replicated.verify().equal


def test_the_value_of_a_masked_column_does_not_come_through_one(replicated: Replicated) -> None:
    """A table with a mask and a generated column without one is not copied, and the message names the column."""
    db = replicated.db
    db.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, a text, g text {GENERATED} (upper(a)) STORED)",
        "INSERT INTO t VALUES (1, 'secret')",
    )
    masks = TableMasks.of({"a": Mask(MaskMethod.NULL)})
    with pytest.raises(NeedsOperator, match="generated_column_unmasked"):
        start(replicated, tables={T: TableConfig(masks=masks)})
    assert replicated.replica.query("SELECT to_regclass('shop_public.t') IS NULL") == [(True,)]
    masks = TableMasks.of({"a": Mask(MaskMethod.NULL), "g": Mask(MaskMethod.NULL)})
    replicated.storage = type(replicated.storage)()
    start(replicated, tables={T: TableConfig(masks=masks)})
    db.execute(
        "INSERT INTO t VALUES (2, 'secret')",
        f"ALTER TABLE t ADD h text {GENERATED} (a || '!') STORED",
        "INSERT INTO t VALUES (3, 'secret')",
    )
    with pytest.raises(NeedsOperator, match="generated_column_unmasked"):
        replicated.wait_caught_up()
    assert "secret" not in str(replicated.replica.query("SELECT to_jsonb(t)::text FROM shop_public.t"))
