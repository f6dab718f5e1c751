"""Catching up after a backlog in mode Cluster: rows/s with 0, 1, 2 and 4 executor pods, on narrow and on wide rows.

A Pipeline on Kubernetes stages changes of suspended tables, three for each number of executors, in an object store.
Then the driver starts again with that number, and the tables are resumed one after another. The first one is small and
not counted: it warms the processes. The driver and each executor
have the same limit of CPU, a small one, so that five pods together have less than this machine. So rows/s are those of
machines that are that slow, and their ratios those of machines that are not. 0 executors: ``driver.mode: Local``.

It needs the node of ``make cluster-up``, and $KUBECONFIG. The database and the object store are processes of this
machine, without a limit. Usage::

    python -m benchmarks.executors [--narrow 2500000] [--wide 500000] [--cpu 250m] [--executors 0 1 2 4]
"""

from __future__ import annotations

import argparse
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.initial_copy import COLUMNS, ROWS
from benchmarks.measure import table
from tests.cluster.bringup.images import ensure_image
from tests.cluster.bringup.layout import Layout
from tests.cluster.kubectl import Kubectl, eventually
from tests.cluster.node.executor_place import ExecutorPlace, executor_place
from tests.cluster.node.installed import install

_TRANSACTION: Final = 20_000
_NOTE: Final = " || ".join(f"encode(sha512(('{n}' || {{0}} || clock_timestamp())::bytea), 'hex')" for n in range(8))
"""A text of 1,024 random hexadecimal digits."""
_WIDE: Final = "id bigint PRIMARY KEY, i int, note text"
_TASKS: Final = re.compile(r"public\.(\w+): (\d+) tasks applied (\d+) changes")
_WARM: Final = 160_000
_PATIENCE_S: Final = 3600.0


@dataclass(frozen=True)
class CaughtUp:
    """The cost of applying the changes of one table. CPU is in seconds."""

    rows: int
    seconds: float
    driver: float
    executors: float
    tasks: int
    by_tasks: int

    def line(self, name: str, executors: int, base: CaughtUp) -> list[object]:
        rate, million = self.rows / self.seconds, self.rows / 1e6
        cpu = [self.driver / million, self.executors / million]
        return [name, executors, int(rate), rate / (base.rows / base.seconds), *cpu, self.tasks, self.by_tasks]


