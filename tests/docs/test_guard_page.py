"""The limits on the page of the guard, in a pipeline without Spark: as written, and a million times smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tests.docs.pages import parts_of
from tests.rigs.database import Database
from tests.rigs.engine import Engine, engine
from tests.rigs.waiting import LIMIT_S

__all__ = ["engine"]

PAGE = Path(__file__).parents[2] / "docs" / "guard.md"
SUSPENDED = {
    "apiVersion": "levada.dev/v1alpha1",
    "kind": "TableSync",
    "metadata": {"name": "held"},
    "spec": {"pipelineRef": {"name": "shop"}, "table": {"name": "held"}, "suspend": True},
}


def passed(progress: dict[str, Any]) -> set[tuple[str, str]]:
    """Return measure and policy of each passed limit."""
    return {(limit["measure"], limit["policy"]) for limit in progress["guard"]["passed"]}


def test_each_policy_of_the_page_acts(engine: Engine, db: Database) -> None:
    """No limit is passed at first. With Ki for Gi, the table that holds the most is parked, and the slot is dropped."""
    (part,) = parts_of(PAGE)
    db.execute("CREATE TABLE held (id int PRIMARY KEY, v text)", "CREATE TABLE goes (id int PRIMARY KEY)")
    server = {"host": "127.0.0.1", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
    target = {**server, "credentialsSecretRef": {"name": "pg"}, "schema": "copy_{schema}"}
    engine.spec = {"destination": {"postgres": target}, **part}
    engine.write_manifest()
    engine.levada("check", *engine.options())
    engine.start()
    # The disk of this machine may have less room than the page's one.
    assert {measure for measure, _ in passed(engine.wait_caught_up())} <= {"stagingFree"}

    engine.spec |= yaml.safe_load(yaml.safe_dump(part).replace("Gi", "Ki"))
    engine.write_manifest(SUSPENDED)
    engine.wait_for(lambda p: all(t["suspended"] for t in p["tables"] if t["name"] == "held"))
    with db.connect() as holder, holder.transaction():
        # WAL that an open transaction needs is released by the slot's end alone.
        holder.execute("INSERT INTO goes VALUES (1)")
        db.execute(
            "INSERT INTO held SELECT i, (SELECT string_agg(md5((i * 40 + j)::text), '') FROM generate_series(1, 30) j)"
            " FROM generate_series(1, 2000) i"
        )
        engine.wait_for(
            lambda p: (
                {("staged", "ParkSlowest"), ("retainedWal", "ReleaseSlot")} <= passed(p) and p["guard"]["pausesCopies"]
            )
        )
        engine.wait_log("are parked: public.held")
        engine.wait_log(f"slot levada_{db.name} is dropped")
    assert engine.process is not None
    assert engine.process.wait(LIMIT_S) != 0
    assert "slot_released" in engine.log
    assert db.query("SELECT FROM pg_replication_slots WHERE slot_name = %s", f"levada_{db.name}") == []
