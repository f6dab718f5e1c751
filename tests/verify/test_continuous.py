"""Comparisons of a table range by range, while the pipeline runs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import psycopg
import pytest
from tests.rigs.pipeline import reach
from tests.rigs.replicated import InDuckLake, Replicated, T, in_ducklake, replicated
from tests.rigs.table_writers import alter, delete_some, insert_some, truncate, update_some, writers
from tests.rigs.verified_shop import Shop
from tests.rigs.waiting import until

from levada.destinations.ducklake.tables import read_content
from levada.destinations.postgres import PostgresDestination
from levada.errors import NeedsOperator
from levada.runtime.config import ContinuousConfig, TableConfig, VerifyConfig
from levada.runtime.erasures.eraser import ErasureOptions
from levada.runtime.limits import Limits, VerificationLimits
from levada.runtime.tables.verification_record import verification_record
from levada.status import Progress, ProofProgress, TableProgress
from levada.stores import MemoryStore

__all__ = ["in_ducklake", "replicated"]

DAY = 24 * 3600.0
BUSY = VerifyConfig(continuous=ContinuousConfig(DAY, 1.0))
"""Ranges without rests, and a pass that does not begin again within a test."""
AGAIN = VerifyConfig(continuous=ContinuousConfig(0.5, 1.0))
"""One pass after the other."""

FEW = Limits(verifications=VerificationLimits(range_rows=40))
SOME = Limits(verifications=VerificationLimits(range_rows=400))

KEYS = {
    "number": ("id bigint PRIMARY KEY", "g"),
    "text": ("id text PRIMARY KEY", "CASE g % 3 WHEN 0 THEN 'Ä' WHEN 1 THEN 'a''\\' ELSE 'B ' END || g"),
    "several": ("n smallint, id uuid, at timestamptz, PRIMARY KEY (at, n, id)",
                "g % 7, ('0000000' || g % 10 || '-0000-8000-0000-00000000000a')::uuid,"
                " timestamptz '2026-01-01' + g / 20 * interval '1.000001 s' "),
    "unordered": ("id float8 PRIMARY KEY", "g / 3.0"),
}  # fmt: skip
"""Keys, with the expression of their values from the number ``g``."""


def table(progress: Progress) -> TableProgress:
    """Return the progress of table ``t``."""
    return next(t for t in progress.tables if t.table == T)


def proof(progress: Progress) -> ProofProgress:
    """Return its comparison."""
    found = table(progress).proof
    return found if found is not None else ProofProgress(at=progress.at)


def proved(since: datetime | None = None) -> Callable[[Progress], bool]:
    """Return a predicate: each row was compared, by a pass that began after that time."""

    def is_proved(progress: Progress) -> bool:
        oldest = proof(progress).oldest if table(progress).proof is not None else None
        return oldest is not None and (since is None or oldest > since)

    return is_proved


@pytest.mark.sampled
@pytest.mark.parametrize("key", KEYS)
def test_planted_differences_are_found_and_healed(replicated: Replicated, key: str) -> None:
    """A missing, an extra and a changed row in the lake, whatever the key's type is. The table is not copied."""
    columns, value = KEYS[key]
    replicated.db.execute(
        f"CREATE TABLE t ({columns}, v text)",  # type: ignore[arg-type]  # made of constants
        f"INSERT INTO t SELECT {value}, 'v' || g FROM generate_series(1, 130) g",  # type: ignore[arg-type]  # as above
    )
    replicated.start(verify=AGAIN, limits=FEW)
    assert replicated.pipeline is not None
    found = reach(replicated.pipeline, proved())
    assert (proof(found).differences, proof(found).rows) == (0, 130)
    copied = table(found).copy
    replicated.damage("DELETE FROM t WHERE v = 'v77'; UPDATE t SET v = 'theirs' WHERE v = 'v3'")
    replicated.damage(f"INSERT INTO t SELECT {value}, 'more' FROM generate_series(2000, 2000) g")
    healed = reach(replicated.pipeline, lambda p: (proof(p).differences >= 3 and proved(p.at)(p)) or _healed(p))
    assert (proof(healed).differences, table(healed).phase) == (3, "Ready")
    assert table(healed).copy == copied
    assert replicated.verify().equal


