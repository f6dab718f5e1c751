"""DDL of an application at the source, with and without Levada's trigger, in databases of 10 to 3,000 tables.

All tables are in the publication of a pipeline. Each statement runs in a session that is used again, and as the first
one of a fresh session, because a job that connects, creates a temporary table and leaves is the commonest case. The
trigger is enabled and disabled by turns. A second table has the server's CPU for the periodic reads of an idle engine,
and a third the same for new partitions of a root that has 10 to 3,000. The server is Debian's newest if one is
installed, because that has JIT, and else the embedded one. Usage::

    python -m benchmarks.ddl [--tables 10 300 3000] [--partitions 10 300 1000 3000] [--turns 15]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
from benchmarks.measure import Meter, table
from tests.servers.postgres import DEBIAN

from levada.local.postgres import EmbeddedPostgres
from levada.postgres.catalog import list_tables, read_catalog_version, streamed_tables
from levada.postgres.connection import PostgresConnection
from levada.postgres.ddl import install_ddl_trigger
from levada.postgres.membership import read_publication_state
from levada.postgres.publication_owners import mark_publication
from levada.postgres.publications import ensure_coverage, inspect_coverage
from levada.postgres.storage import read_storage
from levada.postgres.withdrawals import inherited_members, unidentified_members
from levada.runtime.source.table_sizes import TableSizes
from levada.runtime.stages.discovery import check_interval_s, discovery_interval_s
from levada.runtime.stages.storage_poller import poll_interval_s
from levada.values import PipelineOwner

PUBLICATION = "levada_bench"
# What a statement needs, the statement, and what removes it. Only the statement is measured.
STATEMENTS: dict[LiteralString, tuple[LiteralString, LiteralString, LiteralString]] = {
    "CREATE TEMP TABLE": ("", "CREATE TEMP TABLE job (id int, v text)", "DROP TABLE job"),
    "CREATE TABLE": ("", "CREATE TABLE made (id int PRIMARY KEY, v text)", "DROP TABLE made"),
    "ALTER TABLE ADD COLUMN": ("", "ALTER TABLE t1 ADD COLUMN added int", "ALTER TABLE t1 DROP COLUMN added"),
    "CREATE INDEX": ("", "CREATE INDEX made ON t1 (v)", "DROP INDEX made"),
    "DROP TABLE": ("CREATE TABLE made (id int PRIMARY KEY, v text)", "DROP TABLE made", ""),
}


SETTINGS = {"max_locks_per_transaction": "1024", "autovacuum": "off"}


def newest_programs() -> Path | None:
    found = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda p: float(p.parts[4]))
    return found[-1].parent if found else None


def server_in(folder: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(folder, programs=newest_programs(), settings=SETTINGS)


@contextmanager
def database(server: EmbeddedPostgres, tables: int) -> Iterator[str]:
    name = f"bench_{tables}"
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        with psycopg.connect(server.uri(name), autocommit=True) as c:
            for first in range(1, tables + 1, 100):
                made = (f"CREATE TABLE t{n} (id int PRIMARY KEY, v text, at timestamptz DEFAULT now());"
                        for n in range(first, min(first + 100, tables + 1)))  # fmt: skip
                c.execute("".join(made).encode())
        yield name
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def connection_to(server: EmbeddedPostgres, name: str) -> PostgresConnection:
    return PostgresConnection("127.0.0.1", server.port, name, sslmode="disable", user="postgres")


def replicate(server: EmbeddedPostgres, name: str) -> None:
    with connection_to(server, name).connect() as connection:
        ensure_coverage(connection, PUBLICATION, set(list_tables(connection)), manage=True)
        mark_publication(connection, PUBLICATION, PipelineOwner("bench", "bench"))
        assert install_ddl_trigger(connection)


def timed(connection: psycopg.Connection, statement: str, *, prepare: bool = True) -> float:
    before, run, after = STATEMENTS[statement]
    if before and prepare:
        connection.execute(before)
    start = time.perf_counter()
    connection.execute(run)
    took = time.perf_counter() - start
    if after:
        connection.execute(after)
    return took * 1000


def measure_statements(uri: str, turns: int) -> Iterator[tuple[str, str, float, float, float]]:
    """Yield the statement, the session, medians in ms without and with the trigger, and the quickest ones' difference.

    On a busy machine the quickest ones show the cost, because they were not interrupted.
    """
    costs: dict[tuple[str, str, bool], list[float]] = {}
    with (
        psycopg.connect(uri, autocommit=True) as admin,
        psycopg.connect(uri, autocommit=True) as without,
        psycopg.connect(uri, autocommit=True) as with_trigger,
    ):
        for _ in range(turns):
            for on, warm in ((False, without), (True, with_trigger)):
                switch(admin, on=on)
                for name, (prepare, *_) in STATEMENTS.items():
                    timed(warm, name)  # reads again what the change of the trigger has made invalid
                    costs.setdefault((name, "warm", on), []).append(timed(warm, name))
                    if prepare:
                        admin.execute(prepare)
                    with psycopg.connect(uri, autocommit=True) as fresh:
                        costs.setdefault((name, "fresh", on), []).append(timed(fresh, name, prepare=False))
    for name in STATEMENTS:
        for session in ("warm", "fresh"):
            alone, beside = (statistics.median(costs[name, session, way]) for way in (False, True))
            quickest = min(costs[name, session, True]) - min(costs[name, session, False])
            yield name, session, alone, beside, quickest


def switch(admin: psycopg.Connection, *, on: bool) -> None:
    for trigger in ("levada_ddl", "levada_ddl_drop"):
        admin.execute(f"ALTER EVENT TRIGGER {trigger} {'ENABLE ALWAYS' if on else 'DISABLE'}".encode())


@contextmanager
def partitions(server: EmbeddedPostgres, count: int) -> Iterator[str]:
    name = f"bench_root_{count}"
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        with psycopg.connect(server.uri(name), autocommit=True) as c:
            c.execute(
                "CREATE TABLE r (id int PRIMARY KEY, v text, at timestamptz DEFAULT now()) PARTITION BY LIST (id)"
            )
            for first in range(1, count + 1, 100):
                numbers = range(first, min(first + 100, count + 1))
                c.execute("".join(f"CREATE TABLE r{n} PARTITION OF r FOR VALUES IN ({n});" for n in numbers).encode())
        yield name
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def measure_partitions(server: EmbeddedPostgres, name: str, turns: int) -> Iterator[float]:
    """Yield the medians in ms of a new partition without and with the trigger, and the server's CPU ms of each."""
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    took: dict[bool, list[float]] = {False: [], True: []}
    cpu = {False: 0.0, True: 0.0}
    with (
        psycopg.connect(server.uri(name), autocommit=True) as admin,
        psycopg.connect(server.uri(name), autocommit=True) as session,
    ):
        for turn in range(-1, 4):
            for on in (False, True):
                switch(admin, on=on)
                session.execute("CREATE TABLE made PARTITION OF r FOR VALUES IN (-1)")
                with Meter(postmaster) as meter:
                    for n in range(turns):
                        start = time.perf_counter()
                        session.execute(f"CREATE TABLE made{n} PARTITION OF r FOR VALUES IN ({-2 - n})".encode())
                        took[on] += [(time.perf_counter() - start) * 1000] if turn >= 0 else []
                cpu[on] += meter.usage.cpu * 1000 if turn >= 0 else 0
                for table_name in ("made", *(f"made{n}" for n in range(turns))):
                    session.execute(f"DROP TABLE {table_name}".encode())
    yield from (statistics.median(took[False]), statistics.median(took[True]))
    yield from (cpu[False] / len(took[False]), cpu[True] / len(took[True]))


