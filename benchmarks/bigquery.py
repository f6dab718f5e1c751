"""A copy and a batch of changes into BigQuery's emulator, and its own load job of a Parquet file, in one run.

Prints wall seconds, and the CPU seconds of this process per million rows. The emulator has a DuckDB in place of
BigQuery, so only the CPU of the client says something about BigQuery. Usage::

    python -m benchmarks.bigquery [--rows 500000] [--changes 10 100000]
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.apply import PARTITION, PIPELINE, SCHEMA, TARGET, Base, Batch, Source, rows_of
from tests.servers.bigquery import PROJECT, Emulator, emulator

from levada.destinations import DestinationContext
from levada.destinations.bigquery import BigQueryDestination
from levada.destinations.bigquery.settings import Settings
from levada.values import Lsn, Watermark

_BOUNDARY = "levada-benchmark"


def measured(what: str, rows: int, act: Callable[[], object]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    act()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what:42} {wall:8.2f} s {rows / wall:12,.0f} rows/s {cpu / rows * 1e6:8.2f} CPU s/M", flush=True)


def load_job(server: Emulator, rows: int) -> None:
    """Load the same rows as one Parquet file, which the client writes and uploads."""
    file = io.BytesIO()
    with pq.ParquetWriter(file, SCHEMA.arrow) as writer:
        for i in range(0, rows, PARTITION):
            writer.write_table(rows_of(np.arange(i + 1, min(i + PARTITION, rows) + 1), 0))
    table = {"projectId": PROJECT, "datasetId": "public", "tableId": "loaded"}
    job = {"configuration": {"load": {"destinationTable": table, "sourceFormat": "PARQUET"}}}
    parts = (b"application/json", json.dumps(job).encode()), (b"application/octet-stream", file.getvalue())
    body = b"".join(
        b"--%s\r\nContent-Type: %s\r\n\r\n%s\r\n" % (_BOUNDARY.encode(), kind, data) for kind, data in parts
    )
    answer = server.session.post(
        f"{server.endpoint['rest']}/upload/bigquery/v2/projects/{PROJECT}/jobs?uploadType=multipart",
        data=body + f"--{_BOUNDARY}--".encode(),
        headers={"Content-Type": f"multipart/related; boundary={_BOUNDARY}"},
        timeout=600,
    )
    assert answer.ok, answer.text[:300]
    assert "errorResult" not in answer.json()["status"], answer.json()["status"]
    assert server.sql("SELECT COUNT(*) FROM public.loaded") == [[str(rows)]], answer.text[:600]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--changes", type=int, nargs="+", default=[10, 100_000])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, emulator(Path(name)) as server:
        folder = Path(name)
        settings = Settings.model_validate({"project": PROJECT, "endpoint": server.endpoint})
        destination = BigQueryDestination.from_settings(settings, DestinationContext(PIPELINE, folder))
        destination.startup()
        rows = options.rows
        measured("make the rows", rows, lambda: Base(rows).map_partitions(pa.RecordBatchReader.read_all))
        measured(
            "copy",
            rows,
            lambda: destination.write_table_rows(TARGET, Base(rows), Watermark(PIPELINE, 1, Lsn(1000))),
        )
        server.sql("CREATE TABLE public.loaded AS SELECT * FROM public.orders WHERE FALSE")
        measured("load job of a Parquet file", rows, lambda: load_job(server, rows))
        source = Source(rows, folder)
        for seed, count in enumerate(options.changes, 1):
            batch = Batch(source.batch(count, seed))
            mark = Watermark(PIPELINE, 1, batch.until)
            measured(f"batch of {count:,} changes", count, lambda b=batch, m=mark: destination.write_events(b, m))
        destination.shutdown()


if __name__ == "__main__":
    main()