def test_the_position_of_a_pass_is_not_an_erased_key(replicated: Replicated) -> None:
    """The store has the key that a pass has reached. An erasure removes it, so that the pass begins again."""
    replicated.db.execute(
        "CREATE TABLE t (id text PRIMARY KEY)",
        "INSERT INTO t SELECT 'person ' || g FROM generate_series(1, 130) g",
    )
    rests = VerifyConfig(continuous=ContinuousConfig(DAY, 1e-6))
    replicated.start(verify=rests, limits=FEW)
    pipeline = replicated.pipeline
    assert pipeline is not None
    number = table(reach(pipeline, lambda p: proof(p).rows > 0)).id

    def reached() -> tuple[str, ...] | None:
        store = MemoryStore(pipeline.config.name, replicated.storage)
        store.load_fingerprints()
        return verification_record(store, number).proved_to

    key = reached()
    assert key is not None
    replicated.db.query("DELETE FROM t WHERE id = %s RETURNING id", *key)
    pipeline.erase(T, ErasureOptions(key, dry_run=True))
    assert reached() == key
    pipeline.erase(T, ErasureOptions(key))
    until(lambda: reached() is None)


def _healed(progress: Progress) -> bool:
    return proof(progress).differences >= 3 and proof(progress).began is None


def move_some(connection: psycopg.Connection, rng: random.Random) -> None:
    """Give some rows other keys, which are in other ranges."""
    connection.execute("UPDATE t SET id = id + 100000 WHERE id %% 37 = %s AND id < 100000", [rng.randint(0, 36)])


@pytest.mark.nightly
def test_an_equal_table_is_never_reported_while_it_is_written(replicated: Replicated) -> None:
    """Passes over a table whose rows, columns and keys change find no difference, and the table stays Ready."""
    replicated.db.execute(
        "CREATE TABLE t (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, item text, v int DEFAULT 0)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t (item) SELECT 'v' || g FROM generate_series(1, 200) g",
    )
    replicated.start(verify=AGAIN, limits=SOME)
    assert replicated.pipeline is not None
    begin = reach(replicated.pipeline, proved()).at
    with writers(replicated.db, insert_some, update_some, delete_some, move_some, truncate, alter):
        found = reach(replicated.pipeline, proved(begin))
    assert (proof(found).differences, table(found).phase) == (0, "Ready")
    replicated.wait_caught_up()
    assert replicated.verify().equal


def test_a_restart_continues_the_pass(replicated: Replicated) -> None:
    """The position is in the store. A copy of the table begins a new pass, which has not proved the rest."""
    replicated.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 400) g",
    )
    replicated.start(verify=BUSY, limits=FEW)
    assert replicated.pipeline is not None
    stopped = proof(reach(replicated.pipeline, lambda p: proof(p).rows >= 80))
    replicated.pipeline.stop()
    assert stopped.oldest is None
    replicated.start(verify=BUSY, limits=FEW)
    found = proof(reach(replicated.pipeline, proved()))
    assert (found.rows, found.oldest) == (400, stopped.began)
    slow = VerifyConfig(continuous=ContinuousConfig(DAY, 0.0001))
    changed = replace(replicated.pipeline.config, verify=slow, tables={T: TableConfig(resync_nonce=1)})
    replicated.pipeline.reconfigure(changed)
    again = reach(replicated.pipeline, lambda p: table(p).resync_nonce == 1 and proof(p).rows == 40)
    assert (proof(again).oldest, proof(again).differences) == (None, 0)


def write_as_levada(shop: Shop, changes: list[str]) -> None:
    """Write as the engine does, with its record of its last commit. Otherwise the table is parked (`foreign_write`)."""
    newest = shop.sql("SELECT summary FROM {t}.snapshots ORDER BY committed_at DESC LIMIT 1")[0]["summary"]
    prefix = "spark.sql.iceberg.snapshot-property."
    names = [name for name in newest if name.startswith("levada")]
    for name in names:
        shop.spark.conf.set(f"{prefix}{name}", newest[name])
    try:
        shop.sql(";".join(changes))
    finally:
        for name in names:
            shop.spark.conf.unset(f"{prefix}{name}")
    newest_id = shop.sql("SELECT snapshot_id FROM {t}.snapshots ORDER BY committed_at DESC LIMIT 1")[0]["snapshot_id"]
    kept = {row["key"]: row["value"] for row in shop.sql("SHOW TBLPROPERTIES {t}")}
    recorded = json.dumps({**json.loads(kept["levada.last-commit"]), "snapshot": newest_id})
    # The text is formatted once more.
    text = recorded.replace("{", "{{").replace("}", "}}")
    shop.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('levada.last-commit' = '{text}')")


def damage_as_levada(shop: InDuckLake, statement: str) -> None:
    """Write by DuckDB, and record it as a commit of Levada. Otherwise the table is parked (`foreign_write`)."""
    shop.damage(statement)
    with shop.replica.connect() as connection:
        connection.execute("SET search_path = lake")
        [(number,)] = connection.execute("SELECT table_id FROM ducklake_table WHERE table_name = 't'").fetchall()
        now = read_content(connection, number)
        connection.execute("UPDATE levada_tables SET next_row_id = %s, row_count = %s", [now.next_row_id, now.rows])


