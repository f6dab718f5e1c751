"""A check by Python alone and a check by Iceberg's library have the same answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.destinations.orders import ORDERS, TWIN, Source, copy
from tests.rigs.database import Database
from tests.rigs.lake import Lake
from tests.servers.rest_catalog import rest_catalog
from tests.servers.s3 import BUCKET, ObjectStore

from levada.destinations import DestinationContext
from levada.destinations.check_jvm import CheckJvm
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.catalog_config import CatalogConfig
from levada.destinations.iceberg.checked_catalog import quick_catalog
from levada.destinations.iceberg.quick_catalog import UnconfirmedError
from levada.destinations.iceberg.quick_folder import FolderCatalog
from levada.destinations.iceberg.settings import Settings
from levada.errors import LevadaError
from levada.runtime.resources.bare_jvm import bare_jvm
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.values import QualifiedTable

OTHER = replace(ORDERS, name=QualifiedTable("public", "foreign"))
FREE = replace(ORDERS, name=QualifiedTable("public", "free"))


@dataclass(frozen=True, slots=True)
class NoJvm(CheckJvm):
    """The JVM of a check that is asked nothing."""

    @property
    def gateway(self) -> Any:
        pytest.fail("Iceberg's library was asked")


@pytest.fixture
def rest(tmp_path: Path, spark: SparkSession, db: Database, s3: ObjectStore) -> Iterator[Lake]:
    """A REST catalog over an object store."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    for key, value in s3.keys.items():
        (credentials / key).write_text(value)
    with rest_catalog(tmp_path, db, s3, f"s3://{BUCKET}/{db.name}") as uri:
        manifest = {"catalog": {"type": "Rest", "uri": uri, "properties": s3.place}, "namespace": "shop_{schema}"}
        yield Lake(manifest, DestinationContext(f"r{abs(hash(tmp_path))}", tmp_path / "work", spark, credentials))


@pytest.fixture(params=["hadoop", "jdbc", pytest.param("rest", marks=pytest.mark.nightly)])
def lake(request: pytest.FixtureRequest) -> Lake:
    """Each catalog that Python reads."""
    found: Lake = request.getfixturevalue(request.param)
    return replace(found, context=replace(found.context, source=Source()))


def outcome(call: Callable[[], object]) -> str:
    """Return the error of a call."""
    try:
        call()
    except LevadaError as error:
        return f"{error.code}: {error.message} {error.hint}"
    return "nothing"


def answers(destination: IcebergDestination, *tables: ReplicatedTableSchema) -> list[str]:
    """Return the outcome of each step of a check."""
    steps = [outcome(destination.startup), outcome(destination.check)]
    steps += [outcome(partial(destination.check_place, TableTarget.of(t))) for t in tables]
    destination.shutdown()
    return steps


def test_a_check_needs_no_jvm(lake: Lake) -> None:
    """Before the first start, and with tables of the pipeline, of another source table and of another owner."""
    wanted = (ORDERS, replace(TWIN, name=ORDERS.name), OTHER, FREE, replace(FREE, name=QualifiedTable("x", "files")))

    def by_python() -> list[str]:
        return answers(lake.destination(spark=None, jvm=NoJvm({}, True), only_checks=True), *wanted)

    assert by_python() == ["nothing"] * 7
    destination = lake.destination()
    destination.startup()
    copy(lake, destination)
    copy(lake, lake.destination(namespace="elsewhere"), OTHER)
    found = by_python()
    assert found == answers(lake.destination(only_checks=True), *wanted)
    codes = [answer.partition(":")[0] for answer in found]
    assert codes == [*["nothing"] * 3, "destination_collision", "table_not_ours", "nothing", "nothing"]


def cut_metadata(schema: Path) -> None:
    """Cut the newest metadata of the table."""
    newest = max((schema / "orders" / "metadata").glob("*.metadata.json"), key=lambda f: f.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:100])


def lose_metadata(schema: Path) -> None:
    """Remove all metadata of the table, as an interrupted drop does."""
    for file in (schema / "orders" / "metadata").glob("*.metadata.json"):
        file.unlink()


