"""A server with a twin database, an engine over the other one, and a destination."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from tests.histories import stored
from tests.histories.expected import KEY, Watched
from tests.histories.memory import MemoryReader
from tests.histories.readers import DuckLakeReader, IcebergReader, PostgresReader, Reader
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn
from tests.rigs.extension_types import add_hstore
from tests.rigs.waiting import LIMIT_S, until

from levada.errors import NeedsOperator
from levada.local.postgres import EmbeddedPostgres, temporary_postgres
from levada.runtime.host.table_requests import resync_tables, retry_tables
from levada.spec.manifests import load_manifests

SETTLED_S: Final = 30.0
"""A table that is not parked is equal this long after the last statement."""
_ROOT: Final = Path(__file__).parents[2]
_POLLS: Final = (sys.executable, str(Path(__file__).with_name("short_polls.py")))
_WORDS: Final = (
    "resync",
    "changelog",
    "partitioned",
    "external",
    "switched",
    "leaves",
    "keep",
    "v3",
    "mark",
    "ignore",
    "append",
    "masks",
    "small",
    "generated",
    "stored",
    "repartitioned",
    "filtered",
    "edited",
    "fixed",
)
FILTERED: Final = "filtered"
"""The name of the tables of which a part of the rows is replicated."""
_FILTERS: Final = ("k1 % 3 <> 0", "k1 > 2", "true", "k1 % 3 = 1", "k1 < 0 OR k1 > 4")
"""The row filters of these tables, in turn."""
EDITED: Final = "edited"
"""The name of the tables whose TableSyncs change."""
_EDITS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"mask": {"c1": {"method": "HMAC"}}, "exclude": ["c3"]},
    {"mask": {"c2": {"method": "Truncate", "length": 3}, "k1": {"method": "HMAC"}}, "exclude": ["c1", "c5"]},
    {"mask": {"c2": {"method": "Null"}, "c4": {"method": "Last", "length": 4}}},
    {"mask": {"c1": {"method": "HMAC"}, "c3": {"method": "HMAC"}, "k1": {"method": "HMAC"}}},
    {"exclude": ["c2"], "mask": {"c1": {"method": "Truncate", "length": 2}}},
)
"""The columns of these TableSyncs, in turn."""
_PARTITIONS: Final = (
    "truncate(1000, i)", "truncate(7, b)", "bucket(4, i)", "bucket(3, t)", "truncate(2, t)", "truncate(100, n)",
    "month(d)", "hour(ts)", "day(ts)", "i", "t", "year(d)",
)  # fmt: skip
"""The partitions of the tables named parted, in turn by the number of their history."""
_SPACES: Final = 400
"""Histories of a world that have TableSyncs for their partitioned tables."""
_numbers = itertools.count(1)


class EngineEndedError(Exception):
    """The engine ended by itself, or does not start."""


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of world: its server, destination and settings."""

    server: int = 18
    destination: str = "ducklake"
    trigger: bool = True
    resync: bool = False
    changelog: bool = False
    partitioned: bool = False
    """True if each history has a table whose Iceberg table is partitioned."""
    transform: str = ""
    """Partitioning of all of them. Without it each differs from the next one."""
    external: bool = False
    """True if the publication is made by hand, of all tables."""
    switched: bool = False
    """True if the publication streams the partitions for themselves for a while."""
    leaves: bool = False
    """True if the publication streams the partitions for themselves at all times."""
    keep: bool = False
    """True if the rows of partitions that are gone stay in the lake."""
    mark: bool = False
    """True if deleted rows stay in the lake, with the time at which they were deleted."""
    ignore: bool = False
    """True if deleted rows stay in the lake as they were."""
    append: bool = False
    """True if tables without an identity are replicated as well."""
    masks: bool = False
    """True if each history has a table with masked columns."""
    v3: bool = False
    """True if Iceberg tables have format version 3."""
    small: bool = False
    """True if files and batches are small, and histories have large transactions."""
    generated: bool = False
    """True if generated columns that are stored are replicated, from PostgreSQL 18 on."""
    stored: bool = False
    """True if each history has a table with columns in types that a TableSync chooses."""
    repartitioned: bool = False
    """True if each phase partitions the Iceberg tables in another way."""
    filtered: bool = False
    """True if each history has a table with a row filter, which changes while the engine is away."""
    edited: bool = False
    """True if each history has a table of which other columns are masked and left out in each phase."""
    fixed: bool = False
    """True if changes of columns are not propagated to the lake, DuckLake or Iceberg."""

    def __str__(self) -> str:
        words = [f"{self.destination}-{self.server}", "" if self.trigger else "notrigger"]
        words += [name for name in _WORDS if getattr(self, name)]
        return "-".join(filter(None, words))

    @property
    def by_hand(self) -> bool:
        """Return True if the publication is made by hand, so that nothing keeps any table out of it."""
        return self.external or self.leaves

    @property
    def keeps(self) -> bool:
        """Return True if the lake keeps rows that the source has no more, and does not mark them."""
        return self.keep or self.ignore

    @classmethod
    def parse(cls, text: str) -> Form:
        """Return the world that has this name, such as ``ducklake-16-notrigger-resync``."""
        destination, server, *words = text.split("-")
        if rest := set(words) - {"notrigger", *_WORDS}:
            raise ValueError(f"unknown words in {text}: {', '.join(rest)}")
        flags: dict[str, Any] = {name: name in words for name in _WORDS}
        return cls(int(server), destination, "notrigger" not in words, **flags)