@pytest.mark.sampled
@pytest.mark.parametrize("key", [key for key in KEYS if key != "unordered"])
def test_ducklake_is_healed_by_range(in_ducklake: InDuckLake, key: str) -> None:
    """A missing, an extra and a changed row of a table in DuckLake, in ranges of several files."""
    columns, value = KEYS[key]
    shop = in_ducklake
    shop.db.execute(
        f"CREATE TABLE t ({columns}, v text)",  # type: ignore[arg-type]  # made of constants
        f"INSERT INTO t SELECT {value}, 'v' || g FROM generate_series(1, 100) g",  # type: ignore[arg-type]  # as above
    )
    shop.start(verify=AGAIN, limits=FEW)
    assert shop.pipeline is not None
    shop.db.execute(f"INSERT INTO t SELECT {value}, 'v' || g FROM generate_series(101, 130) g")  # type: ignore[arg-type]
    shop.wait_caught_up()
    found = reach(shop.pipeline, proved(reach(shop.pipeline, proved()).at))
    assert (proof(found).differences, proof(found).rows) == (0, 130)
    damage_as_levada(shop, "DELETE FROM t WHERE v = 'v77'; UPDATE t SET v = 'theirs' WHERE v = 'v3'")
    extra = f"INSERT INTO t SELECT {value}, 'more' FROM generate_series(2000, 2000) g"
    with shop.db.connect() as connection:
        row = connection.execute(extra.removeprefix("INSERT INTO t ")).fetchone()  # type: ignore[call-overload]
    assert row is not None
    damage_as_levada(shop, f"INSERT INTO t VALUES ({', '.join(repr(str(v)) for v in row)})")
    healed = reach(shop.pipeline, lambda p: proof(p).differences >= 3)
    assert (proof(healed).differences, table(healed).phase) == (3, "Ready")
    assert table(healed).copy == table(found).copy
    assert shop.verify().equal


def test_what_another_writer_changed_is_not_healed_by_range(in_ducklake: InDuckLake) -> None:
    """The table is parked, because the other ranges may differ too, and no range of it is accepted."""
    shop = in_ducklake
    shop.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 130) g"
    )
    shop.start(verify=AGAIN, limits=FEW)
    assert shop.pipeline is not None
    reach(shop.pipeline, proved())
    shop.damage("UPDATE t SET v = 'theirs' WHERE id IN (3, 100)")
    reach(shop.pipeline, lambda p: "foreign_write" in (proof(p).problem or "") or table(p).is_parked)
    shop.db.execute("UPDATE t SET v = 'mine' WHERE id = 50")
    found = reach(shop.pipeline, lambda p: table(p).is_parked)
    assert table(found).error is not None
    assert table(found).error.code == "foreign_write"
    assert proof(found).differences == 0


@pytest.mark.nightly
def test_iceberg_is_healed_by_range(shop: Shop) -> None:
    """A missing, an extra and a changed row of a table in Iceberg, whose key has a number, a text and a moment."""
    shop.db.execute(
        "CREATE TABLE t (n int, b text, at timestamptz, v text, PRIMARY KEY (n, b, at))",
        "INSERT INTO t SELECT g % 5, CASE g % 2 WHEN 0 THEN 'Ä' ELSE 'b' END || g / 10,"
        " timestamptz '2026-01-01' + g * interval '1.000001 s', 'v' || g FROM generate_series(1, 130) g",
    )
    shop.config = {"verify": AGAIN, "limits": FEW}
    shop.start()
    shop.wait_caught_up()
    found = shop.wait(proved())
    assert (proof(found).differences, proof(found).rows) == (0, 130)
    changes = ["DELETE FROM {t} WHERE v = 'v77'", "UPDATE {t} SET v = 'theirs' WHERE v = 'v3'",
               "INSERT INTO {t} (n, b, at, v) VALUES (2, 'c', timestamp '2026-01-01 00:00:10', 'more')"]  # fmt: skip
    write_as_levada(shop, changes)
    healed = shop.wait(lambda p: proof(p).differences >= 3)
    assert (proof(healed).differences, table(healed).phase) == (3, "Ready")
    assert table(healed).copy == table(found).copy
    assert shop.verify().equal


def test_a_destination_without_ranges_refuses_the_manifest(
    replicated: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is done, with the field that has to go."""
    lacks = replace(PostgresDestination.capabilities, verifies_ranges=False)
    monkeypatch.setattr(PostgresDestination, "capabilities", lacks)
    with pytest.raises(NeedsOperator) as refused:
        replicated.start(verify=BUSY)
    assert (refused.value.code, "remove verify.continuous" in refused.value.hint) == ("verify_unsupported", True)
