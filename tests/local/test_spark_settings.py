"""The precedence of Spark's settings: the caller's, the operator's file, and the defaults. Nothing is started."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.operator.samples import owner

from levada.destinations.iceberg import IcebergDestination
from levada.runtime.resources.spark import _START_NOISE, _properties, _settings, java_properties
from levada_operator.desired.spark import copy_spark_properties, spark_properties


def settings(conf: dict[str, str]) -> dict[str, str]:
    """Return what a session would be started with, the file's word included."""
    return _settings("levada shop", "2", {**_properties(), **conf}, IcebergDestination.jars())


@pytest.fixture
def operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Write the operator's file for mode Cluster, and name it by the environment. Return its content."""
    text = spark_properties(owner(driver={"mode": "Cluster"}))
    file = tmp_path / "spark.properties"
    file.write_text(f"# a comment\n\n{text}")
    monkeypatch.setenv("LEVADA_SPARK_PROPERTIES", str(file))
    return dict(line.split(" ", 1) for line in text.splitlines())


def test_local_is_the_default() -> None:
    """Without a word from anybody tasks run in this process, reached over loopback alone."""
    found = settings({})
    assert found["spark.master"] == "local[2]"
    assert found["spark.driver.bindAddress"] == "127.0.0.1"
    assert not [name for name in found if name.startswith("spark.executor.")]


def test_variable_goes_before_the_operators_file(operators: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A dedicated copy has the file's settings, but its own address and number of executors."""
    text = copy_spark_properties(3).replace("$(LEVADA_POD_IP)", "10.0.0.7").replace("$(LEVADA_POD_NAME)", "copy-x")
    monkeypatch.setenv("LEVADA_SPARK_CONF", text)
    found = settings({})
    assert (found["spark.driver.host"], found["spark.kubernetes.driver.pod.name"]) == ("10.0.0.7", "copy-x")
    assert (found["spark.executor.instances"], found["spark.dynamicAllocation.enabled"]) == ("3", "false")
    assert found["spark.driver.port"] == operators["spark.driver.port"]


def test_a_pods_address_of_ipv6_is_in_brackets(operators: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes writes it without them, and Spark refuses it so."""
    text = copy_spark_properties(3).replace("$(LEVADA_POD_IP)", "fd00::7").replace("$(LEVADA_POD_NAME)", "copy-x")
    monkeypatch.setenv("LEVADA_SPARK_CONF", text)
    assert settings({})["spark.driver.host"] == "[fd00::7]"


def test_operators_file_goes_before_the_defaults(operators: dict[str, str]) -> None:
    """All of the operator's settings hold. Only the executors' names get the time of the start."""
    found, prefix = settings({}), "spark.kubernetes.executor.podNamePrefix"
    assert {k: v for k, v in operators.items() if k != prefix}.items() <= found.items()
    assert found[prefix].startswith(operators[prefix] + "-")
    assert len(found[prefix]) <= 47
    assert found["spark.sql.session.timeZone"] == "UTC"


def test_users_conf_goes_before_the_operators_file(operators: dict[str, str]) -> None:
    """spec.driver.sparkConf holds where it says something, and nowhere else."""
    found = settings({"spark.executor.memory": "7g", "spark.task.maxFailures": "9"})
    assert (found["spark.executor.memory"], found["spark.task.maxFailures"]) == ("7g", "9")
    assert found["spark.driver.host"] == "shop-driver.data.svc"


@pytest.mark.parametrize("what", ["extraClassPath", "extraJavaOptions"])
@pytest.mark.parametrize("where", ["driver", "executor"])
def test_class_paths_and_options_are_joined(operators: dict[str, str], what: str, where: str) -> None:
    """A user's class path and options are added to Levada's, without which no session starts."""
    name = f"spark.{where}.{what}"
    ours, theirs = settings({})[name], settings({name: "theirs"})[name]
    assert theirs == ours + (os.pathsep if what == "extraClassPath" else " ") + "theirs"


def test_executors_are_given_the_images_jars(operators: dict[str, str]) -> None:
    """Executors find Iceberg where the driver does, and fetch no jar from it."""
    found = settings({})
    assert "iceberg-spark-runtime" in found["spark.executor.extraClassPath"]
    assert "spark.jars" not in found
    local_cluster = settings({"spark.master": "local-cluster[1,1,512]"})
    assert "iceberg-spark-runtime" in local_cluster["spark.executor.extraClassPath"]


def test_a_start_with_the_usual_settings_prints_no_warning() -> None:
    """Spark warns of every `spark.local.dir`. That is ours, so it is no news to a user. Other lines are shown."""
    known = "SparkConf: Note that spark.local.dir will be overridden by the value set by the cluster manager (via ...)."
    assert _START_NOISE.match(known)
    assert not _START_NOISE.match("SparkConf: The configuration key 'x' has been deprecated")


def test_any_setting_can_be_written() -> None:
    """A value comes back with its spaces, backslashes, line ends and letters of other scripts."""
    text = java_properties({"spark.key": " a=\\b\n#ü😀 "})
    assert text.isascii()
    assert text.count("\n") == 1
    name, value = (json.loads(f'"{part}"') for part in text.rstrip("\n").split("="))
    assert (name, value) == ("spark.key", " a=\\b\n#ü😀 ")
