"""Fixtures: servers for the session, and for each test that requests one a database of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from tests.rigs.class_archive import use_class_archive
from tests.rigs.database import Database, StartPostgres
from tests.rigs.kept_processes import KeptProcessTasks
from tests.rigs.process_state import process_as_before
from tests.rigs.waiting import until
from tests.servers.bigquery import Emulator, emulator
from tests.servers.opensearch import opensearch as opensearch_node
from tests.servers.postgres import memory_folder, server_options
from tests.servers.s3 import ObjectStore, object_store
from tests.tiers import (
    pytest_addoption,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_configure_node,
    pytest_report_header,
    pytest_runtest_protocol,
    pytest_xdist_make_scheduler,
    refuse_undeclared_programs,
)

from levada.local.postgres import EmbeddedPostgres, temporary_postgres
from levada.runtime.resources import task_runner

__all__ = [
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure_node",
    "pytest_report_header",
    "pytest_runtest_protocol",
    "pytest_xdist_make_scheduler",
    "refuse_undeclared_programs",
]

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from pyspark.sql import SparkSession

# A busy machine is no reason to fail: nothing here asserts a time.
settings.register_profile("levada", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("levada")

use_class_archive()

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def process_as_the_next_finds_it() -> Iterator[None]:
    """Undo what a test does to its whole process, so that no test depends on those before it."""
    with process_as_before():
        yield


@pytest.fixture(scope="session", autouse=True)
def kept_processes() -> Iterator[None]:
    """Let the pipelines of this process fork their workers from the same process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_runner, "ProcessTasks", KeptProcessTasks)
        yield
    KeptProcessTasks.end_all()


@pytest.fixture(scope="session")
def start_postgres(request: pytest.FixtureRequest) -> StartPostgres:
    """Return the function that runs a server of a test's own in a temporary folder."""
    wanted = request.config.getoption("--server")
    options = {} if wanted is None else server_options(wanted)
    parent = memory_folder()

    def start(**more: Any) -> AbstractContextManager[EmbeddedPostgres]:
        usual = {} if more.keys() & {"version", "programs"} else options
        # No test waits for a vacuum, and each look for one is a process.
        chosen = {"autovacuum_naptime": "1h", **(more.pop("settings", None) or {})}
        return temporary_postgres(parent=parent, settings=chosen, **usual, **more)

    return start


@pytest.fixture(scope="session")
def own_jvm() -> None:
    """Say that a test starts a JVM by itself."""


@pytest.fixture(scope="session")
def own_process() -> None:
    """Say that a test starts Levada's programs by itself: the operator, a command, worker processes."""


@pytest.fixture(scope="session")
def postgres(start_postgres: StartPostgres) -> Iterator[EmbeddedPostgres]:
    """One server with wal_level=logical for the session.

    Not in pytest's own folder: that is closed to others, and the server runs as another user where root tests.
    """
    with start_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def admin(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """The server's own database, in which other databases are created and dropped."""
    made = Database(postgres, "postgres")
    yield made
    made.close()


@pytest.fixture
def db(postgres: EmbeddedPostgres, admin: Database) -> Iterator[Database]:
    """Create an empty database. Drop its slots and the database itself afterwards."""
    name = f"test_{next(_numbers)}"
    [(version,)] = admin.query("SELECT current_setting('server_version_num')::int")
    # Not through the WAL, which every slot would read, and which 14 cannot.
    by_files = " STRATEGY FILE_COPY" if version >= 150000 else ""
    admin.execute(f"CREATE DATABASE {name}{by_files}")
    made = Database(postgres, name)
    try:
        yield made
    finally:
        made.close()
        admin.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name)
        until(lambda: _drops_slots(admin, name))
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _drops_slots(admin: Database, database: str) -> bool:
    """Drop the slots of the database. Return False while a session that has ended still holds one."""
    slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s"
    with suppress(psycopg.errors.ObjectInUse):
        admin.query(slots, database)
        return True
    return False


@pytest.fixture
def role(db: Database) -> Iterator[str]:
    """A login of no rights at all, gone after the test."""
    name = "plain_role"
    db.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    db.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """One object store for the session."""
    with object_store(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture(scope="session")
def opensearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of one OpenSearch node for the session."""
    with opensearch_node(tmp_path_factory.mktemp("opensearch")) as url:
        yield url


@pytest.fixture(scope="session")
def bigquery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One emulator of BigQuery for the session."""
    with emulator(tmp_path_factory.mktemp("bigquery")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a module: while it runs, so does an event loop, and no other test can start its own."""
    from tests.servers.chromium import chromium

    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """One local Spark session for the whole run: a second one in the process would share its JVM anyhow.

    It starts in the locale C, as in a container or a cron job that sets LC_ALL.
    """
    from levada.destinations.iceberg import IcebergDestination
    from levada.runtime.resources.spark import spark_session

    kind = IcebergDestination
    # A heap that begins as small as a user's is collected so often that it takes a tenth of the CPU. So does the sweep
    # of the compiled code, which begins with each half per cent of its space.
    conf = {"spark.driver.extraJavaOptions": "-Xms1g -Xmn600m -XX:ReservedCodeCacheSize=240m"}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LC_ALL", "C")
        return spark_session("tests", cores=2, conf=conf, defaults=kind.spark_conf(None), jars=kind.jars())
