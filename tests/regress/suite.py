"""One run of PostgreSQL's regression suite on a server, and the result of each of its tests."""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from tests.servers.regress import PG_REGRESS

from levada.local.postgres import EmbeddedPostgres

DATABASE: Final = "regression"
PUBLICATION: Final = "levada_regression"
_RESULT: Final = re.compile(r"^(?:test|   ) +(\S+)\s+\.\.\. (ok|FAILED|failed)", re.MULTILINE)
_SETTINGS: Final = {
    "lc_messages": "C",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "bytea_output": "hex",
    "timezone_abbreviations": "Default",
}
"""The settings that pg_regress gives a database that it makes."""


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """The tests that ran, those of them that failed, how their outputs differ from the expected, and the seconds."""

    tests: frozenset[str]
    failed: frozenset[str]
    wall_s: float
    differences: str


def create_database(server: EmbeddedPostgres) -> None:
    """Make the suite's database as pg_regress does, with a table, because no pipeline starts without one."""
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
        for name, value in _SETTINGS.items():
            admin.execute(f"ALTER DATABASE {DATABASE} SET {name} TO '{value}'")
    with psycopg.connect(server.uri(DATABASE), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute("CREATE TABLE shop.orders (id int PRIMARY KEY)")


def run_suite(server: EmbeddedPostgres, inputs: Path, outputs: Path) -> SuiteRun:
    """Run all tests of the schedule in the database, as the server's user, because tests write files on both sides."""
    outputs.mkdir(parents=True)
    owner = server.data.stat()
    os.chown(outputs, owner.st_uid, owner.st_gid)
    command = [
        str(PG_REGRESS),
        f"--inputdir={inputs}",
        f"--outputdir={outputs}",
        f"--dlpath={inputs}",
        f"--bindir={server.bin}",
        "--host=127.0.0.1",
        f"--port={server.port}",
        "--user=postgres",
        f"--dbname={DATABASE}",
        "--use-existing",
        f"--schedule={inputs / 'parallel_schedule'}",
        # As many as keep two cores busy.
        "--max-connections=4",
    ]
    start = time.monotonic()
    done = subprocess.run(
        command,
        user=owner.st_uid,
        group=owner.st_gid,
        cwd=outputs,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    took = time.monotonic() - start
    results = dict(_RESULT.findall(done.stdout))
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pg_regress ended with {done.returncode}\n{done.stdout}")
    path = outputs / "regression.diffs"
    differences = path.read_text() if path.exists() else ""
    failed = frozenset(name for name, result in results.items() if result != "ok") - only_members(differences)
    return SuiteRun(frozenset(results), failed, took, differences)


def only_members(differences: str) -> frozenset[str]:
    """Return the tests whose outputs differ only in the publication of the pipeline, which psql shows of a member.

    Whether a table is a member by then depends on the time.
    """
    found: set[str] = set()
    for part in re.split(r"^diff ", differences, flags=re.MULTILINE)[1:]:
        name = re.search(r"^\+\+\+ \S*/results/(\S+)\.out", part, re.MULTILINE)
        changes = [line for line in part.splitlines()[1:] if line[:1] in "+-" and line[:4] not in ("+++ ", "--- ")]
        if name is not None and changes and set(changes) == {"+Publications:", f'+    "{PUBLICATION}"'}:
            found.add(name[1])
    return frozenset(found)
