"""The JVM in which a check opens the catalog, without a Spark session."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.destinations.orders import ORDERS
from tests.rigs.lake import Lake

from levada.destinations.check_jvm import CheckJvm
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.settings import Settings
from levada.errors import NeedsOperator
from levada.runtime.resources.bare_jvm import bare_jvm
from levada.schema import TableTarget
from levada.values import QualifiedTable

KIND = IcebergDestination


def jvm(**conf: str) -> CheckJvm:
    """Return the JVM of a check with these settings."""
    found = bare_jvm(conf=conf, defaults=KIND.spark_conf(None), jars=KIND.jars())
    assert found is not None
    return found


def checked(lake: Lake) -> IcebergDestination:
    """Return the destination of a check, which has no session."""
    context = replace(lake.context, spark=None, jvm=jvm(), only_checks=True)
    return KIND.from_settings(Settings.model_validate(lake.manifest), context)


def dumped(classes: Any, conf: Any) -> dict[str, str]:
    """Return all values of a configuration of Hadoop."""
    out = classes.java.io.StringWriter()
    classes.org.apache.hadoop.conf.Configuration.dumpConfiguration(conf, out)
    return {p["key"]: p["value"] for p in json.loads(out.toString())["properties"]}


def test_hadoop_has_the_configuration_of_a_session(spark: SparkSession, own_jvm: None) -> None:
    """Keys and endpoints of `spark.hadoop` count in a check as in a run, and Spark's own defaults do."""
    check = jvm(**{"spark.hadoop.fs.example.endpoint": "here"})
    seen = dumped(check.gateway.jvm, check.hadoop_conf())
    spark.sql("SHOW TABLES").collect()
    session = dumped(spark._jvm, spark.sparkContext._jsc.hadoopConfiguration())
    # A session sets these itself: for reads of data files, and with its first statement for tables of Hive.
    tuned = {n for n in session if n.startswith("fs.s3a.vectored.read.")} | {"hive.metastore.warehouse.dir"}
    assert seen.pop("fs.example.endpoint") == "here"
    assert seen == {n: v for n, v in session.items() if n not in tuned | {"fs.file.impl"}}


@pytest.mark.parametrize("kind", ["hadoop", "jdbc"])
def test_a_check_sees_what_a_session_sees(kind: str, request: pytest.FixtureRequest, own_jvm: None) -> None:
    """A table of another owner is found, a free name is free, and nothing is left in the warehouse."""
    lake: Lake = request.getfixturevalue(kind)
    lake.destination().startup()
    lake.sql("CREATE TABLE {t} (a int) USING iceberg", table="mine")
    before = sorted(p.name for p in Path(lake.manifest["catalog"]["warehouse"].removeprefix("file:")).rglob("*"))
    destination = checked(lake)
    destination.startup()
    destination.check()
    destination.check_place(TableTarget.of(ORDERS))
    with pytest.raises(NeedsOperator) as refused:
        destination.check_place(TableTarget.of(replace(ORDERS, name=QualifiedTable("public", "mine"))))
    assert refused.value.code == "table_not_ours"
    destination.shutdown()
    after = sorted(p.name for p in Path(lake.manifest["catalog"]["warehouse"].removeprefix("file:")).rglob("*"))
    assert after == before


def test_settings_that_need_spark_submit_get_a_session() -> None:
    """It resolves jars and logs in to Kerberos."""
    for name in ("spark.jars.packages", "spark.kerberos.keytab"):
        assert bare_jvm(conf={name: "x"}, defaults={}, jars=()) is None