def measure_reads(server: EmbeddedPostgres, name: str, turns: int) -> Iterator[tuple[str, float, float]]:
    """Yield each periodic read of an idle engine, the server's CPU in ms, and its share of a core in percent."""
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    with connection_to(server, name).connect() as connection:
        tables = [t.id for t in streamed_tables(connection, PUBLICATION)]
        # As a running engine has read them: the first time at its start.
        sizes = TableSizes()
        sizes.read(connection, tables)

    def discover(c: psycopg.Connection) -> None:
        unidentified_members(c, PUBLICATION)
        inherited_members(c, PUBLICATION, lambda _: True)
        inspect_coverage(c, PUBLICATION, set(list_tables(c)), listed=True)
        streamed_tables(c, PUBLICATION)
        read_publication_state(c, PUBLICATION, tables)
        sizes.read(c, tables)

    count = len(tables)
    reads: dict[str, tuple[float, Callable[[psycopg.Connection], object]]] = {
        "storage": (poll_interval_s(count), lambda c: read_storage(c, tables)),
        "gaps": (check_interval_s(count), lambda c: read_publication_state(c, PUBLICATION, tables)),
        "discovery": (discovery_interval_s(60.0, count), discover),
        "20 looks for lost identities": (
            20.0, lambda c: [unidentified_members(c, PUBLICATION, always=False) for _ in range(20)]),
        "20 looks for new tables": (
            20 * max(3.0, count * 0.002), lambda c: [read_catalog_version(c, PUBLICATION) for _ in range(20)]),
    }  # fmt: skip
    for title, (every_s, read) in reads.items():
        with Meter(postmaster) as meter:
            for _ in range(turns):
                with connection_to(server, name).connect() as connection:
                    read(connection)
        cpu = meter.usage.cpu / turns
        yield f"{title}, every {every_s:.0f} s", cpu * 1000, cpu / every_s * 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, nargs="*", default=[10, 300, 3000])
    parser.add_argument("--partitions", type=int, nargs="*", default=[10, 300, 1000, 3000])
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    statements: list[tuple[object, ...]] = []
    reads: list[tuple[object, ...]] = []
    created: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory(prefix="levada-ddl-") as folder, server_in(Path(folder) / "data") as server:
        with psycopg.connect(server.uri()) as c:
            version, jit, setting = c.execute(
                "SELECT current_setting('server_version'), pg_jit_available(), current_setting('jit')"
            ).fetchone() or ("", False, "")
        print(f"PostgreSQL {version} of {server.bin}, {'with' if jit else 'without'} LLVM, jit = {setting}\n")
        for count in options.tables:
            with database(server, count) as name:
                replicate(server, name)
                for what, session, off, on, quickest in measure_statements(server.uri(name), options.turns):
                    statements.append((count, what, session, off, on, on - off, quickest))
                # A server analyses its catalog after this many changes. This one does not do so by itself.
                with psycopg.connect(server.uri(name), autocommit=True) as c:
                    c.execute("ANALYZE")
                costs = list(measure_reads(server, name, 10))
                reads += [
                    (count, *row) for row in (*costs, ("all", sum(c[1] for c in costs), sum(c[2] for c in costs)))
                ]
        for count in options.partitions:
            with partitions(server, count) as name:
                replicate(server, name)
                off, on, cpu_off, cpu_on = measure_partitions(server, name, options.turns)
                created.append((count, off, on, on - off, cpu_off, cpu_on, cpu_on - cpu_off))
    print(
        table(["tables", "statement", "session", "ms without", "ms with", "more", "quickest, more"], statements),
        end="\n\n",
    )
    print(table(["tables", "periodic read", "server CPU ms", "% of a core"], reads), end="\n\n")
    heads = ["partitions", "ms without", "ms with", "more", "server CPU ms without", "with", "more"]
    print(table(heads, created))


if __name__ == "__main__":
    main()