@dataclass
class World:
    """One engine over a database of its own."""

    form: Form
    engine: Engine
    twin: Database
    reader: Reader
    _spaces: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _turn: int = 0
    """The number of times that tables were partitioned in another way."""

    @property
    def db(self) -> Database:
        return self.engine.db

    def new_space(self) -> str:
        """Return the name of a schema that no history of this world had."""
        return f"n{next(self._spaces)}_h"

    def transform(self, space: str) -> str:
        """Return how a history's table is partitioned in the lake, empty if it has none."""
        return _transform(self.form, int(space[1:].split("_")[0]), self._turn) if self.form.partitioned else ""

    @property
    def edit(self) -> dict[str, Any]:
        """The columns in the TableSyncs of the tables named edited, as they are now."""
        return _EDITS[self._turn % len(_EDITS)]

    def change_settings(self) -> None:
        """Let the manifest partition each table in the next way, and take other rows."""
        self._turn += 1
        self.engine.spec["tables"]["include"] = _include(self.form, self._turn)
        self.write_manifest()

    def write_manifest(self) -> None:
        """Write the manifest with its TableSyncs, which the engine reads while it runs."""
        numbers = range(1, _SPACES)
        partitioned = [_partitioned(self.form, n, self._turn) for n in numbers if self.form.partitioned]
        edited = [_table_sync(n, EDITED, {"columns": self.edit}) for n in numbers if self.form.edited]
        self.engine.write_manifest(*partitioned, *edited, *(_stored(n) for n in numbers if self.form.stored))

    def start(self) -> None:
        """Start the engine, and wait until it answers."""
        paths = os.pathsep.join((str(self.engine.folder), str(_ROOT)))
        self.engine.start(*_POLLS, *(["small"] if self.form.small else []), PYTHONPATH=paths)
        if not self._until(self._runs, LIMIT_S):
            raise EngineEndedError(f"no start within {LIMIT_S:.0f} s\n{self.engine.log[-4000:]}")

    def _runs(self) -> bool:
        """Return True once the table that every world has is Ready."""
        progress = self.engine.progress()
        return progress is not None and any(t["name"] == "first" and t["phase"] == "Ready" for t in progress["tables"])

    def stop(self) -> None:
        code = self.engine.stop()
        if code != 0:
            raise EngineEndedError(f"exit code {code} after SIGTERM\n{self.engine.log[-3000:]}")

    def tables(self, spaces: tuple[str, ...]) -> dict[int, dict[str, Any]]:
        """Return the progress of the tables whose schema has one of these names in it, by OID."""
        progress = self.engine.progress()
        if progress is None:
            self.check()
            return {}
        return {t["id"]: t for t in progress["tables"] if any(s in t["schema"] for s in spaces)}

    def check(self) -> None:
        """Raise EngineEndedError if the engine has ended."""
        if not self.engine.runs():
            code = self.engine.process.returncode if self.engine.process else None
            raise EngineEndedError(f"exit code {code}\n{self.engine.log[-4000:]}")

    def settle(self, spaces: tuple[str, ...], limit_s: float = SETTLED_S) -> None:
        """Wait until each table is parked, or Ready with all that is committed now, but not longer than the limit."""
        # A table that is Ready shows that tables from before it have been discovered.
        sentinel = f"sentinel_{next(_numbers)}"
        with self.db.connect() as connection:
            connection.execute(f"CREATE TABLE first_h.{sentinel} (id int PRIMARY KEY)".encode())
        self._until(lambda: any(t["name"] == sentinel for t in self.tables(("first_h",)).values()), limit_s)
        [(target,)] = self.db.query("SELECT pg_current_wal_insert_lsn()::text")
        expected = set(self.replicable(spaces))

        def settled() -> bool:
            found = self.tables(spaces)
            return expected <= found.keys() and all(
                t["error"] or (t["phase"] == "Ready" and lsn(t["appliedLsn"]) >= lsn(target)) for t in found.values()
            )

        self._until(settled, limit_s)
        with self.db.connect() as connection:
            connection.execute(f"DROP TABLE first_h.{sentinel}".encode())

    def holds(self, what: Callable[[], object], limit_s: float = SETTLED_S) -> bool:
        """Return True as soon as something is so, False if it is not so within the limit."""
        return self._until(what, limit_s)

    def _until(self, what: Callable[[], object], limit_s: float = SETTLED_S) -> bool:
        try:
            until(what, alive=self.engine.runs, limit_s=limit_s)
        except AssertionError:
            self.check()
            return False
        return True

    def replicable(self, spaces: tuple[str, ...]) -> dict[int, str]:
        """Return the tables that a pipeline has to have, by what PostgreSQL's manual says of replica identities."""
        query = _REPLICABLE.replace(_ROOTS, _LEAVES) if self.form.leaves else _REPLICABLE
        return {
            oid: name
            for oid, space, name in self.db.query(query, self.form.server)
            if space.endswith("_h") and any(s in space for s in spaces)
        }

    def existing(self) -> dict[int, tuple[str, str, bool, tuple[str, ...]]]:
        """Return each table of the source: schema, name, whether it is a partition, its primary key."""
        return {oid: (space, name, part, tuple(key)) for oid, space, name, part, key in self.db.query(_EXISTING)}

    def watched(self, table: dict[str, Any]) -> Watched | None:
        """Return a table of the progress as a reader needs it, None if the source has it no more."""
        found = self.existing().get(table["id"])
        if found is None:
            return None
        space, name, _, key = found
        changelog = table["mode"] == "Changelog"
        return Watched(table["id"], space, name, table["destinationTable"], changelog, key, table["id"])

    def request(self, action: str, name: str) -> str:
        """Request what ``levada resync`` or ``levada retry`` does for one table. Return why that is refused."""
        manifests = load_manifests(self.engine.manifest.read_text())
        try:
            {"resync": resync_tables, "retry": retry_tables}[action](
                manifests, [name], secrets=self.engine.folder / "secrets"
            )
        except NeedsOperator as error:
            return str(error)
        return ""

    def switch(self, *, root: bool) -> None:
        """Let the publication stream partitions as their root, or for themselves."""
        name = f"levada_{self.db.name}"
        self.db.execute(f"ALTER PUBLICATION {name} SET (publish_via_partition_root = {root})")

    def forget(self, space: str) -> None:
        """Drop the schemas of a history, at the source and at the twin."""
        for db in (self.db, self.twin):
            with db.connect() as connection:
                for name in (space, f"b_{space}", f"{space}_v2"):
                    with suppress(psycopg.Error):
                        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