def be_a_table(schema: Path) -> None:
    """Make the folder of the namespace that of a table."""
    (schema / "orders" / "metadata").rename(schema / "metadata")


def hold_a_table(schema: Path) -> None:
    """Make the folder of the table a namespace with a table."""
    (schema / "orders").rename(schema / "free")
    (schema / "orders").mkdir()
    (schema / "free").rename(schema / "orders" / "free")


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(k, f) for k in ("hadoop", "jdbc") for f in (cut_metadata, lose_metadata)]
    + [("hadoop", be_a_table), ("hadoop", hold_a_table)],
)
def test_python_confirms_no_damaged_table(
    kind: str, fault: Callable[[Path], None], request: pytest.FixtureRequest
) -> None:
    """Iceberg's library is asked instead, so the error is that of a run."""
    lake: Lake = request.getfixturevalue(kind)
    destination = lake.destination()
    destination.startup()
    copy(lake, destination)
    config = CatalogConfig.of(Settings.model_validate(lake.manifest), lake.context.pipeline)
    found, table = quick_catalog(config), config.table(ORDERS.name, ORDERS.name)
    assert found is not None
    assert found.properties(table)
    assert found.properties(config.table(FREE.name, FREE.name)) is None
    fault(Path(lake.manifest["catalog"]["warehouse"].removeprefix("file:")) / "shop_public")
    with pytest.raises(UnconfirmedError):
        found.properties(table)
    found.close()


@pytest.mark.parametrize("there", ["a file", "a read-only folder"])
def test_python_confirms_no_warehouse_without_a_write(tmp_path: Path, there: str) -> None:
    """A file in its place, or a folder of the kernel, is no warehouse. Nothing is left of a trial that failed."""
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "lake" if there == "a file" else Path("/proc/levada/lake")
    with pytest.raises(UnconfirmedError):
        FolderCatalog(folder).check()
    FolderCatalog(tmp_path / "new" / "lake").check()
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "catalog",
    [
        {"type": "Hadoop", "warehouse": "hdfs://namenode/lake"},
        {"type": "Hadoop", "warehouse": "/lake", "properties": {"io-impl": "example.FileIO"}},
        {
            "type": "Jdbc",
            "uri": "jdbc:postgresql://a/b?ssl=true",
            "warehouse": "/lake",
            "properties": {"jdbc.user": "x"},
        },
        {"type": "Jdbc", "uri": "jdbc:postgresql://a/b", "warehouse": "s3://a/b", "properties": {"jdbc.user": "x"}},
        {"type": "Jdbc", "uri": "jdbc:postgresql://a/b", "warehouse": "/lake"},
        {"type": "Jdbc", "uri": "jdbc:sqlite:/lake.db", "warehouse": "/lake", "properties": {"jdbc.user": "x"}},
        {"type": "Rest", "uri": "http://a", "properties": {"rest.sigv4-enabled": "true"}},
        {"type": "Rest", "uri": "http://a", "properties": {"header.x": "y"}},
        {"type": "Glue", "warehouse": "s3://a/b"},
        {"type": "Hive", "uri": "thrift://a"},
    ],
)
def test_what_only_icebergs_library_knows(catalog: dict[str, Any]) -> None:
    """A setting that Python might read in another way leaves the whole check to the library."""
    settings = Settings.model_validate({"catalog": catalog})
    assert quick_catalog(CatalogConfig.of(settings, "shop")) is None


@pytest.mark.parametrize(
    ("name", "value"), [("HADOOP_CONF_DIR", "/etc/hadoop"), ("JAVA_TOOL_OPTIONS", "-Dhttp.proxyHost=proxy")]
)
def test_an_environment_that_configures_the_jvm(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, own_jvm: None
) -> None:
    """Python does not read these variables, so it confirms nothing then."""
    monkeypatch.setenv(name, value)
    for conf, plain in (({}, False), ({"spark.hadoop.fs.defaultFS": "hdfs://a"}, False)):
        found = bare_jvm(conf=conf, defaults={}, jars=())
        assert found is not None
        assert found.is_plain is plain
