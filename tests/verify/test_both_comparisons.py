"""Comparisons by request while ranges are compared all the time and rows change."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import reach, table
from tests.rigs.replicated import InDuckLake, Replicated, in_ducklake, replicated
from tests.rigs.verified_shop import Shop, shop

from levada.runtime.config import ContinuousConfig, VerifyConfig

__all__ = ["in_ducklake", "replicated", "shop"]

_ALL_THE_TIME: Final = VerifyConfig(continuous=ContinuousConfig(0.2, 1.0))
_CHANGES: Final = (
    "INSERT INTO t SELECT max(abs(id)) + 1, 'new' FROM t",
    "UPDATE t SET v = v || 'x' WHERE id % 97 = (random() * 96)::int",
    "UPDATE t SET id = -id WHERE id % 211 = (random() * 210)::int AND id > 0",
    "DELETE FROM t WHERE id % 307 = (random() * 306)::int",
)


@contextmanager
def _written(db: Database, pause_s: float) -> Iterator[None]:
    """Change rows of the table in the block, again after each pause. No range of a table that trails is compared."""
    ended = threading.Event()

    def write() -> None:
        with db.connect() as connection:
            while not ended.is_set():
                for statement in _CHANGES:
                    connection.execute(statement)  # type: ignore[call-overload]  # of a test
                ended.wait(pause_s)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def _compared(made: Replicated | Shop, comparisons: int = 6, pause_s: float = 0.5) -> None:
    """Compare the table some times, and wait for passes over its ranges between them."""
    pipeline = made.pipeline
    assert pipeline is not None
    with _written(made.db, pause_s):
        for n in range(comparisons):
            report = made.verify(sample=0.3 if n % 3 == 1 else 1.0, repair=n == 2)
            assert report.equal, report
            assert not report.repaired
            last = time.time()
            found = reach(
                pipeline, lambda p, last=last: (now := table(p, "t").proof) and now.oldest and now.at.timestamp() > last
            )
            proof = table(found, "t").proof
            assert proof is not None
            assert (proof.differences, proof.problem) == (0, "")
            assert table(found, "t").error is None


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["replicated", "in_ducklake"])
def test_neither_finds_a_difference_nor_waits_for_the_other(request: pytest.FixtureRequest, kind: str) -> None:
    """A request ends the comparison of a range, which is repeated, and both find the table equal."""
    made: Replicated | InDuckLake = request.getfixturevalue(kind)
    made.db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    made.db.execute("INSERT INTO t SELECT i, 'row' FROM generate_series(1, 30000) i")
    made.start(verify=_ALL_THE_TIME)
    _compared(made)


@pytest.mark.nightly
def test_neither_in_iceberg(shop: Shop) -> None:
    """As in the other destinations."""
    shop.db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    shop.db.execute("INSERT INTO t SELECT i, 'row' FROM generate_series(1, 30000) i")
    shop.config["verify"] = _ALL_THE_TIME
    shop.start()
    shop.wait_caught_up()
    _compared(shop, comparisons=3, pause_s=3.0)
