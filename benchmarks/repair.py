"""The repair of a table that lost one of its data files, side by side with a copy of as many rows.

``levada run`` is a process of its own. A file of the Iceberg table is removed, and ``levada verify --repair`` finds the
rows that it had and writes them again. A plain ``levada verify`` of the same table, and a resync of another table with
as many rows as were lost, show what of the cost is the comparison and what a copy would take. Usage::

    python -m benchmarks.repair [--rows 1000000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
from benchmarks.freshness import engine, until_applied, write_manifest
from benchmarks.initial_copy import COLUMNS, ROWS
from benchmarks.measure import Meter, Usage, table
from benchmarks.verify import postmaster

from levada.local.postgres import EmbeddedPostgres
from levada.runtime.host.engine_api import VERIFICATIONS, EngineApi, EngineWork
from levada.runtime.host.table_requests import resync_tables
from levada.runtime.host.work_dir import running_address, running_progress
from levada.spec.manifests import load_manifests

_REPAIRED, _COPIED = "orders", "copied"
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """The costs of one piece of work, for the engine and for the source."""

    name: str
    own: Usage
    source: Usage

    @property
    def cpu(self) -> float:
        return self.own.cpu + self.source.cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, EmbeddedPostgres(Path(made) / "postgres") as server:
        folder = Path(made)
        fill(server, _REPAIRED, options.rows)
        with engine(folder, write_manifest(folder, server, 2)) as process:
            until_applied(folder, process, 1, 0)
            lost = max((folder / "lake/bench" / _REPAIRED / "data").rglob("*.parquet"), key=lambda p: p.stat().st_size)
            rows = pq.read_metadata(lost).num_rows
            fill(server, _COPIED, rows)
            until_applied(folder, process, 2, 0)

            def measured(name: str, work: Callable[[], None]) -> Measured:
                with Meter(process.pid) as own, Meter(postmaster(server)) as source:
                    work()
                print(f"{name}: {own.usage.wall:.1f} s", flush=True)
                return Measured(name, own.usage, source.usage)

            # The first one compiles much of Spark's code.
            verify(folder, repair=False)
            plain = measured(f"verify of {options.rows:,} rows", lambda: verify(folder, repair=False))
            copy = measured(f"resync of {rows:,} rows", lambda: resync(folder))
            lost.unlink()
            whole = measured(f"repair of {rows:,} rows of {options.rows:,}", lambda: verify(folder, repair=True))
    print(
        table(
            ("", "wall s", "engine CPU s", "source CPU s", "peak MB"),
            [(m.name, m.own.wall, m.own.cpu, m.source.cpu, m.own.peak_rss / 1e6) for m in (plain, copy, whole)],
        )
    )
    wall = (whole.own.wall - plain.own.wall) / copy.own.wall
    cpu = (whole.cpu - plain.cpu) / copy.cpu
    print(f"\nrepair beyond one verify, as a ratio to the copy: wall {wall:.2f}, CPU {cpu:.2f}")


def fill(server: EmbeddedPostgres, name: str, rows: int) -> None:
    with psycopg.connect(server.uri(), autocommit=True) as c:
        c.execute(f"CREATE TABLE {name} ({COLUMNS})")
        c.execute(ROWS.replace("INTO orders", f"INTO {name}").format(rows))
        c.execute(f"VACUUM (FREEZE, ANALYZE) {name}")


def verify(folder: Path, *, repair: bool) -> None:
    address = running_address(folder / "work")
    assert address is not None
    client, told, begun = EngineWork(EngineApi(address, {}), VERIFICATIONS), "", time.monotonic()
    number = client.start({"tables": [f"public.{_REPAIRED}"], "repair": repair})
    while not (state := client.state(number))["finished"]:
        if repair and state["step"] != told:
            told = state["step"]
            print(f"    {time.monotonic() - begun:.0f} s: {told}", flush=True)
        time.sleep(_POLL_S)
    [result] = state["tables"]
    if not result.get("repairedEqual" if repair else "equal"):
        raise SystemExit(f"not equal: {result}")


def resync(folder: Path) -> None:
    """Copy the other table again, and wait until its new rows are served."""
    resync_tables(load_manifests((folder / "pipeline.yaml").read_text()), [_COPIED], secrets=folder / "secrets")
    while not _copying(folder):
        time.sleep(_POLL_S)
    while _copying(folder):
        time.sleep(_POLL_S)


def _copying(folder: Path) -> bool:
    progress = running_progress(folder / "work")
    [found] = [t for t in progress.tables if t.name == _COPIED] if progress is not None else [None]
    return found is None or found.resync is not None or found.phase != "Ready"


if __name__ == "__main__":
    main()
