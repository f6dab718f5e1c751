"""The conformance suite of a store: the behaviour on which the engine relies."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest

from levada import codes
from levada.errors import NeedsOperator, StaleEpoch
from levada.schema import IdentityKind, ReplicatedTableSchema
from levada.status import CutPhase
from levada.stores import (
    CopyOrder,
    OwnerRecord,
    PipelineStore,
    TableAction,
    TableControls,
    table_worker,
)
from levada.stores.codecs import HISTORY
from levada.stores.phases import (
    Catchup,
    DataSync,
    FinishedCopy,
    Init,
    Ready,
    SyncDone,
    SyncWait,
    TableReplicationPhase,
)
from levada.testing.store_samples import CUT, ERRORED, FULL, ITEMS, METADATA, ORDERS, fill, kept, loaded, schema
from levada.values import Lsn, PipelineOwner, QualifiedTable, SnapshotId, TableId

OpenStore = Callable[[str], PipelineStore]
"""Opens another store of a pipeline over the same storage, as a restarted or a second driver does. Close it later."""


WRITES: dict[str, Callable[[PipelineStore], object]] = {
    "update phases": lambda s: s.update_table_replication_states({ORDERS: Ready()}),
    "rollback": lambda s: s.rollback_table_replication_state(ORDERS),
    "store schema": lambda s: s.store_table_schema(schema(9)),
    "order a copy": lambda s: s.order_copy(ORDERS, CopyOrder("t", 1)),
    "store metadata": lambda s: s.store_destination_table_metadata(ORDERS, METADATA),
    "remove metadata": lambda s: s.store_destination_table_metadata(ORDERS, None),
    "take an order back": lambda s: s.order_copy(ORDERS, None),
    "change an order": lambda s: s.change_copy_order(ORDERS, CopyOrder("t", 1), CopyOrder("t", 1, "w")),
    "prune schemas": lambda s: s.prune_table_schemas({ORDERS: SnapshotId(9)}),
    "upsert progress": lambda s: s.upsert_replication_progress("capture", Lsn(99)),
    "delete progress": lambda s: s.delete_replication_progress("capture"),
    "store controls": lambda s: s.store_table_controls(ORDERS, TableControls(9)),
    "store fingerprint": lambda s: s.store_fingerprint("slot", "stale"),
    "delete fingerprint": lambda s: s.delete_fingerprint("slot"),
    "store a cut": lambda s: s.store_cut(replace(CUT, phase=CutPhase.COMPLETE)),
    "delete a cut": lambda s: s.delete_cut(CUT.name),
    "clear copy": lambda s: s.clear_table_copy_state(ORDERS),
    "delete table": lambda s: s.delete_table_pipeline_state(ORDERS),
    "delete pipeline": lambda s: s.delete_pipeline_state(),
    "take actions": lambda s: s.take_table_actions(),
    "require the epoch": lambda s: s.require_epoch(),
}


class StoreConformance:
    """Tests of a store. Subclass it with a fixture ``open_store`` that returns an `OpenStore`.

    ::

        class TestMine(StoreConformance):
            @pytest.fixture
            def open_store(self, tmp_path):
                return lambda pipeline: CachedStore(pipeline, MyStorage(tmp_path, pipeline))
    """

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Return the function that opens stores. Override it."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `open_store` that returns an OpenStore")

    @pytest.fixture
    def store(self, open_store: OpenStore) -> PipelineStore:
        """Return a store of the pipeline ``shop`` that has taken the pipeline over."""
        store = open_store("shop")
        store.next_epoch()
        return store

    @pytest.mark.parametrize(
        "phase",
        [Init(), DataSync(), FinishedCopy(Lsn(7)), SyncDone(Lsn(2**63)), Ready(), ERRORED],
        ids=lambda phase: phase.name,
    )
    def test_persisted_phase_survives_restart(
        self, store: PipelineStore, open_store: OpenStore, phase: TableReplicationPhase
    ) -> None:
        """A new instance loads each persisted phase as it was written."""
        store.update_table_replication_states({ORDERS: Init(), ITEMS: phase})
        again = open_store("shop")
        assert again.get_table_replication_states() == {}
        assert again.load_table_replication_states() == 2
        assert again.get_table_replication_states() == {ORDERS: Init(), ITEMS: phase}
        assert again.get_table_replication_state(ITEMS) == phase
        assert again.get_table_replication_state(TableId(1)) is None

    @pytest.mark.parametrize("phase", [SyncWait(Lsn(9)), Catchup(Lsn(9))], ids=lambda phase: phase.name)
    def test_passing_phase_is_lost_at_restart(
        self, store: PipelineStore, open_store: OpenStore, phase: TableReplicationPhase
    ) -> None:
        """Phases that are not persisted are seen by this instance alone, also together with persisted ones."""
        store.update_table_replication_states({ORDERS: FinishedCopy(Lsn(5))})
        store.update_table_replication_states({ORDERS: phase, ITEMS: Ready()})
        assert store.get_table_replication_states() == {ORDERS: phase, ITEMS: Ready()}
        assert loaded(open_store("shop")).get_table_replication_states() == {
            ORDERS: FinishedCopy(Lsn(5)),
            ITEMS: Ready(),
        }

    def test_states_once_read_do_not_change(self, store: PipelineStore) -> None:
        """The result of a read does not change later."""
        store.update_table_replication_states({ORDERS: Init()})
        seen = store.get_table_replication_states()
        store.update_table_replication_states({ORDERS: DataSync()})
        assert seen == {ORDERS: Init()}

    def test_rollback_walks_the_history(self, store: PipelineStore, open_store: OpenStore) -> None:
        """Each rollback makes the phase before the current one current, in storage too. The beginning is an error."""
        for phase in (Init(), DataSync(), FinishedCopy(Lsn(5)), Catchup(Lsn(6)), ERRORED):
            store.update_table_replication_states({ORDERS: phase})
        assert store.get_phase_before_error(ITEMS) is None
        assert store.get_phase_before_error(ORDERS) == FinishedCopy(Lsn(5))
        assert store.rollback_table_replication_state(ORDERS) == FinishedCopy(Lsn(5))
        again = loaded(open_store("shop"))
        assert again.get_table_replication_state(ORDERS) == FinishedCopy(Lsn(5))
        again.next_epoch()
        assert again.rollback_table_replication_state(ORDERS) == DataSync()
        assert again.rollback_table_replication_state(ORDERS) == Init()
        for table in (ORDERS, ITEMS):
            with pytest.raises(NeedsOperator) as caught:
                again.rollback_table_replication_state(table)
            assert caught.value.code == codes.NO_PREVIOUS_PHASE
        assert again.get_table_replication_states() == {ORDERS: Init()}

    def test_history_goes_on_after_a_rollback(self, store: PipelineStore) -> None:
        """A phase written after a rollback follows the one stepped back to, not the one left."""
        for phase in (Init(), DataSync(), ERRORED):
            store.update_table_replication_states({ORDERS: phase})
        store.rollback_table_replication_state(ORDERS)
        store.update_table_replication_states({ORDERS: Ready()})
        assert store.rollback_table_replication_state(ORDERS) == DataSync()

    def test_same_phase_again_adds_no_history(self, store: PipelineStore) -> None:
        """A write repeated after a lost answer does no harm."""
        for phase in (Init(), DataSync(), DataSync(), SyncWait(Lsn(1)), DataSync()):
            store.update_table_replication_states({ORDERS: phase})
        assert store.rollback_table_replication_state(ORDERS) == Init()

    def test_history_is_bounded(self, store: PipelineStore) -> None:
        """Of a table that fails for ever the last phases are kept, no more."""
        for attempt in range(HISTORY + 3):
            store.update_table_replication_states({ORDERS: FinishedCopy(Lsn(attempt)), ITEMS: Init()})
        for back in range(1, HISTORY):
            assert store.rollback_table_replication_state(ORDERS) == FinishedCopy(Lsn(HISTORY + 2 - back))
        with pytest.raises(NeedsOperator):
            store.rollback_table_replication_state(ORDERS)

    def test_schema_version_is_the_newest_not_above(self, store: PipelineStore, open_store: OpenStore) -> None:
        """A version holds from its snapshot id (inclusive) to the next one's (exclusive)."""
        for version in (20, 0, 10):
            store.store_table_schema(schema(version))
        store.store_table_schema(schema(15, ITEMS))
        again = open_store("shop")
        assert again.load_table_schemas() == 4
        for instance in (store, again):
            versions = {at: instance.get_table_schema(ORDERS, SnapshotId(at)) for at in (0, 9, 10, 19, 20, 2**63)}
            expected = {0: 0, 9: 0, 10: 10, 19: 10, 20: 20, 2**63: 20}
            assert versions == {at: schema(version) for at, version in expected.items()}
            assert instance.get_table_schema(ITEMS, SnapshotId(14)) is None
            assert instance.get_table_schema(TableId(1), SnapshotId(99)) is None
            assert instance.get_table_schemas() == (schema(0), schema(10), schema(20), schema(15, ITEMS))

    def test_schema_version_is_replaced(self, store: PipelineStore, open_store: OpenStore) -> None:
        """The same table and snapshot id again is one version, the later one."""
        changed = ReplicatedTableSchema(
            ORDERS,
            QualifiedTable("public", "new"),
            schema(10).columns[:1],
            IdentityKind.FULL,
            snapshot_id=SnapshotId(10),
        )
        store.store_table_schema(schema(10))
        store.store_table_schema(changed)
        assert store.get_table_schemas() == loaded(open_store("shop")).get_table_schemas() == (changed,)

    def test_prune_keeps_what_can_still_be_read(self, store: PipelineStore, open_store: OpenStore) -> None:
        """The version in force at the retention and all later ones stay. Tables without a retention are left alone."""
        for version in (0, 10, 20, 30):
            store.store_table_schema(schema(version))
            store.store_table_schema(schema(version + 5, ITEMS))
        assert store.prune_table_schemas({ORDERS: SnapshotId(25), TableId(1): SnapshotId(99)}) == 2
        assert store.prune_table_schemas({ITEMS: SnapshotId(4)}) == 0
        items = tuple(schema(version, ITEMS) for version in (5, 15, 25, 35))
        for instance in (store, loaded(open_store("shop"))):
            assert instance.get_table_schemas() == (schema(20), schema(30), *items)

    def test_progress_never_goes_back(self, store: PipelineStore, open_store: OpenStore) -> None:
        """The higher position wins, and the answer says which it is."""
        assert store.get_replication_progress("capture") is None
        assert store.upsert_replication_progress("capture", Lsn(10)) == Lsn(10)
        assert store.upsert_replication_progress("capture", Lsn(5)) == Lsn(10)
        assert store.upsert_replication_progress("capture", Lsn(2**64 - 1)) == Lsn(2**64 - 1)
        assert store.upsert_replication_progress("other", Lsn(3)) == Lsn(3)
        for instance in (store, open_store("shop")):
            assert instance.get_replication_progress("capture") == Lsn(2**64 - 1)
            assert instance.get_replication_progress("other") == Lsn(3)

    def test_deleted_progress_begins_anew(self, store: PipelineStore, open_store: OpenStore) -> None:
        """Progress under one slot is forgotten with it, and a lower position may follow."""
        store.upsert_replication_progress("capture", Lsn(10))
        store.delete_replication_progress("capture")
        store.delete_replication_progress("capture")
        assert store.get_replication_progress("capture") is None
        assert open_store("shop").get_replication_progress("capture") is None
        assert store.upsert_replication_progress("capture", Lsn(4)) == Lsn(4)

    def test_controls_survive_restart(self, store: PipelineStore, open_store: OpenStore) -> None:
        """Later controls of a table replace the earlier ones. A table that was never seen has none."""
        acted = TableControls(retry_nonce=2**40, resync_nonce=7, made_as='{"mode": "Upsert", "ü": "\\u0000"}')
        store.store_table_controls(ORDERS, TableControls(1))
        store.store_table_controls(ORDERS, acted)
        again = open_store("shop")
        assert again.load_table_controls() == 1
        for instance in (store, again):
            assert instance.get_table_controls(ORDERS) == acted
            assert instance.get_table_controls(ITEMS) is None

    def test_metadata_of_a_destination_survives(self, store: PipelineStore, open_store: OpenStore) -> None:
        """A destination's record is read from storage by every instance, survives a copy, and leaves with its table."""
        half = replace(METADATA, applying=SnapshotId(2**63), details='{"ü": "\\u0000"}')
        for table in (ORDERS, ITEMS):
            assert store.get_destination_table_metadata(table) is None
            store.store_destination_table_metadata(table, METADATA)
            store.store_destination_table_metadata(table, half)
        again = open_store("shop")
        for instance in (store, again):
            assert instance.get_destination_table_metadata(ORDERS) == half
        store.clear_table_copy_state(ORDERS)
        assert again.get_destination_table_metadata(ORDERS) == half
        store.store_destination_table_metadata(ORDERS, None)
        assert again.get_destination_table_metadata(ORDERS) is None
        store.delete_table_pipeline_state(ITEMS)
        assert again.get_destination_table_metadata(ITEMS) is None
        store.store_destination_table_metadata(ORDERS, METADATA)
        store.delete_pipeline_state()
        assert again.get_destination_table_metadata(ORDERS) is None

    def test_fingerprints_survive_restart(self, store: PipelineStore, open_store: OpenStore) -> None:
        """The later fingerprint of a subject replaces the earlier, for a table as for any other subject."""
        for subject in ("slot", table_worker(ORDERS)):
            store.store_fingerprint(subject, "earlier")
            store.store_fingerprint(subject, f'{{"of": "{subject}", "ü": "\\u0000"}}')
        again = open_store("shop")
        assert again.load_fingerprints() == 2
        for instance in (store, again):
            for subject in ("slot", table_worker(ORDERS)):
                assert instance.get_fingerprint(subject) == f'{{"of": "{subject}", "ü": "\\u0000"}}'
            assert instance.get_fingerprint(table_worker(ITEMS)) is None
        for subject in ("slot", table_worker(ORDERS)):
            store.delete_fingerprint(subject)
            store.delete_fingerprint(subject)
        assert open_store("shop").load_fingerprints() == 0

    def test_order_for_a_copy(self, store: PipelineStore, open_store: OpenStore) -> None:
        """A driver orders, another process with its epoch takes and answers. Of two that take, one has it."""
        order = CopyOrder("first", epoch=1)
        assert store.get_copy_order(ORDERS) is None
        store.order_copy(ORDERS, order)
        job, rival = open_store("shop"), open_store("shop")
        for each in (job, rival):
            each.join(1)
            assert each.get_copy_order(ORDERS) == order
        mine, theirs = (CopyOrder("first", 1, worker) for worker in ("mine", "theirs"))
        assert job.change_copy_order(ORDERS, order, mine)
        assert job.change_copy_order(ORDERS, order, mine), "the same again, after a lost answer, was done already"
        assert not rival.change_copy_order(ORDERS, order, theirs)
        assert not job.change_copy_order(ITEMS, order, mine)
        done = CopyOrder("first", 1, "mine", '{"lsn": "0/7", "ü": "\\u0000"}')
        assert job.change_copy_order(ORDERS, mine, done)
        store.clear_table_copy_state(ORDERS)
        assert store.get_copy_order(ORDERS) == done
        store.order_copy(ORDERS, CopyOrder("second", 1))
        assert not job.change_copy_order(ORDERS, done, mine)
        store.order_copy(ORDERS, None)
        assert job.get_copy_order(ORDERS) is None
        assert not job.change_copy_order(ORDERS, CopyOrder("second", 1), done)
        store.order_copy(ORDERS, order)
        store.delete_table_pipeline_state(ORDERS)
        assert store.get_copy_order(ORDERS) is None

    def test_cuts_are_kept_by_name(self, store: PipelineStore, open_store: OpenStore) -> None:
        """Each cut is there after a restart, the newest of its name, until it is deleted."""
        other = replace(CUT, name="levada_cut_20261121T083000Z", committed_at=None, left_out=(), scheduled=True)
        complete = replace(CUT, phase=CutPhase.COMPLETE)
        for cut in (CUT, other, complete):
            store.store_cut(cut)
        seen = store.get_cuts()
        store.delete_table_pipeline_state(ORDERS)
        again = open_store("shop")
        assert (again.get_cuts(), again.load_cuts()) == ({}, 2)
        assert again.get_cuts() == seen == {CUT.name: complete, other.name: other}
        store.delete_cut(CUT.name)
        store.delete_cut("unknown")
        assert store.get_cuts() == loaded(open_store("shop")).get_cuts() == {other.name: other}
        assert len(seen) == 2, "what was read does not change"

    def test_copy_state_is_cleared_but_not_the_phase(self, store: PipelineStore, open_store: OpenStore) -> None:
        """Before a copy a table loses all but its phases and controls. Other tables and workers lose nothing."""
        fill(store)
        store.clear_table_copy_state(ORDERS)
        for instance in (store, loaded(open_store("shop"))):
            assert kept(instance, ORDERS) == (DataSync(), None, None, TableControls(3, 4, "as it was"), None, METADATA)
            assert kept(instance, ITEMS) == FULL
            assert instance.get_replication_progress("capture") == Lsn(6)
            assert instance.get_fingerprint("slot") == "as it was"
        assert store.rollback_table_replication_state(ORDERS) == Init()
        assert set(store.get_table_actions()) == {ORDERS, ITEMS}
        assert set(store.take_table_actions()) == {ORDERS, ITEMS}

    def test_table_is_forgotten(self, store: PipelineStore, open_store: OpenStore) -> None:
        """A table that left the publication leaves nothing. Doing it twice is no error."""
        fill(store)
        store.delete_table_pipeline_state(ORDERS)
        store.delete_table_pipeline_state(ORDERS)
        for instance in (store, loaded(open_store("shop"))):
            assert kept(instance, ORDERS) == (None,) * 6
            assert kept(instance, ITEMS) == FULL
            assert instance.get_replication_progress("capture") == Lsn(6)
        assert set(store.get_table_actions()) == {ITEMS}, "a read leaves the requests"
        assert set(store.take_table_actions()) == {ITEMS}
        assert store.get_table_actions() == {}

    def test_pipeline_is_forgotten_but_its_epoch(self, store: PipelineStore, open_store: OpenStore) -> None:
        """Everything of this pipeline goes, nothing of another one in the same place, and epochs go on."""
        other = open_store("other")
        assert other.next_epoch() == 1
        fill(store)
        fill(other)
        store.delete_pipeline_state()
        store.delete_pipeline_state()
        for instance in (store, loaded(open_store("shop"))):
            assert kept(instance, ORDERS) == kept(instance, ITEMS) == (None,) * 6
            assert instance.get_replication_progress("capture") is None
            assert instance.get_fingerprint("slot") is None
            assert instance.get_table_schemas() == ()
            assert instance.get_cuts() == {}
        assert store.take_table_actions() == {}
        assert kept(loaded(open_store("other")), ITEMS) == FULL
        assert store.next_epoch() == 2

    def test_actions_are_taken_once(self, store: PipelineStore, open_store: OpenStore) -> None:
        """A request reaches the driver from a process without an epoch. The later one for a table is the one taken."""
        visitor = open_store("shop")
        visitor.request_table_action(ORDERS, TableAction.RETRY)
        visitor.request_table_action(ORDERS, TableAction.RESYNC)
        visitor.request_table_action(ITEMS, TableAction.RETRY)
        assert store.take_table_actions() == {ORDERS: TableAction.RESYNC, ITEMS: TableAction.RETRY}
        assert store.take_table_actions() == {}

    def test_writes_together_are_all_stored(self, store: PipelineStore, open_store: OpenStore) -> None:
        """Writes of a block are read at once, and are all in storage at its end, each after the ones before it."""
        store.store_table_schema(schema(10))
        with store.together():
            store.update_table_replication_states({ORDERS: Init()})
            store.clear_table_copy_state(ORDERS)
            with store.together():
                store.store_table_schema(schema(20))
            store.update_table_replication_states({ORDERS: DataSync(), ITEMS: Ready()})
            store.store_fingerprint("capture", "known")
            assert store.get_table_replication_state(ORDERS) == DataSync()
            assert store.get_table_schemas() == (schema(20),)
            assert store.upsert_replication_progress("capture", Lsn(7)) == Lsn(7)
        for instance in (store, loaded(open_store("shop"))):
            assert instance.get_table_replication_states() == {ORDERS: DataSync(), ITEMS: Ready()}
            assert instance.get_table_schemas() == (schema(20),)
            assert instance.get_fingerprint("capture") == "known"
            assert instance.get_replication_progress("capture") == Lsn(7)
        assert store.rollback_table_replication_state(ORDERS) == Init()

    def test_writes_together_of_a_former_driver_are_refused(self, store: PipelineStore, open_store: OpenStore) -> None:
        """If another driver has taken over, the end of the block raises, and storage has none of the writes."""
        open_store("shop").next_epoch()

        def both() -> None:
            with store.together():
                store.store_table_schema(schema(10))
                store.update_table_replication_states({ORDERS: Init()})

        for write in (both, store.require_epoch):
            with pytest.raises(StaleEpoch):
                write()
        again = loaded(open_store("shop"))
        assert again.get_table_schemas() == ()
        assert again.get_table_replication_states() == {}

    @pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
    def test_stale_epoch_changes_nothing(
        self, store: PipelineStore, open_store: OpenStore, write: Callable[[PipelineStore], object]
    ) -> None:
        """Once a second instance has taken the pipeline over, no write of the first has any effect."""
        fill(store)
        second = loaded(open_store("shop"))
        assert second.next_epoch() == 2
        never_took_over = loaded(open_store("shop"))
        for stale in (store, never_took_over):
            with pytest.raises(StaleEpoch):
                write(stale)
            assert kept(stale, ITEMS) == kept(loaded(open_store("shop")), ITEMS) == FULL
            assert stale.get_table_replication_state(ORDERS) == DataSync()
            assert stale.get_replication_progress("capture") == Lsn(6)
            assert stale.get_cuts() == loaded(open_store("shop")).get_cuts() == {CUT.name: CUT}
        write(second)

    def test_epochs_are_handed_out_once(self, open_store: OpenStore) -> None:
        """However many drivers start simultaneously, each has an epoch of its own."""
        stores = [open_store("shop") for _ in range(6)]
        with ThreadPoolExecutor(len(stores)) as pool:
            assert sorted(pool.map(lambda s: s.next_epoch(), stores)) == [1, 2, 3, 4, 5, 6]

    def test_threads_share_a_store(self, store: PipelineStore, open_store: OpenStore) -> None:
        """Writes of several threads all arrive, and cache and storage agree on their order."""

        def work(number: int) -> None:
            own = TableId(100 + number)
            for step in range(8):
                store.update_table_replication_states({own: FinishedCopy(Lsn(step)), ORDERS: SyncDone(Lsn(number))})
                store.store_table_schema(schema(step, own))
                store.upsert_replication_progress("capture", Lsn(number * 10 + step))
                store.get_table_replication_states()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        again = loaded(open_store("shop"))
        assert again.get_table_replication_states() == store.get_table_replication_states()
        assert {again.get_table_replication_state(TableId(100 + n)) for n in range(4)} == {FinishedCopy(Lsn(7))}
        assert again.get_table_schemas() == store.get_table_schemas()
        assert len(again.get_table_schemas()) == 32
        assert again.get_replication_progress("capture") == store.get_replication_progress("capture") == Lsn(37)

    def test_close_twice(self, store: PipelineStore) -> None:
        """A closed store may be closed again."""
        store.close()
        store.close()

    def test_owner_is_recorded_once(self, store: PipelineStore, open_store: OpenStore) -> None:
        """Of several claims of an unowned state, one wins. It is handed over by naming what is there."""
        assert store.get_owner_record() is None
        claims = [OwnerRecord(PipelineOwner(f"uid-{n}", "a/shop"), "slot", "publication") for n in range(6)]
        stores = [open_store("shop") for _ in claims]
        with ThreadPoolExecutor(6) as pool:
            done = list(pool.map(lambda s, c: s.change_owner_record(None, c), stores, claims))
        assert sorted(done) == [False] * 5 + [True]
        mine = claims[done.index(True)]
        assert open_store("shop").get_owner_record() == mine
        assert stores[done.index(True)].change_owner_record(None, mine), "done twice is done"
        released, other = (
            replace(mine, owner=None),
            OwnerRecord(PipelineOwner("uid-x", "b/shop"), "slot", "publication"),
        )
        assert not store.change_owner_record(released, other)
        assert store.change_owner_record(mine, released)
        assert open_store("shop").get_owner_record() == released
        assert store.change_owner_record(released, other)
        assert open_store("other").get_owner_record() is None

    def test_the_full_names_of_former_owners_are_kept(self, store: PipelineStore, open_store: OpenStore) -> None:
        """The record of the owner names the former ones, and a released one too, until the state is forgotten."""
        first = OwnerRecord(PipelineOwner("uid-1", "shop"), "s", "p")
        assert first.handed_over(PipelineOwner("uid-2", "shop"), "s", "p").former == (), (
            "the same name is no former one"
        )
        second = first.handed_over(PipelineOwner("uid-2", "a/shop"), "s", "p")
        released = second.released()
        third = released.handed_over(PipelineOwner("uid-3", "b/shop"), "s", "p")
        back = third.handed_over(PipelineOwner("uid-4", "a/shop"), "s", "p")
        assert [r.former for r in (second, released, third, back)] == [
            ("shop",),
            ("shop", "a/shop"),
            ("shop", "a/shop"),
            ("shop", "b/shop"),
        ]
        for before, now in pairwise((None, first, second, released, third, back, None)):
            assert store.change_owner_record(before, now)
            assert open_store("shop").get_owner_record() == now

    def test_a_former_owner_gets_no_epoch(self, store: PipelineStore, open_store: OpenStore) -> None:
        """An engine that claimed the pipeline and was overtaken before its epoch leaves the new owner's epoch valid."""
        mine, other = (OwnerRecord(PipelineOwner(uid, "a/shop"), "s", "p") for uid in ("uid-1", "uid-2"))
        assert store.change_owner_record(None, mine)
        second = open_store("shop")
        assert second.change_owner_record(mine, other)
        second.next_epoch()
        with pytest.raises(NeedsOperator) as refused:
            store.next_epoch()
        assert refused.value.code == codes.NOT_THE_OWNER
        second.delete_pipeline_state()
        assert second.get_owner_record() == other
        second.update_table_replication_states({ORDERS: Init()})
