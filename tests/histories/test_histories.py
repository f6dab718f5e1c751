"""Histories of fixed seeds, and some that are kept. ``make test-histories`` plays others for as long as it is given."""

from __future__ import annotations

import psycopg
import pytest
from tests.histories.batch import Batch
from tests.histories.findings import Plan
from tests.histories.history import History
from tests.histories.kept import DROPPED_BEFORE, KEPT, RETURNING
from tests.histories.world import Form, world
from tests.rigs.database import StartPostgres

SEEDS = (11, 12, 22, 28)
"""Some that have many kinds of statements."""


def test_no_oracle_refutes_a_history(start_postgres: StartPostgres, own_process: None) -> None:
    """Tables are equal or parked for a reason, also if the engine is killed, and no statement fails or waits for it."""
    with start_postgres(settings={"max_prepared_transactions": "20"}) as server:
        form = Form(server=_major_version(server.uri()))
        with world(server, form) as made:
            found = Batch(made, Plan(("settled", "killed"))).play([*SEEDS, *KEPT])
    assert not found, "\n\n".join(map(str, found))


@pytest.mark.parametrize("kept", [RETURNING, pytest.param(DROPPED_BEFORE, marks=pytest.mark.nightly)])
def test_partitions_and_keys_return_without_the_event_trigger(
    start_postgres: StartPostgres, own_process: None, kept: tuple[History, ...]
) -> None:
    """A table is equal after partitions, its key or a column left it for a moment, also if only two looks show that."""
    with start_postgres() as server:
        form = Form(server=_major_version(server.uri()), destination="postgres", trigger=False, resync=True)
        with world(server, form) as made:
            found = Batch(made, Plan(("settled",))).play(kept)
    assert not found, "\n\n".join(map(str, found))


def _major_version(uri: str) -> int:
    """Return the major version of a server."""
    with psycopg.connect(uri) as connection:
        return connection.info.server_version // 10000
