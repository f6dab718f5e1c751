"""Runs PostgreSQL's regression suite without Levada, with a pipeline over all tables, and while that copies new ones.

Run ``python -m tests.regress`` as root on Debian, whose PostgreSQL 15 has JIT. It ends with 1 if Levada changes a
result of the suite, an engine ends by itself, or a table is neither equal to the source nor parked for a known reason.
The time is printed and not judged.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.measure import Meter, Usage, table
from tests.regress.judgement import changed_results, full_name, left_out, wrong_tables
from tests.regress.pipeline import frequent_discovery, pipeline, settled, verified
from tests.regress.suite import SuiteRun, create_database, run_suite
from tests.servers.postgres import older_options
from tests.servers.regress import suite

from levada.local.postgres import EmbeddedPostgres, temporary_postgres

_USUAL: Final = {
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "5min",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum_naptime": "1min",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
}
"""PostgreSQL's defaults, where servers of the tests have other values."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A run of the suite with its costs."""

    run: SuiteRun
    server: Usage
    engine_cpu_s: float
    findings: tuple[str, ...] = ()


def without(programs: Path, inputs: Path, folder: Path) -> Measured:
    """Run the suite alone."""
    with temporary_postgres(programs=programs, settings=_USUAL) as source:
        create_database(source)
        with Meter(_postmaster(source)) as server:
            run = run_suite(source, inputs, folder / "suite")
    return Measured(run, server.usage, 0.0)


def with_levada(programs: Path, inputs: Path, folder: Path, *, discovers: bool) -> Measured:
    """Run the suite with a pipeline over all tables, then judge the tables."""
    with ExitStack() as held:
        source = held.enter_context(temporary_postgres(programs=programs, settings=_USUAL))
        create_database(source)
        engine = held.enter_context(pipeline(source, held.enter_context(temporary_postgres()), folder))
        assert engine.process is not None
        with (
            frequent_discovery(engine) if discovers else nullcontext(),
            Meter(_postmaster(source)) as server,
            Meter(engine.process.pid) as client,
        ):
            run = run_suite(source, inputs, folder / "suite")
        tables = settled(engine)
        found = [*wrong_tables(tables, verified(engine))]
        others = list(left_out(engine.db, tables))
        found += [f"table {name} is left out, and has an identity" for name, has_identity in others if has_identity]
        parked = sorted({f"{full_name(t)}: {t['error']['code']}" for t in tables if t["phase"] == "Errored"})
        print(f"{len(tables)} tables are replicated, {len(others)} have no identity", *parked, sep="\n", flush=True)
    return Measured(run, server.usage, client.usage.cpu, tuple(found))


def _postmaster(server: EmbeddedPostgres) -> int:
    return int((server.data / "postmaster.pid").read_text().split()[0])


def main() -> int:
    """Run the suite in each way, one after another, and print the times and what is wrong."""
    if (programs := older_options().get("programs")) is None:
        sys.exit("PostgreSQL 15 is missing: apt-get install postgresql-15")
    inputs = suite()
    with tempfile.TemporaryDirectory(prefix="levada-regress-") as folder:
        # The suite's own user must reach its results.
        Path(folder).chmod(0o755)
        alone = without(programs, inputs, Path(folder, "alone"))
        rows, wrong = [_row("without Levada", alone, alone)], list[str]()
        for title, discovers in (("with Levada", False), ("with Levada, new tables found every 2 s", True)):
            measured = with_levada(programs, inputs, Path(folder, str(discovers)), discovers=discovers)
            rows.append(_row(title, measured, alone))
            found = [*changed_results(alone.run, measured.run), *measured.findings]
            wrong += [f"{title}: {finding}" for finding in found]
            if found:
                print(measured.run.differences, *found, sep="\n", flush=True)
    headers = ["", "tests", "failed", "s", "ratio", "server CPU s", "engine CPU s"]
    print(table(headers, rows), *wrong, sep="\n")
    return bool(wrong)


def _row(title: str, measured: Measured, alone: Measured) -> tuple[object, ...]:
    run, ratio = measured.run, measured.run.wall_s / alone.run.wall_s
    failed = ", ".join(sorted(run.failed)) or "none"
    return title, len(run.tests), failed, run.wall_s, ratio, measured.server.cpu, measured.engine_cpu_s


if __name__ == "__main__":
    sys.exit(main())
