"""The cost of a small batch: many Iceberg tables, a few changes each, applied and committed in turns.

Prints the CPU of this process and of Spark's JVM for each commit, and the calls from one to the other. Usage::

    python -m benchmarks.commits [--tables 50] [--rounds 20] [--changes 5] [--profile FILE]
"""

from __future__ import annotations

import argparse
import cProfile
import os
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.apply import PIPELINE, SCHEMA, Base, Batch, FileEvents, Source
from benchmarks.measure import table

from levada.destinations import DestinationContext
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.settings import Settings
from levada.runtime.resources.spark import spark_session
from levada.schema import TableTarget
from levada.values import Lsn, QualifiedTable, TableId, Watermark

_TICKS = os.sysconf("SC_CLK_TCK")


class Calls(Counter[str]):
    """Counts the commands that py4j sends to the JVM, by their kind."""

    def __init__(self, spark: Any) -> None:
        super().__init__()
        client = spark.sparkContext._gateway._gateway_client
        send = client.send_command

        def counted(command: str, *args: Any, **kwargs: Any) -> Any:
            self[command.partition("\n")[0]] += 1
            return send(command, *args, **kwargs)

        client.send_command = counted


def jvm_cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used, with those of its ended children.

    Hadoop's local file system starts a process to set the permissions of each file.
    """
    text = Path(f"/proc/{pid}/stat").read_text()
    f = text[text.rindex(")") + 2 :].split()
    return sum(map(int, f[11:15])) / _TICKS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--changes", type=int, default=5)
    parser.add_argument("--profile", type=Path, help="write a profile of this process for pstats")
    options = parser.parse_args()
    spark = spark_session(
        "commits",
        conf={"spark.driver.memory": "700m"},
        defaults=IcebergDestination.spark_conf(None),
        jars=IcebergDestination.jars(),
    )
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    calls = Calls(spark)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        settings = Settings.model_validate({"catalog": {"type": "Hadoop", "warehouse": str(folder / "lake")}})
        destination = IcebergDestination.from_settings(settings, DestinationContext(PIPELINE, folder / "work", spark))
        targets = [
            TableTarget.of(replace(SCHEMA, id=TableId(i), name=QualifiedTable("public", f"t{i}")))
            for i in range(1, options.tables + 1)
        ]
        for target in targets:
            rows = Base(1000)
            rows.schema = target.schema
            destination.write_table_rows(target, rows, Watermark(PIPELINE, 1, Lsn(1000)))
        source, lines = Source(1000, folder), []
        for turn in range(options.rounds):
            events = source.batch(options.changes, turn + 1)
            profile = cProfile.Profile() if options.profile and turn == options.rounds - 1 else None
            before, wall, python, java = calls.total(), time.perf_counter(), time.process_time(), jvm_cpu_s(jvm)
            if profile is not None:
                profile.enable()
            for target in targets:
                mine = replace(events, target=target, versions=(target.schema,))
                destination.write_events(OneTable(mine), Watermark(PIPELINE, 1, events.until))
            if profile is not None:
                profile.disable()
                profile.dump_stats(options.profile)
            per = 1000 / options.tables
            lines.append(
                [
                    turn + 1,
                    (time.perf_counter() - wall) * per,
                    (time.process_time() - python) * per,
                    (jvm_cpu_s(jvm) - java) * per,
                    (calls.total() - before) / options.tables,
                ]
            )
        print(
            table(
                ["round", "wall ms", "Python CPU ms", "JVM CPU ms", "calls of the JVM"],
                lines[:: max(1, len(lines) // 10)],
            )
        )
    spark.stop()


class OneTable(Batch):
    """A batch of one of the tables."""

    def __init__(self, events: FileEvents) -> None:
        super().__init__(events)
        self.tables = (events.target.schema.id,)


if __name__ == "__main__":
    main()
