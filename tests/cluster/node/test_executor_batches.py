"""Large batches that executors write: the lake is that of the source, whatever is killed in the middle of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster.kubectl import Kubectl, eventually
from tests.cluster.node.executor_place import DRIVER, ExecutorPlace, executor_place
from tests.cluster.node.installed import Installed

pytestmark = pytest.mark.nightly

TABLES = {"wide", "toasted"}
NOTE = " || ".join(f"encode(sha512(('{n}' || {{0}} || clock_timestamp())::bytea), 'hex')" for n in range(8))
"""A text of 1,024 random hexadecimal digits."""
LARGE = f"{NOTE} || {NOTE.replace('||', '|| 2 ||')}"


@pytest.fixture
def place(cluster: Kubectl, operator: Installed) -> Iterator[ExecutorPlace]:
    """A namespace with the tables, of which all rows are copied, and two executors."""
    with executor_place(cluster) as one:
        one.execute(
            "CREATE TABLE wide (id bigint PRIMARY KEY, v int, note text)",
            # An update that leaves such a text as it is does not send it.
            "CREATE TABLE toasted (id bigint PRIMARY KEY, v int, note text, large text)",
            "ALTER TABLE toasted ALTER large SET STORAGE EXTERNAL",
            f"INSERT INTO wide SELECT g, 0, {NOTE.format('g')} FROM generate_series(1, 20000) g",
            f"INSERT INTO toasted SELECT g, 0, 'n', {LARGE.format('g')} FROM generate_series(1, 5000) g",
        )
        limited = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
        one.apply(
            driver={"mode": "Cluster", "resources": {"requests": {"cpu": "100m"}}},
            executor={"instances": {"min": 2, "max": 2}, "resources": limited},
        )
        try:
            one.ready()
            # The operator creates them after the Pipeline's status.
            eventually(lambda: len(one.kubectl.get("tablesyncs")) == len(TABLES))
            for sync in one.kubectl.get("tablesyncs"):
                if sync["spec"]["table"]["name"] == "wide":
                    name = sync["metadata"]["name"]
                    one.kubectl.patch("tablesync", name, {"spec": {"iceberg": {"partitionBy": ["bucket(2, id)"]}}})
            yield one
        except BaseException:
            one.print_state()
            raise


def stage(place: ExecutorPlace, number: int) -> None:
    """Stage a batch for each table while both are suspended: inserts, updates, moved keys, deletes, unchanged texts."""
    place.suspend(TABLES)
    eventually(lambda: {n for n, t in place.tables().items() if t["suspended"]} == TABLES)
    first = number * 100_000
    place.execute(f"""
        DO $$ BEGIN FOR t IN 0..19 LOOP
            INSERT INTO wide SELECT g, {number}, {NOTE.format("g")}
                FROM generate_series({first} + t * 4000 + 1, {first} + t * 4000 + 4000) g;
            UPDATE wide SET v = v + 1, note = {NOTE.format("id")} WHERE id % 20 = t;
            UPDATE wide SET id = id + 10000000 WHERE id % 200 = t AND id < 10000000;
            DELETE FROM wide WHERE id % 50 = t;
            INSERT INTO toasted SELECT g, {number}, {NOTE.format("g")}, {LARGE.format("g")}
                FROM generate_series({first} + t * 1500 + 1, {first} + t * 1500 + 1500) g;
            UPDATE toasted SET v = v + 1, note = {NOTE.format("id")} WHERE id % 20 = t;
            UPDATE toasted SET id = id + 10000000 WHERE id % 200 = t AND id < 10000000;
            COMMIT;
        END LOOP; END $$""")
    place.stage()


def files(place: ExecutorPlace, pattern: str) -> set[Path]:
    """Return the files in the lake with such a name."""
    return set((place.store.buckets / "lake" / "warehouse").rglob(pattern))


def resume(place: ExecutorPlace, table: str) -> None:
    """Resume a table once two executors are idle, so that they have work of its batch."""
    eventually(lambda: len(place.executors()) == 2)
    eventually(place.idle)
    place.suspend({table}, False)


def caught_up(place: ExecutorPlace, table: str) -> bool:
    """Return True if all changes of a table are applied."""
    found = place.tables().get(table)
    return found is not None and not found["pendingRows"] and found["phase"] == "Ready" and not found["suspended"]


def delete_executors(place: ExecutorPlace, table: str) -> None:
    """Delete the executors, and those that replace them, as long as the table's batch runs."""
    deleted = 0
    while deleted < 6 and not caught_up(place, table):
        for pod in place.executors():
            place.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0", "--ignore-not-found")
            deleted += 1
    assert deleted


def delete_driver(place: ExecutorPlace, table: str) -> None:
    """Delete the driver's pod without grace, and wait for the next one."""
    uid = place.pod()["metadata"]["uid"]
    place.kubectl("delete", "pod", DRIVER, "--force", "--grace-period=0")
    eventually(lambda: place.pod().get("metadata", {}).get("uid", uid) != uid)


def delete_nothing(place: ExecutorPlace, table: str) -> None:
    """Let the batch end, and see that executors took part."""
    eventually(lambda: caught_up(place, table))
    eventually(lambda: any(f"public.{table}: " in line for line in place.log().splitlines() if "tasks applied" in line))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kill", "patterns"),
    [
        (delete_nothing, {"toasted": "*.parquet", "wide": "*.parquet"}),
        (delete_executors, {"toasted": "*.parquet", "wide": "*.parquet"}),
        (delete_driver, {"toasted": "*-deletes.parquet", "wide": "*.parquet"}),
        (delete_driver, {"toasted": "*.parquet", "wide": "*-deletes.parquet"}),
    ],
)
def test_kills_in_the_middle_of_batches(
    place: ExecutorPlace, kill: Callable[[ExecutorPlace, str], None], patterns: dict[str, str]
) -> None:
    """Executors are deleted again and again, or the driver once a new file of such a name is in the lake."""
    stage(place, 1)
    for table, pattern in patterns.items():
        before = files(place, pattern)
        resume(place, table)
        eventually(lambda: files(place, pattern) - before)  # noqa: B023  # called at once
        kill(place, table)
        eventually(lambda: caught_up(place, table))  # noqa: B023  # called at once
    assert place.verify().count(": equal at ") == 2