_ROOTS: Final = "c.relkind IN ('r', 'p') AND NOT c.relispartition"
_LEAVES: Final = "c.relkind = 'r'"
_REPLICABLE: Final = """
SELECT c.oid::int, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p' AND n.nspname LIKE '%%_h'
    AND CASE c.relreplident WHEN 'n' THEN false
        WHEN 'f' THEN %s < 18 OR NOT EXISTS (
            SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attgenerated <> '')
        ELSE EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
            AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
            AND NOT EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
                AND a.attgenerated <> ''))
        END
    AND NOT EXISTS (SELECT 1 FROM pg_partition_tree(c.oid) t JOIN pg_class p ON p.oid = t.relid
        WHERE c.relkind = 'p' AND (p.relpersistence = 'u' OR p.relreplident NOT IN ('f', c.relreplident)))
"""
_EXISTING: Final = """
SELECT c.oid::int, n.nspname, c.relname, c.relispartition,
    ARRAY(SELECT a.attname::text FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) k(n)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.n WHERE i.indrelid = c.oid AND i.indisprimary)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p')
"""


@contextmanager
def server(version: int) -> Iterator[EmbeddedPostgres]:
    """A server of a version for any number of worlds."""
    from tests.servers.postgres import server_options

    # Little memory for decoding, so that transactions of many rows are sent before they end.
    settings = {"max_prepared_transactions": "20", "max_connections": "300", "logical_decoding_work_mem": "64kB"}
    with temporary_postgres(**server_options(version), settings=settings) as running:
        yield running


