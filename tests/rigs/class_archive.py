"""An archive of the classes that Spark and Iceberg load, which halves the CPU that the start of a JVM costs.

``python -m tests.rigs.class_archive`` writes it into the environment. A JVM ignores an archive of another Java or of
other jars.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"
_VARIABLE: Final = "JAVA_TOOL_OPTIONS"
_QUERIES: Final = (
    "CREATE TABLE lake.a.t (i int, s string, d decimal(10, 2), at timestamp, tags array<string>) USING iceberg"
    " PARTITIONED BY (truncate(10, i)) TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
    "INSERT INTO lake.a.t VALUES (1, 'a', 1.5, timestamp '2024-01-01', array('x')), (2, 'b', NULL, NULL, NULL)",
    "ALTER TABLE lake.a.t ADD COLUMN n bigint",
    "DELETE FROM lake.a.t WHERE i = 2",
    "MERGE INTO lake.a.t t USING (SELECT 1 AS i) s ON t.i = s.i WHEN MATCHED THEN UPDATE SET n = 7",
    "CALL lake.system.rewrite_data_files(table => 'lake.a.t', options => map('rewrite-all', 'true'))",
    "SELECT count(*), max(n) FROM lake.a.t WHERE s = 'a'",
    "SELECT * FROM lake.a.t.files",
    "SELECT * FROM lake.a.t ORDER BY i",
)


def use_class_archive() -> None:
    """Let the JVMs that this process and its children start use the archive, if there is one."""
    if ARCHIVE.exists() and _VARIABLE not in os.environ:
        # Without a log, a JVM with other jars says nothing of an archive that it cannot use.
        os.environ[_VARIABLE] = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"


def write_archive() -> None:
    """Run Spark once, and let its JVM write the classes that it has loaded."""
    from levada.destinations.iceberg import IcebergDestination
    from levada.runtime.resources.spark import spark_session

    part = ARCHIVE.with_suffix(".part")
    part.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="levada-classes-") as lake:
        conf = {
            "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={part} -Xlog:disable",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": lake,
        }
        kind = IcebergDestination
        spark = spark_session("classes", cores=2, conf=conf, defaults=kind.spark_conf(None), jars=kind.jars())
        for query in _QUERIES:
            spark.sql(query).toArrow()
        _end_jvm(spark)
    part.replace(ARCHIVE)


def _end_jvm(spark: SparkSession) -> None:
    """Stop the session and wait until its JVM has ended, which is when it writes."""
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    write_archive()
