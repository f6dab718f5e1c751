"""Calls into a JVM that has ended: errors that are retried, not ones that wait for a user."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from types import SimpleNamespace

from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.file_describer import KnownModes
from levada.destinations.iceberg.java import Jvm
from levada.errors import Transient
from levada.runtime.resources.spark import spark_session

spark = spark_session("ended", cores=1, jars=IcebergDestination.jars())
jvm = Jvm(spark)
modes = KnownModes(spark._jvm.java.util.HashMap()).of(SimpleNamespace(properties={}, schema_id=0, order_id=0))
assert jvm.names_metadata("files") and not jvm.names_metadata("orders")
process = spark.sparkContext._gateway.proc
process.kill()
process.wait()
for call in (lambda: jvm.names_metadata("files"), lambda: modes.of(("id",))):
    for _ in range(2):
        try:
            call()
        except Transient as error:
            print(error.code)
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("own_jvm")
def test_a_jvm_that_has_ended_is_retried() -> None:
    """The process ends soon, and the next one must not find its tables parked until a user retries them."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["spark_unavailable"] * 4, done.stderr[-3000:]
