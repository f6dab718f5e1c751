"""The lake does not answer for a while: changes are staged, the slot is acknowledged, and the tables catch up."""

from __future__ import annotations

from pyiceberg.catalog.sql import SqlCatalog
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn
from tests.rigs.equality import table_differences

from levada.local.postgres import temporary_postgres


def test_a_catalog_that_is_away(db: Database, engine: Engine) -> None:
    """The engine goes on staging, over a restart as well. It recovers by itself once the catalog is back."""
    db.execute("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item SELECT generate_series(1, 1000)")
    with temporary_postgres() as server:
        engine.spec = {
            "destination": {
                "iceberg": {
                    "namespace": "shop_{schema}",
                    "catalog": {
                        "type": "Jdbc",
                        "uri": f"jdbc:postgresql://127.0.0.1:{server.port}/postgres",
                        "warehouse": f"file://{engine.warehouse}",
                        "properties": {"jdbc.user": "postgres"},
                    },
                }
            },
            "retries": {"maxAttempts": 100, "delaySeconds": 1, "maxDelaySeconds": 1},
        }
        engine.write_manifest()
        engine.start()
        engine.wait_caught_up()
        server.stop()
        db.execute("INSERT INTO item SELECT generate_series(1001, 2000)")
        engine.wait_for(lambda p: any(t["error"] and t["error"]["attempts"] > 2 for t in p["tables"]))
        engine.kill()
        engine.start()
        engine.wait_for(lambda p: p["capture"]["connected"])
        db.execute("DELETE FROM item WHERE id < 500")
        [(target,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
        engine.wait_for(lambda p: lsn(p["capture"]["acknowledgedLsn"]) >= lsn(target))
        server.start()
        engine.wait_caught_up()
        assert engine.stop() == 0
        uri = f"postgresql+psycopg2://postgres@127.0.0.1:{server.port}/postgres"
        reader = SqlCatalog("levada_shop", uri=uri, warehouse=f"file://{engine.warehouse}", init_catalog_tables="false")
        lake = reader.load_table("shop_public.item").scan().to_arrow()
    with db.connect() as connection:
        assert not table_differences(connection, lake, "public", "item")
