"""Tags of cuts in catalogs that run as servers."""

from __future__ import annotations

import threading
from pathlib import Path

from pyspark.sql import SparkSession
from tests.conftest import Database
from tests.destinations.conftest import Lake
from tests.destinations.orders import ORDERS, copy
from tests.servers.rest_catalog import rest_catalog
from tests.servers.s3 import BUCKET, ObjectStore

from levada.destinations import DestinationContext, NamedCut
from levada.destinations.iceberg.java import CommitConflict
from levada.values import Lsn


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
