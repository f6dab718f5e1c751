"""Verification of tables while their pipeline runs."""

from __future__ import annotations

from tests.verify.conftest import Shop

from levada.verify.differences import Kind


def test_equal_tables_are_equal(shop: Shop) -> None:
    """A table that was copied and then changed equals the source, with the number of its rows."""
    shop.db.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, item text)",
        "INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 3000) g",
    )
    shop.start()
    shop.wait_caught_up()
    shop.db.execute(
        "UPDATE t SET item = NULL WHERE id = 7", "DELETE FROM t WHERE id > 2990", "UPDATE t SET id = -id WHERE id = 8"
    )
    report = shop.verify()
    assert report.equal, report
    assert (report.source_rows, report.lake_rows) == (2990, 2990)
    shop.sql("UPDATE {t} SET item = 'theirs' WHERE id = 5")
    report = shop.verify()
    assert report.counts[Kind.CHANGED] == 1
    assert report.to_json()["examples"] == [{"kind": "changed", "key": {"id": "5"}, "columns": ["item"]}]
    report = shop.verify(show_values=True)
    assert report.to_json()["examples"][0]["values"] == {"item": {"source": "v5", "destination": "theirs"}}


def test_odd_names(shop: Shop) -> None:
    """Names that are keywords, parts of the statements or need quotes are names like any other."""
    shop.db.execute(
        "CREATE TYPE pair AS (a int, b text)",
        'CREATE TABLE t ("select" int, "a.b" text, "c`d" text, "e""f" text, "i" pair[], "e" text[], "f0" int,'
        ' "key_hash" int, shown text, "%s {x}" text, "Ünï" text, path text,'
        ' PRIMARY KEY ("e""f", "select"))',
        """INSERT INTO t SELECT g, 'x', 'y', 'it''s "' || g, ARRAY[ROW(g, NULL)::pair], ARRAY['z', NULL], g, g,
        's', 'p', 'u', 'p' FROM generate_series(1, 40) g""",
    )
    shop.start()
    shop.wait_caught_up()
    report = shop.verify()
    assert report.equal, report
    shop.sql("UPDATE {t} SET `a.b` = 'theirs' WHERE `select` = 3")
    report = shop.verify()
    assert report.to_json()["examples"] == [
        {"kind": "changed", "key": {'e"f': "it's \"3", "select": "3"}, "columns": ["a.b"]}
    ]
    assert shop.verify(repair=True).repaired_equal
