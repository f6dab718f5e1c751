"""Replicated tables that become partitions of roots which nothing has published yet."""

from __future__ import annotations

import pytest
from tests.rigs.pipeline import table
from tests.rigs.replicated import Replicated, replicated
from tests.rigs.waiting import until

__all__ = ["replicated"]


@pytest.mark.parametrize("trigger", [True, False])
def test_a_root_of_a_replicated_table_is_a_table_of_the_pipeline(replicated: Replicated, trigger: bool) -> None:
    """It has the rows of its only partition, and those of the next one."""
    replicated.db.execute(
        "CREATE TABLE old (id int PRIMARY KEY, v text)", "INSERT INTO old SELECT i, 'old' FROM generate_series(1, 9) i"
    )
    replicated.start(ddl_trigger=trigger, discovery_s=1.0)
    assert replicated.pipeline is not None
    with replicated.db.connect() as connection, connection.transaction():
        connection.execute("CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
        connection.execute("ALTER TABLE root ATTACH PARTITION old FOR VALUES FROM (0) TO (100)")
    until(
        replicated.pipeline.progress,
        lambda p: {t.table.name for t in p.tables} == {"root"} and table(p, "root").phase == "Ready",
    )
    replicated.db.execute(
        "CREATE TABLE next PARTITION OF root FOR VALUES FROM (100) TO (200)", "INSERT INTO root VALUES (150, 'new')"
    )
    replicated.wait_caught_up()
    assert replicated.replica.query("SELECT count(*) FROM shop_public.root") == [(10,)]