def fill(place: ExecutorPlace, counts: list[int], rows: dict[str, int]) -> None:
    """Create the tables, each with as many rows as it gets changes, divided by four."""
    for count in counts:
        name = f"narrow_{count}"
        place.execute(
            f"CREATE TABLE {name} ({COLUMNS})",
            ROWS.replace("INTO orders", f"INTO {name}").format(rows["narrow"] // 4),
        )
        for kind in ("warm", "wide"):
            first = f"SELECT g, 0, {_NOTE.format('g')} FROM generate_series(1, {rows[kind] // 4}) g"
            place.execute(f"CREATE TABLE {kind}_{count} ({_WIDE})", f"INSERT INTO {kind}_{count} {first}")
    place.execute("VACUUM (ANALYZE)")


def change(place: ExecutorPlace, name: str, update: str, insert: str, changes: int, first: int) -> None:
    """Make so many changes in transactions of 20,000. Of them 70 % are updates, 20 % inserts and 10 % deletes."""
    known = f"ARRAY(SELECT 1 + floor(random() * {first})::bigint FROM generate_series(1, {{}}))"
    inserted = _TRANSACTION // 5
    place.execute(f"""
        DO $$ BEGIN FOR t IN 0..{changes // _TRANSACTION - 1} LOOP
            INSERT INTO {name} {insert} FROM generate_series(1, {inserted}) n, LATERAL
                (SELECT {first} + t * {inserted} + n) AS of(g);
            UPDATE {name} SET {update} WHERE id = ANY ({known.format(_TRANSACTION * 7 // 10)});
            DELETE FROM {name} WHERE id = ANY ({known.format(_TRANSACTION // 10)});
            COMMIT;
        END LOOP; END $$""")


def change_all(place: ExecutorPlace, counts: list[int], rows: dict[str, int]) -> None:
    """Change every table."""
    narrow = ROWS[ROWS.index("SELECT") : ROWS.index("FROM")]
    for count in counts:
        update = "i = i + 1, ts = now(), d = random()"
        change(place, f"narrow_{count}", update, narrow, rows["narrow"], rows["narrow"] // 4)
        insert, update = f"SELECT g, 0, {_NOTE.format('g')}", f"i = i + 1, note = {_NOTE.format('id')}"
        for kind in ("warm", "wide"):
            change(place, f"{kind}_{count}", update, insert, rows[kind], rows[kind] // 4)


def driver(cpu: str | None) -> dict[str, Any]:
    """Return the driver's resources, with a limit of CPU or without."""
    limits = {"memory": "2Gi", **({"cpu": cpu} if cpu else {})}
    return {"resources": {"requests": {"cpu": "100m", "memory": "2Gi"}, "limits": limits}}


def restart(place: ExecutorPlace, count: int, cpu: str) -> None:
    """Run the Pipeline with so many executors, and wait until all of them are idle."""
    uid = place.pod()["metadata"]["uid"]
    limited = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": cpu, "memory": "1Gi"}}
    cluster = {"executor": {"instances": {"min": count, "max": count}, "resources": limited}} if count else {}
    place.apply(driver={"mode": "Cluster" if count else "Local", **driver(cpu)}, **cluster)
    eventually(lambda: place.pod().get("metadata", {}).get("uid", uid) != uid, _PATIENCE_S)
    eventually(lambda: place.tables() and len(place.executors()) == count, _PATIENCE_S)
    eventually(place.idle, _PATIENCE_S)


def catch_up(place: ExecutorPlace, name: str) -> CaughtUp:
    """Resume a table, and wait until its changes are applied."""
    rows = place.pending(name)
    assert rows
    mine = place.pod()["metadata"]["uid"]
    before = place.cpu_seconds()
    place.suspend({name}, False)
    # The operator, the kubelet and the driver take up the change first.
    eventually(lambda: not place.tables().get(name, {"suspended": True})["suspended"], _PATIENCE_S)
    began = time.monotonic()
    eventually(lambda: place.pending(name) == 0, _PATIENCE_S)
    took, after = time.monotonic() - began, place.cpu_seconds()
    used = {uid: after[uid] - before.get(uid, 0.0) for uid in after}
    tasks = [(int(n), int(r)) for of, n, r in _TASKS.findall(place.log()) if of == name]
    executors = sum(used.values()) - used[mine]
    return CaughtUp(rows, took, used[mine], executors, sum(n for n, _ in tasks), sum(r for _, r in tasks))


def run(place: ExecutorPlace, counts: list[int], rows: dict[str, int], cpu: str) -> None:
    fill(place, counts, rows)
    place.apply(driver={"mode": "Local", **driver(None)})
    place.ready(3600)
    place.suspend({f"{kind}_{count}" for kind in rows for count in counts})
    eventually(lambda: all(t["suspended"] for t in place.tables().values()), _PATIENCE_S)
    began = time.monotonic()
    change_all(place, counts, rows)
    place.stage(_PATIENCE_S)
    staged = {name: t["pendingRows"] for name, t in place.tables().items()}
    print(f"staged in {time.monotonic() - began:.0f} s: {staged}", flush=True)
    found: dict[str, dict[int, CaughtUp]] = {kind: {} for kind in rows}
    for count in counts:
        restart(place, count, cpu)
        for kind in rows:
            found[kind][count] = caught = catch_up(place, f"{kind}_{count}")
            print(kind, count, caught, flush=True)
            eventually(place.idle, _PATIENCE_S)
    del found["warm"]
    lines = [c.line(kind, n, of[counts[0]]) for kind, of in found.items() for n, c in of.items()]
    print(
        table(
            ["rows", "executors", "rows/s", "ratio", "driver, s/M", "executors, s/M", "tasks", "changes by tasks"],
            lines,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--narrow", type=int, default=2_500_000, help="changes of each table of ten columns")
    parser.add_argument("--wide", type=int, default=500_000, help="changes of each table of rows with 1 kB")
    parser.add_argument("--cpu", default="250m", help="the limit of the driver and of each executor")
    parser.add_argument("--executors", type=int, nargs="+", default=[0, 1, 2, 4])
    options = parser.parse_args()
    cluster = Kubectl()
    cluster("apply", "-f", str(Path(__file__).parents[1] / "crds"))
    image = os.environ.get("LEVADA_TEST_IMAGE") or ensure_image(Layout.default())
    with install(cluster, image), executor_place(cluster) as place:
        try:
            rows = {"warm": _WARM, "narrow": options.narrow, "wide": options.wide}
            run(place, options.executors, rows, options.cpu)
        except BaseException:
            place.print_state()
            raise


if __name__ == "__main__":
    main()
