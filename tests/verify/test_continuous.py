"""Comparisons of a table range by range, while the pipeline runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest
from tests.rigs.pipeline import reach
from tests.rigs.replicated import InDuckLake, Replicated, T, in_ducklake, replicated
from tests.rigs.table_writers import delete_some, insert_some, update_some, writers
from tests.rigs.verified_shop import Shop

from levada.errors import NeedsOperator
from levada.runtime.config import ContinuousConfig, TableConfig, VerifyConfig
from levada.runtime.limits import Limits, VerificationLimits
from levada.status import Progress, ProofProgress, TableProgress

__all__ = ["in_ducklake", "replicated"]

DAY = 24 * 3600.0
BUSY = VerifyConfig(continuous=ContinuousConfig(DAY, 1.0))
"""Ranges without rests, and a pass that does not begin again within a test."""
AGAIN = VerifyConfig(continuous=ContinuousConfig(0.5, 1.0))
"""One pass after the other."""

FEW = Limits(verifications=VerificationLimits(range_rows=40))

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


def _healed(progress: Progress) -> bool:
    return proof(progress).differences >= 3 and proof(progress).began is None


def test_an_equal_table_is_never_reported_while_it_is_written(replicated: Replicated) -> None:
    """Passes over a table whose rows and keys change all the time find no difference, and the table stays Ready."""
    replicated.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 400) g",
    )
    replicated.start(verify=AGAIN, limits=FEW)
    assert replicated.pipeline is not None
    begin = reach(replicated.pipeline, proved()).at
    with writers(replicated.db, insert_some, update_some, delete_some):
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
    shop.sql(";".join(changes))
    healed = shop.wait(lambda p: proof(p).differences >= 3)
    assert (proof(healed).differences, table(healed).phase) == (3, "Ready")
    assert table(healed).copy == table(found).copy
    assert shop.verify().equal


def test_a_destination_without_ranges_refuses_the_manifest(in_ducklake: InDuckLake) -> None:
    """Before anything is done, with the field that has to go."""
    with pytest.raises(NeedsOperator) as refused:
        in_ducklake.start(verify=BUSY)
    assert (refused.value.code, "remove spec.verify.continuous" in refused.value.hint) == ("verify_unsupported", True)
