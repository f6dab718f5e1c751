"""The initial copy into Iceberg, its limit (psql), and Spark's own way (JDBC into Iceberg's writer).

All read the same table of one PostgreSQL on loopback. CPU is that of the client's whole process tree, without the
server's. Each is measured several times, in turns, after one run that warms up. The best run counts. Usage::

    python -m benchmarks.initial_copy [--rows 2000000] [--turns 3] [--connections 2]
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow as pa
from benchmarks.measure import Meter, Usage, rss_bytes, table
from pyspark.sql import SparkSession

from levada.copy.snapshot import SnapshotRows
from levada.copy.spark_tasks import SparkTasks
from levada.destinations import DestinationContext
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.settings import Settings
from levada.local.postgres import EmbeddedPostgres
from levada.postgres.catalog import published_tables, read_table_schema
from levada.postgres.connection import PostgresConnection
from levada.postgres.slots import export_snapshot
from levada.runtime.resources.spark import spark_session
from levada.schema import TableTarget
from levada.values import Watermark

PIPELINE = "benchmark"
COLUMNS = (
    "id bigint PRIMARY KEY, i int, t20 text, t40 text, n numeric(12,2), ts timestamptz, b bool, d double precision,"
    " u uuid, j jsonb"
)
ROWS = """
    INSERT INTO orders SELECT g, (g::bigint * 7919) % 1000000, 'customer-' || lpad((g % 99991)::text, 11, '0'),
        md5(g::text) || substr(md5((g + 1)::text), 1, 8), (g % 10000000) / 100.0,
        '2024-01-01'::timestamptz + g * interval '1.5s', g % 3 = 0, g / 7.0, gen_random_uuid(),
        jsonb_build_object('k', g % 100, 'v', md5((g + 2)::text))
    FROM generate_series(1, {}) g
"""


def fill(server: EmbeddedPostgres, rows: int) -> None:
    with psycopg.connect(server.uri(), autocommit=True) as c:
        c.execute(f"CREATE TABLE orders ({COLUMNS})")
        c.execute(ROWS.format(rows))
        c.execute("VACUUM (FREEZE, ANALYZE) orders")
        c.execute("CREATE PUBLICATION bench FOR TABLE orders")


def by_psql(server: EmbeddedPostgres) -> None:
    """The limit: one backend's binary COPY, received and thrown away."""
    subprocess.run(
        [server.bin / "psql", server.uri(), "-qc", r"\copy orders TO '/dev/null' (FORMAT binary)"], check=True
    )


class Levada:
    """The product's own way: `SnapshotRows` into `IcebergDestination`, from the snapshot to the commit."""

    def __init__(self, spark: SparkSession, server: EmbeddedPostgres, lake: Path, connections: int) -> None:
        self._spark = spark
        self._source = PostgresConnection("127.0.0.1", server.port, "postgres", sslmode="disable", user="postgres")
        self._connections = connections
        self._attempts = itertools.count(1)
        catalog = {"type": "Hadoop", "warehouse": str(lake / "warehouse")}
        self._destination = IcebergDestination.from_settings(
            Settings.model_validate({"catalog": catalog}), DestinationContext(PIPELINE, lake / "work", spark)
        )

    def into_iceberg(self) -> None:
        self._copy(lambda rows, mark: self._destination.write_table_rows(TableTarget.of(rows.schema), rows, mark))

    def discarded(self) -> None:
        """Received and decoded to Arrow, and no more."""
        self._copy(lambda rows, _: rows.map_partitions(count))

    def _copy(self, write: Callable[[SnapshotRows, Watermark], object]) -> None:
        with self._source.connect() as c:
            [published] = published_tables(c, "bench")
            schema = read_table_schema(c, published.id)
        self._destination.drop_table_for_copy(TableTarget.of(schema))
        with export_snapshot(self._source, f"levada_bench_{next(self._attempts)}") as snapshot:
            rows = SnapshotRows(
                SparkTasks(self._spark), self._source, snapshot, published, schema, connections=self._connections
            )
            write(rows, Watermark(PIPELINE, 1, snapshot.lsn))


def count(reader: pa.RecordBatchReader) -> int:
    return sum(batch.num_rows for batch in reader)


def by_jdbc(spark: SparkSession, server: EmbeddedPostgres, lake: Path, rows: int, parts: int) -> None:
    """Spark's JDBC source, in as many parts by key, into Iceberg's own writer."""
    for name, value in (("", "org.apache.iceberg.spark.SparkCatalog"), (".type", "hadoop"), (".warehouse", str(lake))):
        spark.conf.set(f"spark.sql.catalog.jdbc{name}", value)
    spark.sql("DROP TABLE IF EXISTS jdbc.public.orders")
    frame = spark.read.jdbc(
        f"jdbc:postgresql://127.0.0.1:{server.port}/postgres",
        "orders",
        column="id",
        lowerBound=1,
        upperBound=rows,
        numPartitions=parts,
        properties={"user": "postgres", "fetchsize": "10000", "driver": "org.postgresql.Driver"},
    )
    frame.writeTo("jdbc.public.orders").using("iceberg").create()


def measured(run: Callable[[], None]) -> Usage:
    with Meter() as meter:
        run()
    return meter.usage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--connections", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "postgres") as server:
        lake = Path(folder) / "lake"
        fill(server, args.rows)
        with Meter() as start:
            # Spark's writer needs the JVM's second compiler, which Levada does without.
            conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"}
            spark = spark_session(
                "benchmark",
                cores=args.connections,
                conf=conf,
                defaults=IcebergDestination.spark_conf(None),
                jars=IcebergDestination.jars(),
            )
        print(f"Spark's start: {start.usage}", flush=True)
        levada = Levada(spark, server, lake, args.connections)
        ways: dict[str, Callable[[], None]] = {
            "psql COPY binary, discarded": lambda: by_psql(server),
            "Levada, decoded and discarded": levada.discarded,
            "Levada into Iceberg": levada.into_iceberg,
            "Spark JDBC into Iceberg": lambda: by_jdbc(spark, server, lake / "jdbc", args.rows, args.connections),
        }
        first = {name: measured(run) for name, run in ways.items()}
        print(f"after one run of each: {rss_bytes() / 1e6:.0f} MB", flush=True)
        turns = [{name: measured(run) for name, run in ways.items()} for _ in range(args.turns)]
    best = {name: (min(t[name].wall for t in turns), min(t[name].cpu for t in turns)) for name in ways}
    limit = best["psql COPY binary, discarded"][0]
    print(
        table(
            ("", "rows/s", "of psql's", "CPU s/M", "first run, CPU s/M", "MB"),
            [
                (
                    name,
                    int(args.rows / wall),
                    limit / wall,
                    cpu / args.rows * 1e6,
                    first[name].cpu / args.rows * 1e6,
                    max(t[name].peak_rss for t in turns) // 1_000_000,
                )
                for name, (wall, cpu) in best.items()
            ],
        )
    )


if __name__ == "__main__":
    main()
