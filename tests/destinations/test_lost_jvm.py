"""A JVM that has ended under the destination for Iceberg."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from levada.destinations.iceberg.java import java_errors
from levada.errors import Transient
from levada.local.java import require_java


@pytest.mark.usefixtures("own_jvm")
def test_a_jvm_that_does_not_answer() -> None:
    """A call of a JVM that was killed is retried. The message has the operation, the hint what to look at."""
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port, process = launch_gateway(
        jarpath=str(jar), java_path=str(require_java().executable), die_on_exit=True, return_proc=True
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        with java_errors("read the clock"):
            assert gateway.jvm.java.lang.System.currentTimeMillis()
        process.kill()
        process.wait()
        with pytest.raises(Transient) as lost, java_errors("commit to shop.orders"):
            gateway.jvm.java.lang.System.currentTimeMillis()
    finally:
        gateway.close()
        process.kill()
        process.wait()
    assert lost.value.code == "spark_unavailable"
    assert lost.value.message == "commit to shop.orders: Spark's JVM does not respond"
    assert "raise the memory limit" in lost.value.hint
