"""Rows that the source has deleted, and whose columns are stored as another type by a new copy."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, LiteralString

import pytest
from tests.rigs.extension_types import add_hstore
from tests.rigs.replicated import InDuckLake, Replicated, T, in_ducklake, replicated

from levada.errors import NeedsOperator
from levada.runtime.config import TableConfig
from levada.schema.stored_types import StoredTypes
from levada.values import Deletes

__all__ = ["in_ducklake", "replicated"]

KINDS: Final = {
    "b": ("boolean", "true"), "o": ("bytea", "NULL"), "d": ("date", "'0044-03-15 BC'"),
    "s": ("timestamp", "'2024-01-01 10:00:00'"), "z": ("timestamptz", "'2024-01-01 10:00:00.120+00'"),
    "n": ("numeric(12,8)", "0.00000001"), "i": ("int", "-7"), "u": ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"),
    "m": ("int4multirange", "NULL"), "f": ("float8", "NULL"),
}  # fmt: skip
CREATE: Final = f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(f'{n} {kind}' for n, (kind, _) in KINDS.items())})"
ROW: Final = ", ".join(value for _, value in KINDS.values())
TEXTS: Final = ", ".join(f"concat({name})" for name in KINDS)


def restart(shop: Replicated, types: dict[str, str]) -> None:
    """Start the pipeline with these types, and wait until it has caught up."""
    if shop.pipeline is not None:
        shop.pipeline.stop()
    shop.start(tables={T: TableConfig(stored_types=StoredTypes.of(types), deletes=Deletes.MARK)})


def test_their_text_is_postgresqls(in_ducklake: InDuckLake) -> None:
    """A new copy with Text for each column gives a kept row the text that PostgreSQL prints, and not Arrow's."""
    in_ducklake.db.execute(CREATE, f"INSERT INTO t VALUES (1, {ROW}), (2, {ROW})")  # type: ignore[arg-type]
    [(expected,)] = in_ducklake.db.query(f"SELECT ARRAY[{TEXTS}] FROM t WHERE id = 1")  # type: ignore[arg-type]
    restart(in_ducklake, {"m": "Multirange"})
    in_ducklake.db.execute("DELETE FROM t WHERE id = 2")
    in_ducklake.wait_caught_up()
    restart(in_ducklake, dict.fromkeys(KINDS, "Text"))
    with in_ducklake.lake.duckdb() as lake:
        lake.execute("USE lake.shop_public")
        rows = dict(lake.execute(f"SELECT id, [{', '.join(KINDS)}] FROM t").fetchall())
        lake.execute("USE lake")
    assert [v or "" for v in rows[2]] == expected
    assert rows[1] == rows[2]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "value", "stored"), [("bytea", r"'\x6869'", "Text"), ("int4range", "'[1,2)'", "Text")]
)
def test_a_value_without_a_certain_text_ends_the_copy(
    in_ducklake: InDuckLake, kind: LiteralString, value: LiteralString, stored: str
) -> None:
    """The table says so and keeps its rows. It is not called damaged, which would end with the loss of the kept row."""
    in_ducklake.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v " + kind + ")", "INSERT INTO t VALUES (1, " + value + ")"
    )
    restart(in_ducklake, {"v": "Range"} if kind == "int4range" else {})
    in_ducklake.db.execute("DELETE FROM t")
    in_ducklake.wait_caught_up()
    assert in_ducklake.pipeline is not None
    in_ducklake.pipeline.stop()
    in_ducklake.start(
        wait=False, tables={T: TableConfig(stored_types=StoredTypes.of({"v": stored}), deletes=Deletes.MARK)}
    )
    with pytest.raises(NeedsOperator) as raised:
        in_ducklake.wait_caught_up()
    assert "[kept_rows_unmovable]" in str(raised.value) or "kept_rows_unmovable" in raised.value.message
    with in_ducklake.lake.duckdb() as lake:
        assert lake.execute("SELECT count(*) FROM lake.shop_public.t WHERE v IS NOT NULL").fetchone() == (1,)


