"""The transitions between the phases of a table, and its retries."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime.one_table import TABLE, start

from levada.runtime.tables.phases import TRANSITIONS, at_restart, check_transition
from levada.status import RetryPolicy
from levada.stores import MemoryStore
from levada.stores.interface import TableAction
from levada.stores.phases import (
    Catchup,
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    Ready,
    SyncDone,
    SyncWait,
    TableReplicationPhase,
)
from levada.values import Lsn

LSN = Lsn(100)
PHASES: list[TableReplicationPhase] = [
    Init(), DataSync(), FinishedCopy(LSN), SyncWait(LSN), Catchup(LSN), SyncDone(LSN), Ready(),
    Errored("source_unreachable", "no route", "", RetryPolicy.MANUAL_RETRY),
]  # fmt: skip
PARKED = PHASES[-1]


@pytest.mark.parametrize("phase", PHASES, ids=lambda p: p.name)
def test_every_phase_can_be_parked_copied_again_and_retried(phase: TableReplicationPhase) -> None:
    """A retry resumes each stored phase as a restart does, and that is an allowed transition."""
    assert set(TRANSITIONS) == {p.name for p in PHASES}
    check_transition(phase, PARKED)
    if not isinstance(phase, Init):
        check_transition(phase, Init())
    if phase.persisted:
        check_transition(PARKED, at_restart(phase))


def test_a_retry_never_returns_into_a_copy() -> None:
    """The copy that failed begins again with Init. A transition from Errored into the middle of it is refused."""
    with pytest.raises(ValueError, match="DataSync cannot follow Errored"):
        check_transition(PARKED, DataSync())


@pytest.mark.parametrize("former", [p for p in PHASES if p.persisted and p != PARKED], ids=lambda p: p.name)
def test_a_retry_returns_to_the_phase_before_the_error(tmp_path: Path, former: TableReplicationPhase) -> None:
    """The store has the same phase."""
    store = MemoryStore("shop")
    store.next_epoch()
    store.update_table_replication_states({TABLE: former})
    store.update_table_replication_states({TABLE: PARKED})
    registry, record = start(tmp_path, store)
    store.request_table_action(TABLE, TableAction.RETRY)
    registry.requests.apply_actions()
    assert record.phase == at_restart(former)
    assert store.get_table_replication_state(TABLE) == record.phase


def test_only_a_parked_table_is_rolled_back(tmp_path: Path) -> None:
    """A retry of any other table is refused before the store changes its history."""
    store = MemoryStore("shop")
    store.next_epoch()
    for phase in (FinishedCopy(LSN), Ready()):
        store.update_table_replication_states({TABLE: phase})
    registry, record = start(tmp_path, store)
    with pytest.raises(ValueError, match="Ready is not parked"):
        registry.phases.roll_back(record)
    assert store.get_table_replication_state(TABLE) == Ready()
