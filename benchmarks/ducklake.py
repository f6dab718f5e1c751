"""A copy and batches of changes into DuckLake: this destination and DuckDB's own extension, in one run.

Both write a table of the same rows to one catalog in an embedded PostgreSQL, and get the same batches: 70 % updates,
10 % deletes, 20 % inserts. DuckDB's side is an INSERT from Parquet, then a DELETE and an INSERT in a transaction for
each batch. Prints wall and CPU seconds without PostgreSQL's. Usage::

    python -m benchmarks.ducklake [--rows 2000000] [--changes 10 100000] [--turns 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.apply import PIPELINE, SHAPES, TARGET, Base, Batch, FileEvents, Source
from benchmarks.measure import Meter, Usage, table
from tests.servers.ducklake import extension

from levada.destinations import DestinationContext
from levada.destinations.ducklake import DuckLakeDestination
from levada.destinations.ducklake.settings import Settings
from levada.local.postgres import EmbeddedPostgres, temporary_postgres
from levada.schema.changes import OP
from levada.values import Lsn, Watermark

OURS, THEIRS = "lake.public.orders", "lake.public.loaded"
NAMES = ", ".join(SHAPES)


def attached(server: EmbeddedPostgres) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    for name in ("postgres_scanner", "ducklake"):
        connection.execute(f"LOAD '{extension(name)}'")
    catalog = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
    connection.execute(f"ATTACH 'ducklake:postgres:{catalog}' AS lake (METADATA_SCHEMA 'lake')")
    return connection


def change(connection: duckdb.DuckDBPyConnection, events: FileEvents) -> None:
    file = f"read_parquet('{events.path}')"
    connection.execute("BEGIN")
    connection.execute(f"DELETE FROM {THEIRS} WHERE id IN (SELECT id FROM {file})")
    connection.execute(f"INSERT INTO {THEIRS} SELECT {NAMES} FROM {file} WHERE {OP} <> 'D'")
    connection.execute("COMMIT")


def median(runs: list[Usage], what: str) -> float:
    return statistics.median(getattr(u, what) for u in runs)


def compare(server: EmbeddedPostgres, rows: int, changes: list[int], turns: int, folder: Path) -> None:
    os.environ["PGUSER"] = "postgres"
    place = {"host": "127.0.0.1", "port": server.port, "database": "postgres", "schema": "lake"}
    settings = {"catalog": {**place, "tls": {"mode": "Disable"}}, "dataPath": str(folder / "lake")}
    context = DestinationContext(PIPELINE, folder / "work")
    destination = DuckLakeDestination.from_settings(Settings.model_validate(settings), context)
    with Meter() as copied:
        destination.write_table_rows(TARGET, Base(rows), Watermark(PIPELINE, 1, Lsn(1000)))
    loaded = folder / "base.parquet"
    pq.write_table(pa.concat_tables(Base(rows).map_partitions(lambda reader: reader.read_all())), loaded)
    connection = attached(server)
    connection.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
    connection.execute(f"CREATE TABLE {THEIRS} AS SELECT * FROM {OURS} LIMIT 0")
    with Meter() as inserted:
        connection.execute(f"INSERT INTO {THEIRS} SELECT {NAMES} FROM '{loaded}'")
    lines = [
        [name, int(rows / u.wall), u.cpu / rows * 1e6]
        for name, u in (("Levada, generated rows", copied.usage), ("DuckDB, from Parquet", inserted.usage))
    ]
    print(table(["copy", "rows/s", "CPU s/M"], lines), end="\n\n")
    source, seed, lines = Source(rows, folder), 1, []
    for n in changes:
        ours: list[Usage] = []
        theirs: list[Usage] = []
        for turn in range(turns + 1):
            events = source.batch(n, seed)
            seed += 1
            with Meter() as first:
                destination.write_events(Batch(events), Watermark(PIPELINE, 1, events.until))
            with Meter() as second:
                change(connection, events)
            if turn:
                ours.append(first.usage)
                theirs.append(second.usage)
        walls = [median(ours, "wall"), median(theirs, "wall")]
        lines.append([n, *walls, walls[0] / walls[1], median(ours, "cpu"), median(theirs, "cpu")])
    print(table(["changes", "Levada wall s", "DuckDB wall s", "ratio", "Levada CPU s", "DuckDB CPU s"], lines))
    counts = "SELECT count(*), count(DISTINCT id), bit_xor(hash(id, n, a, b, p, ts, f, d, u, j::varchar)) FROM "
    found = [connection.execute(counts + name).fetchone() for name in (OURS, THEIRS)]
    assert found[0] == found[1], f"the two tables differ: {found}"
    assert found[0] is not None
    assert found[0][0] == len(source.live), "rows are missing or twice there"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--changes", type=int, nargs="+", default=[10, 100_000])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    with temporary_postgres() as server, tempfile.TemporaryDirectory() as folder:
        compare(server, options.rows, options.changes, options.turns, Path(folder))


if __name__ == "__main__":
    main()
