"""Hadoop's local file system as Levada replaces it: the same files and permissions, without a process for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from levada.destinations.iceberg.java import Jvm


@pytest.fixture(scope="module")
def jvm(spark: SparkSession) -> Any:
    """The packages of the JVM, in which an Iceberg destination was created."""
    Jvm(spark)
    return spark._jvm


@pytest.fixture
def files(jvm: Any, spark: SparkSession) -> Any:
    """The file system that anyone gets for a local path."""
    return jvm.org.apache.hadoop.fs.Path("/tmp").getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())


def processes_started(jvm: Any) -> int:
    """Return the page faults of the JVM's ended children, which no process ends without."""
    pid = jvm.java.lang.ProcessHandle.current().pid()
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text[text.rindex(")") + 2 :].split()[8])


def test_a_new_file_has_hadoops_permissions_and_needs_no_process(jvm: Any, files: Any, tmp_path: Path) -> None:
    """The default permissions are those of Hadoop's umask. There is no checksum file."""
    ended = []
    for _ in range(3):
        before = processes_started(jvm)
        for name in ("plain", "of 50 % ünïcode", "in/a/folder"):
            files.create(jvm.org.apache.hadoop.fs.Path(f"{tmp_path}/{name}")).close()
        ended.append(processes_started(jvm) - before)
    # An idle worker of an earlier test may end at any moment, but not each time.
    assert min(ended) == 0
    found = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert sorted(p.name for p in found) == ["folder", "of 50 % ünïcode", "plain"]
    assert {p.stat().st_mode & 0o7777 for p in found} == {0o644}


def test_any_permission_can_be_set(jvm: Any, files: Any, tmp_path: Path) -> None:
    """The sticky bit included, which Java cannot set by itself."""
    (tmp_path / "folder").mkdir()
    folder, hadoop = jvm.org.apache.hadoop.fs.Path(f"{tmp_path}/folder"), jvm.org.apache.hadoop.fs
    for mode in (0o700, 0o000, 0o751, 0o777, 0o1777, 0o644):
        files.setPermission(folder, hadoop.permission.FsPermission(format(mode, "04o")))
        assert (tmp_path / "folder").stat().st_mode & 0o7777 == mode


def test_a_missing_file_is_an_error(jvm: Any, files: Any, tmp_path: Path) -> None:
    """As chmod reports it."""
    fs = jvm.org.apache.hadoop.fs
    with pytest.raises(Py4JJavaError, match="NoSuchFileException"):
        files.setPermission(fs.Path(f"{tmp_path}/none"), fs.permission.FsPermission("644"))


def test_the_file_system_is_replaced_once(jvm: Any, files: Any, spark: SparkSession) -> None:
    """A second destination in the process finds the first one's, and Spark's own casts still hold."""
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    Jvm(spark)
    again = jvm.org.apache.hadoop.fs.Path("/tmp").getFileSystem(conf)
    assert again.equals(files)
    assert jvm.org.apache.hadoop.fs.FileSystem.getLocal(conf).equals(files)