@contextmanager
def world(on: EmbeddedPostgres, form: Form) -> Iterator[World]:
    """A world on a server, removed with the block."""
    number, folder = next(_numbers), Path(tempfile.mkdtemp(prefix="levada-histories-"))
    names = [f"{kind}_{number}" for kind in ("source", "twin", "lake")]
    with psycopg.connect(on.uri(), autocommit=True) as admin:
        for name in names:
            admin.execute(f"CREATE DATABASE {name}".encode())
    source, twin, lake = (Database(on, name) for name in names)
    if form.stored:
        for db in (source, twin):
            with db.connect() as connection:
                add_hstore(connection)
    # A start without any table is refused.
    source.execute("CREATE SCHEMA first_h", "CREATE TABLE first_h.first (id int PRIMARY KEY)")
    if form.filtered:
        source.execute(f"CREATE TABLE first_h.{FILTERED} (k1 int PRIMARY KEY)")
    readers: dict[str, Callable[[], Reader]] = {
        "ducklake": lambda: DuckLakeReader(lake, folder, form.changelog, form.keeps),
        "iceberg": lambda: IcebergReader(folder, form.changelog, 3 if form.v3 else 2, form.keeps),
        "postgres": lambda: PostgresReader(lake, form.changelog),
        "memory": lambda: MemoryReader(folder),
    }
    made = World(form, Engine(source, folder), twin, readers[form.destination]())
    made.engine.spec = {
        "tables": {
            "include": _include(form, 0),
            "onUnstreamable": _on_unstreamable(form),
            **({"onPartitionGone": "Keep"} if form.keep else {}),
            **({"deletes": "Mark" if form.mark else "Ignore"} if form.mark or form.ignore else {}),
            **({"keyless": "Append"} if form.append else {}),
            **({"generatedColumns": "Replicate"} if form.generated else {}),
            **({"maskKeySecretRef": {"name": "masks", "key": "hmac"}} if form.masks or form.edited else {}),
        },
        "destination": made.reader.section,
        "freshnessSeconds": 1,
        **({"onSchemaChange": "Ignore"} if form.fixed else {}),
    }
    made.engine.write_secret("masks", {"hmac": KEY})
    made.engine.write_manifest()
    _write_source(made)
    try:
        made.start()
        yield made
    finally:
        made.engine.kill()
        made.reader.close()
        with psycopg.connect(on.uri(), autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ANY(%s)", [names])
            until(lambda: _dropped(admin, names))
        shutil.rmtree(folder, ignore_errors=True)


def _write_source(made: World) -> None:
    import yaml

    [manifest] = yaml.safe_load_all(made.engine.manifest.read_text())
    source = dict(manifest["spec"]["source"])
    source["slot"] = {**source["slot"], "onLost": _on_unstreamable(made.form)}
    if not made.form.trigger:
        source["ddlTrigger"] = "None"
    if made.form.by_hand:
        name = source["publication"]["name"]
        root = "" if made.form.leaves else " WITH (publish_via_partition_root)"
        made.db.execute(f"CREATE PUBLICATION {name} FOR ALL TABLES{root}")
        source["publication"] = {"name": name, "management": "External"}
    made.engine.spec["source"] = source
    made.write_manifest()


def _on_unstreamable(form: Form) -> str:
    return "Resync" if form.resync else "Hold"


def _include(form: Form, turn: int) -> list[dict[str, str]]:
    """Return the entries of the manifest after some changes of its settings."""
    filtered = {"schema": "*_h", "name": FILTERED, "where": _FILTERS[turn % len(_FILTERS)]}
    return [*([filtered] if form.filtered else []), {"schema": "*_h", "name": "*"}]


def _transform(form: Form, number: int, turn: int) -> str:
    first = _PARTITIONS.index(form.transform) if form.transform else number
    return _PARTITIONS[(first + turn) % len(_PARTITIONS)]


def _partitioned(form: Form, number: int, turn: int) -> dict[str, Any]:
    """Return the TableSync of a history's partitioned table."""
    return _table_sync(number, "parted", {"iceberg": {"partitionBy": [_transform(form, number, turn)]}})


def _stored(number: int) -> dict[str, Any]:
    """Return the TableSync of a history's table with types of its own."""
    return _table_sync(number, stored.TABLE, {"columns": {"types": stored.CHOICES}})


def _table_sync(number: int, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    table = {"schema": f"n{number}_h", "name": name}
    return {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "TableSync",
        "metadata": {"name": f"{name}-{number}"},
        "spec": {"pipelineRef": {"name": "shop"}, "table": table, **settings},
    }


def _dropped(admin: psycopg.Connection[Any], names: list[str]) -> bool:
    with suppress(psycopg.Error):
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = ANY(%s)", [names]
        )
        for name in names:
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        return True
    return False
