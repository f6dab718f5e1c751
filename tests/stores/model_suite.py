"""Any sequence of calls has the same answers from every store as from a plain model of it."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from tests.rigs.storages import OpenStore

from levada.errors import NeedsOperator, StaleEpoch
from levada.stores import PipelineStore, table_worker
from levada.stores.codecs import HISTORY
from levada.stores.phases import Catchup, DataSync, FinishedCopy, Init, Ready, SyncWait, TableReplicationPhase
from levada.testing.store_samples import loaded, schema
from levada.values import Lsn, SnapshotId, TableId

TABLES = st.sampled_from([TableId(1), TableId(2), TableId(3)])
LSNS = st.sampled_from([Lsn(0), Lsn(5), Lsn(9), Lsn(2**64 - 1)])
VERSIONS = st.sampled_from([0, 4, 8, 12])
PHASES: st.SearchStrategy[TableReplicationPhase] = st.one_of(
    st.sampled_from([Init(), DataSync(), Ready()]),
    st.builds(FinishedCopy, LSNS),
    st.builds(SyncWait, LSNS),
    st.builds(Catchup, LSNS),
)
_numbers = count(1)


class StoreMachine(RuleBasedStateMachine):
    """Calls, restarts and takeovers of drivers. The model keeps what a store should keep."""

    def __init__(self, open_store: OpenStore) -> None:
        super().__init__()
        self.open_store = open_store
        self.pipeline = f"pipeline-{next(_numbers)}"
        self.opened = ExitStack()
        self.together = ExitStack()
        self.store = self.restarted()
        self.stale: PipelineStore | None = None
        self.histories: defaultdict[TableId, list[TableReplicationPhase]] = defaultdict(list)
        self.passing: dict[TableId, TableReplicationPhase] = {}
        self.versions: set[tuple[TableId, int]] = set()
        self.progress: dict[str, Lsn] = {}
        self.epoch = self.store.next_epoch()

    def restarted(self) -> PipelineStore:
        store = self.open_store(self.pipeline)
        self.opened.callback(store.close)
        return loaded(store)

    def teardown(self) -> None:
        self.together.close()
        self.opened.close()

    @rule()
    def begin_together(self) -> None:
        self.together.enter_context(self.store.together())

    @rule()
    def end_together(self) -> None:
        self.together.close()

    @rule(updates=st.dictionaries(TABLES, PHASES))
    def update(self, updates: dict[TableId, TableReplicationPhase]) -> None:
        self.store.update_table_replication_states(updates)
        for table, phase in updates.items():
            if phase.persisted:
                self.passing.pop(table, None)
                if self.histories[table][-1:] != [phase]:
                    self.histories[table] = [*self.histories[table], phase][-HISTORY:]
            else:
                self.passing[table] = phase

    @rule(table=TABLES)
    def rollback(self, table: TableId) -> None:
        if len(self.histories[table]) < 2:
            with pytest.raises(NeedsOperator):
                self.store.rollback_table_replication_state(table)
            return
        self.histories[table].pop()
        self.passing.pop(table, None)
        assert self.store.rollback_table_replication_state(table) == self.histories[table][-1]

    @rule(table=TABLES, version=VERSIONS)
    def store_schema(self, table: TableId, version: int) -> None:
        self.store.store_table_schema(schema(version, table))
        self.versions.add((table, version))

    @rule(retentions=st.dictionaries(TABLES, st.integers(0, 13).map(SnapshotId)))
    def prune(self, retentions: dict[TableId, SnapshotId]) -> None:
        old = {
            (table, version)
            for table, version in self.versions
            if any(t == table and version < v <= retentions.get(table, -1) for t, v in self.versions)
        }
        assert self.store.prune_table_schemas(retentions) == len(old)
        self.versions -= old

    @rule(worker=st.one_of(st.just("capture"), TABLES.map(table_worker)), lsn=LSNS)
    def move(self, worker: str, lsn: Lsn) -> None:
        self.progress[worker] = max(lsn, self.progress.get(worker, lsn))
        assert self.store.upsert_replication_progress(worker, lsn) == self.progress[worker]

    @rule(worker=st.one_of(st.just("capture"), TABLES.map(table_worker)))
    def forget_worker(self, worker: str) -> None:
        self.store.delete_replication_progress(worker)
        self.progress.pop(worker, None)

    @rule(table=TABLES, keep_phases=st.booleans())
    def clear(self, table: TableId, keep_phases: bool) -> None:
        if keep_phases:
            self.store.clear_table_copy_state(table)
        else:
            self.store.delete_table_pipeline_state(table)
            self.histories.pop(table, None)
            self.passing.pop(table, None)
        self.versions = {(t, v) for t, v in self.versions if t != table}
        self.progress.pop(table_worker(table), None)

    @rule()
    def restart(self) -> None:
        self.together.close()
        self.stale, self.store = self.store, self.restarted()
        self.epoch += 1
        assert self.store.next_epoch() == self.epoch
        self.passing.clear()

    @precondition(lambda self: self.stale is not None)
    @rule(table=TABLES, lsn=LSNS)
    def write_of_the_former_driver(self, table: TableId, lsn: Lsn) -> None:
        assert self.stale is not None
        with pytest.raises(StaleEpoch):
            self.stale.upsert_replication_progress("capture", lsn)
        with pytest.raises(StaleEpoch):
            self.stale.delete_table_pipeline_state(table)

    @invariant()
    def answers_are_the_models(self) -> None:
        phases = {table: history[-1] for table, history in self.histories.items() if history}
        assert self.store.get_table_replication_states() == phases | self.passing
        assert self.store.get_table_schemas() == tuple(schema(v, t) for t, v in sorted(self.versions))
        for at in (0, 5, 20):
            for table in map(TableId, (1, 2, 3)):
                newest = max((v for t, v in self.versions if t == table and v <= at), default=None)
                expected = None if newest is None else schema(newest, table)
                assert self.store.get_table_schema(table, SnapshotId(at)) == expected
        for worker in ("capture", *map(table_worker, map(TableId, (1, 2, 3)))):
            assert self.store.get_replication_progress(worker) == self.progress.get(worker)


def test_store_does_as_the_model(open_store: OpenStore) -> None:
    """Phases, history, versions and progress are the model's after every call, across restarts."""
    run_state_machine_as_test(
        lambda: StoreMachine(open_store),  # type: ignore[arg-type]  # any factory will do, its docstring says
        settings=settings(
            max_examples=15,
            stateful_step_count=25,
            suppress_health_check=[HealthCheck.data_too_large],
        ),
    )
