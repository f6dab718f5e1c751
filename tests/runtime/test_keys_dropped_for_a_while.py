"""Primary keys that are dropped and made again without the event trigger, under REPLICA IDENTITY FULL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, LiteralString

import pytest
from tests.rigs.pipeline import HELD
from tests.rigs.replicated import InDuckLake, Replicated, in_ducklake, replicated

from levada.errors import NeedsOperator
from levada.values import TableMode

__all__ = ["in_ducklake", "replicated"]

_UNTRIGGERED: Final[dict[str, Any]] = {"default_table": HELD, "ddl_trigger": False}
_DROP: Final = "ALTER TABLE t DROP CONSTRAINT t_pkey"
_ADD: Final = "ALTER TABLE t ADD PRIMARY KEY (id)"
_FULL: Final = "ALTER TABLE t REPLICA IDENTITY FULL"
_NARROW: Final = "ALTER TABLE t REPLICA IDENTITY DEFAULT"
_TWINS: Final = "INSERT INTO t VALUES (7, 'one'), (7, 'two')"
_AWAY: Final[list[list[LiteralString]]] = [
    ["BEGIN", _DROP, _TWINS, "DELETE FROM t WHERE v = 'one'", _ADD, "COMMIT"],
    [_DROP, _TWINS, "UPDATE t SET id = 8 WHERE v = 'two'", _ADD, "INSERT INTO t VALUES (9, 'later')"],
    [_DROP, _TWINS, "DELETE FROM t WHERE v = 'one'", _ADD, _NARROW],
    [_FULL, _DROP, _TWINS, "DELETE FROM t WHERE v = 'one'", _ADD, _NARROW],
]


def _create(shop: Replicated, identity: LiteralString = _FULL) -> None:
    shop.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        identity,
        "INSERT INTO t SELECT i, 'copied' FROM generate_series(1, 3) i",
    )


def _play(shop: Replicated, statements: list[LiteralString]) -> None:
    with shop.db.connect() as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize("statements", _AWAY)
@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("kind", ["replicated", "in_ducklake"])
def test_rows_of_a_time_without_a_key_park_the_table(
    request: pytest.FixtureRequest, kind: str, stopped: bool, statements: list[LiteralString]
) -> None:
    """A row that is deleted without a key takes another one of the same number with it, which RELATIONs do not show."""
    shop: Replicated | InDuckLake = request.getfixturevalue(kind)
    _create(shop, _NARROW if _FULL in statements else _FULL)
    shop.start(**_UNTRIGGERED)
    assert shop.pipeline is not None
    if stopped:
        shop.pipeline.stop()
    _play(shop, statements)
    if stopped:
        shop.start(wait=False, **_UNTRIGGERED)
    with pytest.raises(NeedsOperator, match="key_changed"):
        shop.wait_caught_up()


@pytest.mark.sampled
@pytest.mark.parametrize(
    "statements",
    [
        ["REINDEX TABLE CONCURRENTLY t", "VACUUM FULL t"],
        ["ALTER TABLE t RENAME CONSTRAINT t_pkey TO other", _NARROW],
        [_NARROW, "INSERT INTO t VALUES (4, 'more')", "BEGIN", _DROP, _ADD, "COMMIT"],
    ],
)
def test_a_key_that_stays_costs_nothing(replicated: Replicated, statements: list[LiteralString]) -> None:
    """Its index may be made again. Without FULL, no row can be deleted while there is no key."""
    _create(replicated)
    replicated.start(**_UNTRIGGERED)
    _play(replicated, statements[:2])
    replicated.wait_caught_up()
    _play(replicated, [*statements[2:], "UPDATE t SET v = 'later' WHERE id = 2"])
    replicated.wait_caught_up()
    assert replicated.verify().equal


def test_a_changelog_needs_no_key(replicated: Replicated) -> None:
    """It has each change, whatever identifies rows."""
    _create(replicated)
    changelog = replace(HELD, mode=TableMode.CHANGELOG)
    replicated.start(default_table=changelog, ddl_trigger=False)
    _play(replicated, _AWAY[0])
    replicated.wait_caught_up()
    changes = "SELECT _levada_op FROM shop_public.t WHERE id = 7 ORDER BY 1"
    assert replicated.replica.query(changes) == [("D",), ("I",), ("I",)]
