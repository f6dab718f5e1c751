"""The samples of the slot's lag in a running engine."""

from __future__ import annotations

from tests.rigs.database import Database
from tests.rigs.waiting import until

from levada.local.postgres import EmbeddedPostgres
from levada.runtime.report.lag_sampler import LagSampler


def test_a_slot_that_became_another_databases_is_no_longer_reported(db: Database, postgres: EmbeddedPostgres) -> None:
    """The last sample is forgotten when another database has a slot of that name, and the other's is not shown."""
    name, elsewhere = f"levada_{db.name}", Database(postgres, "postgres")
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    db.query(create, name)
    sampler = LagSampler(db.connection, name, every_s=0.1)
    sampler.start()
    try:
        until(lambda: sampler.progress().lag_bytes is not None)
        with elsewhere.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
            connection.execute(create, [name])
        until(lambda: sampler.progress().sampled_at is None)
    finally:
        sampler.stop()
        elsewhere.query("SELECT pg_drop_replication_slot(%s)", name)