def test_a_key_without_a_certain_value_ends_the_copy(in_ducklake: InDuckLake) -> None:
    """A key that becomes one of another time zone cannot be found again. The error says so, and the rows stay."""
    in_ducklake.db.execute(
        "CREATE TABLE t (k timestamp PRIMARY KEY)", "INSERT INTO t VALUES ('2024-01-01'), ('2024-01-02')"
    )
    restart(in_ducklake, {})
    in_ducklake.db.execute("DELETE FROM t WHERE k = '2024-01-01'")
    in_ducklake.wait_caught_up()
    in_ducklake.db.execute("ALTER TABLE t ALTER k TYPE timestamptz USING k AT TIME ZONE 'America/New_York'")
    with pytest.raises(NeedsOperator) as raised:
        in_ducklake.wait_caught_up()
    assert "kept_rows_unmovable" in str(raised.value) + raised.value.message
    with in_ducklake.lake.duckdb() as lake:
        assert lake.execute("SELECT count(*) FROM lake.shop_public.t").fetchone() == (2,)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["in_ducklake", "replicated"])
def test_a_row_without_a_value_of_the_new_key_ends_the_copy(kind: str, request: pytest.FixtureRequest) -> None:
    """It was deleted before the column of the key was filled. Another copy would not help, so no hint asks for one."""
    shop: Replicated = request.getfixturevalue(kind)
    shop.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    restart(shop, {})
    shop.db.execute("DELETE FROM t WHERE id = 1", "ALTER TABLE t ADD k int")
    shop.wait_caught_up()
    shop.db.execute("UPDATE t SET k = id", "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (k)")
    with suppress(NeedsOperator):
        shop.wait_caught_up()
    assert shop.pipeline is not None
    shop.pipeline.resync()
    with pytest.raises(NeedsOperator) as raised:
        shop.wait_caught_up()
    assert "kept_rows_unmovable" in str(raised.value) + raised.value.message


@pytest.mark.parametrize("kind", ["in_ducklake", "replicated"])
def test_a_default_of_an_added_column_is_the_new_key_of_a_kept_row(kind: str, request: pytest.FixtureRequest) -> None:
    """A row that was deleted before ADD COLUMN has the default there, so a later key of that column keeps the row."""
    shop: Replicated = request.getfixturevalue(kind)
    shop.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    restart(shop, {})
    shop.db.execute("DELETE FROM t WHERE id = 1")
    # So that the files with the row lack the column.
    shop.wait_caught_up()
    shop.db.execute("ALTER TABLE t ADD k numeric(9, 2) DEFAULT 7.5")
    shop.wait_caught_up()
    shop.db.execute("UPDATE t SET k = id", "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (k)")
    shop.wait_caught_up()
    shop.db.execute("INSERT INTO t VALUES (3, 3)")
    shop.wait_caught_up()
    query: LiteralString = "SELECT id, k::text, _levada_deleted_at IS NULL FROM shop_public.t ORDER BY id"
    rows = shop.lake.sql(query) if isinstance(shop, InDuckLake) else shop.replica.query(query)
    assert rows == [(1, "7.50", False), (2, "2.00", True), (3, "3.00", True)]


@pytest.mark.nightly
def test_of_an_extensions_type_in_postgresql(replicated: Replicated) -> None:
    """A kept row with a vector or a map is moved to the new copy, where each of them has PostgreSQL's own form."""
    with replicated.db.connect() as connection:
        add_hstore(connection)
    replicated.db.execute(
        "CREATE EXTENSION vector",
        "CREATE TABLE t (id int PRIMARY KEY, e vector(2), h hstore, n int)",
        "INSERT INTO t VALUES (1, '[1,-0.5]', '\"a\"=>NULL', 1), (2, '[1,-0.5]', '\"a\"=>NULL', 2)",
    )
    restart(replicated, {"e": "List", "h": "Map"})
    replicated.db.execute("DELETE FROM t WHERE id = 2")
    replicated.wait_caught_up()
    restart(replicated, {"e": "List", "h": "Map", "n": "Text"})
    kept = replicated.replica.query("SELECT e, h, n, _levada_deleted_at IS NULL FROM shop_public.t ORDER BY id")
    assert kept == [([1.0, -0.5], '"a"=>NULL', 1, True), ([1.0, -0.5], '"a"=>NULL', 2, False)]
