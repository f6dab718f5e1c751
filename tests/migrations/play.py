"""Plays the history of one project under one engine, and judges what is in the lake."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from tests.histories.readers import DuckLakeReader, IcebergReader, Reader, Watched
from tests.migrations.lake import counter, polling
from tests.migrations.projects import Project
from tests.migrations.rows import Writer
from tests.migrations.states import SourceStates, unexplained
from tests.migrations.steps import Step, Steps, steps
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn
from tests.rigs.waiting import until

from levada.local.postgres import EmbeddedPostgres

_COPIED: Final = re.compile(r"table (\S+) is copied again by itself, because of (\w+)")
_PARKED: Final = re.compile(r"table (\S+) is parked: (.*?) \[(\w+)\]")
_SETTLED_S: Final = 180
_REPLICABLE: Final = """
SELECT c.oid::int, c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
    AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
"""
_CHANGES: Final = re.compile(r"\s*(?:ALTER|CREATE|DROP)\b", re.IGNORECASE)


@dataclass
class Outcome:
    """The course of one history."""

    steps: int = 0
    tables: int = 0
    rows: int = 0
    reads: int = 0
    copies: Tally[str] = field(default_factory=Tally)
    """Copies that the engine made by itself, by the code of their cause."""
    causes: list[str] = field(default_factory=list)
    """A line for each of these copies, with the statements of its step."""
    skipped: list[str] = field(default_factory=list)
    """Steps that failed with random rows, and were carried out without them."""
    findings: list[str] = field(default_factory=list)
    """All that must not be: tables that are parked or differ, states that the source never had, failed reads."""


@dataclass
class Play:
    """The history of a project on a server of its own, into one destination."""

    project: Project
    server: EmbeddedPostgres
    destination: str
    hurried: bool
    """True if no step waits for the engine. Otherwise each waits until all tables have the rows before it."""
    seed: int
    outcome: Outcome = field(default_factory=Outcome)
    _read: int = 0

    def play(self) -> Outcome:
        """Play all steps, compare, and remove everything."""
        folder = Path(tempfile.mkdtemp(prefix="levada-migrations-"))
        names = [f"{kind}_{self.destination}_{self.seed}" for kind in ("source", "lake")]
        with psycopg.connect(self.server.uri(), autocommit=True) as admin:
            for name in names:
                admin.execute(f"CREATE DATABASE {name}".encode())
        source, lake = (Database(self.server, name) for name in names)
        engine = Engine(source, folder)
        reader = DuckLakeReader(lake, folder) if self.destination == "ducklake" else IcebergReader(folder)
        self._write_manifest(engine, reader)
        try:
            with steps(self.project.command(source), folder / "project") as plan:
                self._play(engine, reader, plan)
        finally:
            engine.kill()
            reader.close()
            shutil.rmtree(folder, ignore_errors=True)
        return self.outcome

    def _write_manifest(self, engine: Engine, reader: Reader) -> None:
        # The usual values, and not those of the tests, but for the pace.
        engine.spec = {
            "tables": {"include": [{"schema": "public", "name": "*"}]},
            "destination": reader.section,
            "batch": {},
            "retries": {},
            "freshnessSeconds": 10 if self.hurried else 1,
        }
        engine.write_manifest()

    def _play(self, engine: Engine, reader: Reader, plan: Steps) -> None:
        states = SourceStates()
        with engine.db.connect() as connection:
            writer = Writer(connection, states, random.Random(self.seed))
            while not connection.execute(_REPLICABLE).fetchall():
                self._step(plan, writer)
            states.record_all(connection, gaps=False)
            engine.start()
            engine.wait_for(lambda p: p["tables"] and all(t["phase"] == "Ready" for t in p["tables"]))
            lake = reader._lake if isinstance(reader, DuckLakeReader) else None
            with counter(engine, lake) as counting, polling(engine, counting) as polled:
                while plan.names:
                    step = self._step(plan, writer)
                    if any(map(_CHANGES.match, step.statements)):
                        writer.write(6)
                        if not self.hurried:
                            self._settle(engine)
                    self._note_copies(engine, step)
                self._settle(engine, last=True)
                self._note_copies(engine, Step("the end", ()))
            self.outcome.reads, self.outcome.rows = polled.reads, writer.written
            names = dict(connection.execute(_REPLICABLE).fetchall())
            for oid, seen in polled.seen.items():
                for count in unexplained(states.counts[oid], seen):
                    name = names.get(oid, oid)
                    self.outcome.findings.append(
                        f"{name}: a reader saw {count} rows: {seen}, but it had {states.counts[oid]}"
                    )
            self.outcome.findings += [f"a read failed: {text}" for text in polled.failures]
            self.outcome.findings += self._differences(engine, reader, connection)

    def _step(self, plan: Steps, writer: Writer) -> Step:
        step = plan.next()
        if step.error:
            self.outcome.skipped.append(f"{step.name}: {step.error}")
            writer.withdraw()
            step = plan.next()
            if step.error:
                raise RuntimeError(f"{step.name} fails without random rows too: {step.error}")
        self.outcome.steps += 1
        writer.states.record_all(writer.connection, gaps=not step.atomic)
        return step

    def _settle(self, engine: Engine, *, last: bool = False) -> None:
        """Wait until each known table is Ready with all that is committed now. At the last time, all tables."""
        [(target,)] = engine.db.query("SELECT pg_current_wal_insert_lsn()::text")
        needed = dict(engine.db.query(_REPLICABLE)).keys() if last else set()

        def settled() -> bool:
            progress = engine.progress()
            if progress is None:
                return False
            tables = {t["id"]: t for t in progress["tables"]}
            return needed <= tables.keys() and all(
                t["phase"] == "Ready" and not t["error"] and lsn(t["appliedLsn"]) >= lsn(target)
                for t in tables.values()
            )

        try:
            until(settled, alive=engine.runs, limit_s=_SETTLED_S)
        except AssertionError:
            if not engine.runs():
                raise RuntimeError(f"the engine has ended\n{engine.log[-4000:]}") from None

    def _note_copies(self, engine: Engine, step: Step) -> None:
        log = engine.log
        new, self._read = log[self._read :], len(log)
        why = {table: text for table, text, _ in _PARKED.findall(new)}
        for table, code in _COPIED.findall(new):
            self.outcome.copies[code] += 1
            statements = [s for s in step.statements if _CHANGES.match(s)]
            self.outcome.causes.append(f"{step.name}: {table} [{code}] {why.get(table, '')} {statements}"[:1500])

    def _differences(self, engine: Engine, reader: Reader, connection: psycopg.Connection[Any]) -> Iterator[str]:
        progress = engine.progress()
        assert progress is not None
        tables = {t["id"]: t for t in progress["tables"]}
        expected = dict(connection.execute(_REPLICABLE).fetchall())
        self.outcome.tables = len(expected)
        for oid, name in expected.items():
            table = tables.get(oid)
            if table is None:
                yield f"{name} is no table of the pipeline"
            elif table["error"] or table["phase"] != "Ready":
                yield f"{name} is {table['phase']}: {table['error']}"
            else:
                watched = Watched(oid, "public", name, table["destinationTable"], False, (), oid)
                if text := reader.differences(connection, watched):
                    yield f"{name}, which is Ready: {text}"
