"""Tags of cuts in catalogs that run as servers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession
from tests.destinations.orders import ORDERS, copy
from tests.faults.cut_load import MONEY, TABLES, TOTAL, Load, listed
from tests.rigs.database import Database
from tests.rigs.engine import Engine, engine
from tests.rigs.lake import Lake
from tests.servers.rest_catalog import rest_catalog
from tests.servers.s3 import BUCKET, ObjectStore

from levada.destinations import DestinationContext, NamedCut
from levada.destinations.iceberg.java import CommitConflict
from levada.values import Lsn

__all__ = ["engine"]

KILLS = 4


def test_engines_that_tag_at_the_same_time(db: Database, spark: SparkSession, s3: ObjectStore, tmp_path: Path) -> None:
    """No cut is lost if two engines tag a table of a REST catalog, which merges the properties of both commits."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    for key, value in s3.keys.items():
        (credentials / key).write_text(value)
    with rest_catalog(tmp_path, db, s3, f"s3://{BUCKET}/{db.name}") as uri:
        manifest = {"catalog": {"type": "Rest", "uri": uri, "properties": s3.place}, "namespace": "shop_{schema}"}
        lake = Lake(manifest, DestinationContext(f"r{abs(hash(tmp_path))}", tmp_path / "work", spark, credentials))
        engines = [lake.destination(work=work) for work in "ab"]
        copy(lake, engines[0])
        names = [[f"{who}{n}" for n in range(10)] for who in "ab"]
        begin = threading.Barrier(2)

        def tag(who: int) -> None:
            begin.wait()
            for name in names[who]:
                while True:
                    try:
                        engines[who].update_cuts(ORDERS.id, NamedCut(name, Lsn(1000)), (), lake.mark(0))
                        break
                    except CommitConflict:
                        continue

        threads = [threading.Thread(target=tag, args=(who,)) for who in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = dict.fromkeys((*names[0], *names[1]), Lsn(1000))
        assert engines[0].update_cuts(ORDERS.id, None, (), lake.mark(0)) == expected
        assert engines[1].update_cuts(ORDERS.id, None, names[0], lake.mark(0)) == dict.fromkeys(names[1], Lsn(1000))
        refs = {row.name for row in lake.sql("SELECT name FROM {t}.refs")}
        assert refs == {"main", *names[1]}


@pytest.fixture(params=["Jdbc", "Rest"])
def catalog(request: pytest.FixtureRequest, db: Database, s3: ObjectStore, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A catalog on S3, as the manifest has it. Both kinds keep their tables in the test's database."""
    warehouse = f"s3://{BUCKET}/{db.name}-cuts"
    if request.param == "Rest":
        with rest_catalog(tmp_path, db, s3, warehouse) as uri:
            yield {"type": "Rest", "uri": uri, "properties": s3.place}
        return
    uri = f"jdbc:postgresql://127.0.0.1:{db.server.port}/{db.name}"
    yield {"type": "Jdbc", "uri": uri, "warehouse": warehouse, "properties": {**s3.place, "jdbc.user": "postgres"}}


def test_every_cut_is_consistent_through_kills(
    db: Database, engine: Engine, s3: ObjectStore, catalog: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each catalog on S3, through kills at random moments, each complete cut has the same sum of money."""
    db.execute(*TABLES)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    chance = random.Random(7)
    engine.spec = {
        "cuts": {"everySeconds": 5, "keep": 200},
        "tables": {"include": [{"schema": "public", "name": name} for name in MONEY]},
        "destination": {"iceberg": {"namespace": "shop_{schema}", "catalog": catalog}},
        "staging": {"uri": s3.uri(f"{db.name}-cuts-staging")},
    }
    engine.write_manifest()
    with Load(db):
        engine.start()
        for _ in range(KILLS):
            engine.wait_for(lambda p: p["state"] == "Running" and p["cuts"]["kept"] > 0)
            time.sleep(chance.uniform(0.5, 7))
            engine.kill()
            engine.start()
        kept = engine.wait_for(lambda p: p["state"] == "Running" and p["cuts"]["kept"] > 0)["cuts"]["kept"]
        engine.wait_for(lambda p: p["cuts"]["kept"] >= kept + KILLS)
    complete = [cut["name"] for cut in listed(engine).values() if cut["phase"] == "Complete"]
    assert len(complete) >= KILLS
    assert {name: _total_at(db, s3, name) for name in complete} == dict.fromkeys(complete, TOTAL)


def _total_at(db: Database, s3: ObjectStore, cut: str) -> int:
    """Return the sum of all money at a cut. The catalog has the place of each table."""
    total = 0
    for table, column in MONEY.items():
        [(path,)] = db.query("SELECT metadata_location FROM iceberg_tables WHERE table_name = %s", table)
        lake = StaticTable.from_metadata(path, properties=s3.properties)
        snapshot = lake.snapshot_by_name(cut)
        assert snapshot is not None, f"{table} has no tag {cut}"
        rows = lake.scan(snapshot_id=snapshot.snapshot_id, selected_fields=(column,)).to_arrow()
        total += pc.sum(rows.column(column)).as_py() or 0
    return total
