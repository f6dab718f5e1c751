"""BigQuery: the emulator bqemulator, which has a DuckDB behind BigQuery's REST and Storage APIs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import pyarrow as pa
import requests
from tests.rigs.waiting import LIMIT_S
from tests.servers.ports import free_port, wait_for_port

from levada.local.jars import cache_folder, only_process

_LOCK: Final = Path(__file__).parents[2] / "requirements" / "bqemulator.txt"
PROJECT: Final = "project-1"

# DuckDB would download its extensions. It takes those that are in their place already.
_EXTENSIONS: Final = """
import pathlib, shutil, sys, sysconfig, duckdb
place = pathlib.Path(sys.argv[1], ".duckdb", "extensions", "v" + duckdb.__version__,
                     duckdb.sql("PRAGMA platform").fetchone()[0])
place.mkdir(parents=True)
for file in pathlib.Path(sysconfig.get_paths()["purelib"]).glob("duckdb_extension_*/**/*.duckdb_extension"):
    shutil.copy(file, place)
"""


@dataclass(frozen=True, slots=True)
class Emulator:
    """A running emulator."""

    rest_port: int
    grpc_port: int
    session: requests.Session = field(default_factory=requests.Session)

    @property
    def endpoint(self) -> dict[str, str]:
        """Its addresses, as a manifest has them."""
        return {"rest": f"http://127.0.0.1:{self.rest_port}", "storage": f"127.0.0.1:{self.grpc_port}"}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the REST API on the project, and return what it answers."""
        url = f"{self.endpoint['rest']}/bigquery/v2/projects/{PROJECT}{path}"
        answer = self.session.request(method, url, json=body, timeout=LIMIT_S)
        assert answer.ok, answer.text
        return answer.json() if answer.content else {}

    def sql(self, text: str) -> list[list[Any]]:
        """Run SQL as another client does, and return its rows as the REST API has them."""
        job = self.call("POST", "/queries", {"query": text, "useLegacySql": False, "timeoutMs": 1000 * LIMIT_S})
        assert job["jobComplete"], job
        assert not job.get("errors"), job
        return [[cell["v"] for cell in row["f"]] for row in job.get("rows", ())]

    def read(self, dataset: str, table: str) -> pa.Table:
        """Read a table by BigQuery's own client, in its Arrow types."""
        from google.cloud.bigquery_storage_v1 import BigQueryReadClient, types
        from google.cloud.bigquery_storage_v1.services.big_query_read.transports import BigQueryReadGrpcTransport

        channel = grpc.insecure_channel(self.endpoint["storage"], [("grpc.max_receive_message_length", -1)])
        with channel:
            client = BigQueryReadClient(transport=BigQueryReadGrpcTransport(channel=channel))
            wanted = types.ReadSession(
                table=f"projects/{PROJECT}/datasets/{dataset}/tables/{table}", data_format=types.DataFormat.ARROW
            )
            session = client.create_read_session(
                parent=f"projects/{PROJECT}", read_session=wanted, max_stream_count=1, timeout=LIMIT_S
            )
            schema = pa.ipc.read_schema(pa.py_buffer(session.arrow_schema.serialized_schema))
            batches = [
                pa.ipc.read_record_batch(pa.py_buffer(part.arrow_record_batch.serialized_record_batch), schema)
                for stream in session.streams
                for part in client.read_rows(stream.name, timeout=LIMIT_S)
            ]
        return pa.Table.from_batches(batches, schema)

    def tables(self, dataset: str) -> set[str]:
        """Return the names of a dataset's tables."""
        found = self.call("GET", f"/datasets/{dataset}/tables?maxResults=1000")
        return {t["tableReference"]["tableId"] for t in found.get("tables", ())}


def _environment() -> Path:
    """Return the folder of the emulator's own Python environment, which is made when it is first needed."""
    digest = hashlib.sha256(_LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache_folder() / "tests" / "bqemulator" / digest
    with only_process(folder.parent) as scratch:
        if not folder.exists():
            made, python = scratch / "made", scratch / "made" / "bin" / "python"
            for command in (
                [sys.executable, "-m", "venv", "--without-pip", made],
                [
                    sys.executable,
                    "-m",
                    "pip",
                    "--python",
                    python,
                    "install",
                    "--quiet",
                    "--require-hashes",
                    "-r",
                    _LOCK,
                ],
                [python, "-c", _EXTENSIONS, made / "home"],
            ):
                done = subprocess.run(
                    list(map(str, command)), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
                )
                assert done.returncode == 0, done.stdout + done.stderr
            made.replace(folder)
    return folder


@contextmanager
def emulator(folder: Path) -> Iterator[Emulator]:
    """Run an emulator without any dataset."""
    made = _environment()
    found = Emulator(free_port(), free_port())
    command = [made / "bin" / "python", "-m", "bqemulator", "start", "--project", PROJECT, "--log-level", "warning"]
    command += ["--rest-port", str(found.rest_port), "--grpc-port", str(found.grpc_port)]
    log = folder / "bqemulator.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            list(map(str, command)), stdout=out, stderr=out, env={**os.environ, "HOME": str(made / "home")}
        ) as process,
    ):
        try:
            for port in (found.rest_port, found.grpc_port):
                wait_for_port(process, port, log)
            yield found
        finally:
            found.session.close()
            process.kill()
