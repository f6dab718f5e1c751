"""The checksums of rows as expressions of Spark, and the session that computes them.

A row counts once, or minus once if it is a removal in a changelog: `COUNT` is the column with that number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from levada.destinations.iceberg.metadata import TableFacts
from levada.destinations.verification import ROWS
from levada.schema import Column

COUNT: Final = "_levada_count"
_SMALLEST_SPLIT: Final = 256 << 10
_LARGEST_SPLIT: Final = 128 << 20
"""The bytes of files that one task reads."""
_SESSION: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # The results have few rows.
    "spark.sql.shuffle.partitions": "8",
    # A former read may have left the rows of a delete file in memory, which would hide that the file is missing.
    "spark.sql.iceberg.executor-cache.delete-files.enabled": "false",
}


def verification_session(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Return a session in the same JVM whose settings do not depend on the user's. ``conf`` defines its catalog."""
    session = spark.newSession()
    for key, value in {**conf, **_SESSION}.items():
        session.conf.set(key, value)
    return session


def split_options(facts: TableFacts, parallel: int) -> dict[str, int]:
    """Return the options of a read by ``parallel`` tasks. By itself Iceberg reads 128 MiB of small files in one. Pure.

    A table of that size has millions of rows, and each of their checksums takes microseconds.
    """
    if not facts.data_files:
        return {}
    size = min(_LARGEST_SPLIT, max(_SMALLEST_SPLIT, facts.bytes // parallel))
    # A file weighs at least this much. With the average, all files together weigh at most twice their size.
    return {"split-size": size, "file-open-cost": max(1, min(size, facts.bytes // facts.data_files))}


def frame_name(column: Column) -> str:
    """Return the name under which the framed text of a column stands."""
    return f"frame_{column.attnum}"


def joined(columns: Sequence[Column]) -> SparkColumn:
    """Return the framed texts of the columns as one text."""
    return sf.concat(*(sf.col(frame_name(c)) for c in columns))


def json_text(values: Sequence[SparkColumn]) -> SparkColumn:
    """Return the values as a JSON array of texts, as a user reads them."""
    if not values:
        return sf.lit("[]")
    return sf.to_json(sf.array(*(v.cast("string") for v in values)))


def hash_of(text: SparkColumn) -> SparkColumn:
    """Return the hash of a text, see `levada.destinations.verification`."""
    return sf.conv(sf.substring(sf.md5(text.cast("binary")), 1, 15), 16, 10).cast("long")


def sum_of(hashes: SparkColumn, name: str) -> SparkColumn:
    """Return the sum of the hashes, each times the count of its row, as the column ``name``."""
    return sf.sum(hashes.cast("decimal(20,0)") * sf.col(COUNT)).cast("decimal(38,0)").alias(name)


def count_rows() -> SparkColumn:
    """Return the sum of the counts of rows."""
    return sf.sum(sf.col(COUNT).cast("long")).alias(ROWS)


def quoted(name: str) -> str:
    """Return the name quoted for Spark."""
    return "`" + name.replace("`", "``") + "`"
