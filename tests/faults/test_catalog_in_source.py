"""An Iceberg catalog in the source database, with all tables selected."""

from __future__ import annotations

from tests.rigs.database import Database
from tests.rigs.engine import Engine


def test_a_jdbc_catalog_in_the_source_database(engine: Engine, db: Database) -> None:
    """Its tables are left out, also after a restart. Once nothing is written, no commit is made."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)", "INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    catalog = {
        "type": "Jdbc",
        "uri": f"jdbc:postgresql://127.0.0.1:{db.server.port}/{db.name}",
        "warehouse": f"file://{engine.warehouse}",
        "properties": {"jdbc.user": "postgres"},
    }
    engine.spec = {
        "tables": {"include": [{"schema": "*", "name": "*"}]},
        "destination": {"iceberg": {"catalog": catalog, "namespace": "shop_{schema}"}},
    }
    engine.write_manifest()
    for turn in range(2):
        engine.start()
        engine.wait_caught_up()
        db.execute(f"INSERT INTO orders VALUES ({10 + turn}, 'later')")
        progress = engine.wait_caught_up()
        assert [t["name"] for t in progress["tables"]] == ["orders"]
        places = db.query("SELECT table_name, metadata_location FROM iceberg_tables")
        db.execute("SELECT pg_logical_emit_message(true, 'test', repeat('x', 100000))")
        before = progress["capture"]["receivedLsn"]
        engine.wait_for(lambda p, before=before: p["capture"]["receivedLsn"] != before)  # type: ignore[misc] # bound
        assert db.query("SELECT table_name, metadata_location FROM iceberg_tables") == places
        engine.assert_verified("orders")
        assert engine.stop() == 0
