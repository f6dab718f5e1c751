"""Commands of a Pipeline that is not the owner of what it names, over a real PostgreSQL."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.postgres.streams import open_stream
from tests.rigs.command_line import kept
from tests.rigs.database import Database
from tests.rigs.limits import limited
from tests.rigs.owners import Side, slots
from tests.rigs.waiting import until

from levada.errors import NeedsOperator, StaleEpoch, Transient
from levada.local.postgres import EmbeddedPostgres
from levada.postgres.publication_owners import read_publication_owner
from levada.runtime.host import cleanup
from levada.runtime.limits import Limits
from levada.runtime.resources.staging import open_staging
from levada.runtime.source.ownership import claim
from levada.runtime.source.preparation import discover
from levada.runtime.source.table_sizes import TableSizes
from levada.stores import OwnerRecord
from levada.stores.phases import Ready
from levada.values import PipelineOwner


def test_a_pipeline_of_the_same_name_in_another_namespace_is_refused(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start and its clean-up change nothing of the first one's slot, rows and publication, and do not name it.

    Messages are read in the namespace of the refused one. The UID alone is enough to hand over.
    """
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    one, other = Side(db, tmp_path, "a", "uid-a"), Side(db, tmp_path, "b", "uid-b")
    one.begin()
    kept(db, "orders", Ready(), "shop")
    before = db.query("SELECT name, epoch, owner_uid, owner_name, slot FROM levada.pipelines")
    assert before == [("shop", 2, "uid-a", "a/shop", "levada_a__shop")]
    with pytest.raises(NeedsOperator) as refused:
        other.begin()
    assert refused.value.code == "not_the_owner"
    done = other.on(monkeypatch, "cleanup", "--yes")
    assert done.exit_code == 1
    for said in (refused.value.message, done.stderr):
        text = said.replace("\n", " ")
        assert "belongs to a Pipeline of another namespace (UID uid-a), and this is Pipeline b/shop (UID uid-b)" in text
        assert "a/shop" not in text
    assert "kubectl -n b annotate --overwrite pipelines.levada.dev shop levada.dev/take-over-from=uid-a" in done.stderr
    assert slots(db) == ["levada_a__shop"]
    assert db.query("SELECT count(*) FROM levada.documents WHERE kind = 'phases'") == [(1,)]
    assert db.query("SELECT name, epoch, owner_uid, owner_name, slot FROM levada.pipelines") == before
    with db.connect() as connection:
        assert read_publication_owner(connection, "levada_a__shop") == PipelineOwner("uid-a", "a/shop")
    one.begin()
    assert one.on(monkeypatch, "cleanup", "--yes").exit_code == 0
    assert slots(db) == []


RETAIN = {"deletionPolicy": {"slot": "Retain", "state": "Retain"}}


@pytest.fixture
def orders(db: Database) -> Database:
    """A database with one table."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    return db


def code_of(begin: Callable[[], None]) -> str:
    """Return the code that a start is refused with."""
    with pytest.raises(NeedsOperator) as refused:
        begin()
    return refused.value.code


def test_an_owner_that_others_change_all_the_time(
    orders: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that is overtaken by other starts each time ends, and is retried. The hint is to run one engine."""
    side = Side(orders, tmp_path, "a", "uid-1")
    side.begin()
    with side.opened() as (config, store), side.opened() as (_, other):
        change, times = store.change_owner_record, itertools.count()

        def late(before: OwnerRecord | None, after: OwnerRecord | None) -> bool:
            now = other.get_owner_record()
            assert now is not None
            assert other.change_owner_record(now, replace(now, former=(f"other/{next(times)}",)))
            return change(before, after)

        monkeypatch.setattr(store, "change_owner_record", late)
        with pytest.raises(Transient) as contended:
            claim(config, store, open_staging(config.staging))
    assert contended.value.code == "store_contended"
    assert "the owner of pipeline shop was changed by other processes 10 times in a row" in contended.value.message
    assert "run one engine for each pipeline" in contended.value.hint


@pytest.mark.parametrize("spec", [{}, RETAIN], ids=["removed", "retained"])
def test_a_pipeline_deleted_and_created_again_begins(
    orders: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: dict[str, object]
) -> None:
    """Its UID differs. The clean-up of the old one releases the retained objects. Without a clean-up it is refused."""
    spec = {**spec, "staging": {"uri": f"file://{tmp_path}/staging"}}
    old, new = (Side(orders, tmp_path, "a", uid, **spec) for uid in ("uid-1", "uid-2"))
    old.begin(staged=100)
    kept(orders, "orders", Ready(), "shop")
    assert code_of(new.begin) == "not_the_owner"
    for _ in range(2):
        assert old.on(monkeypatch, "cleanup", "--yes").exit_code == 0
    assert bool(slots(orders)) == (spec.keys() >= RETAIN.keys())
    new.begin()
    record = orders.query("SELECT owner_uid, slot FROM levada.pipelines")
    assert record == [("uid-2", "levada_a__shop")]
    assert code_of(old.begin) == "not_the_owner"


def test_a_laptop_and_a_cluster_are_two_owners(
    orders: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is refused what the other owns. A laptop's own later starts are the owner, under the same names only."""
    cluster, laptop = Side(orders, tmp_path, "a", "uid-1", **RETAIN), Side(orders, tmp_path, "a", "")
    laptop.begin()
    laptop.begin()
    [(uid,)] = orders.query("SELECT owner_uid FROM levada.pipelines")
    assert uid.startswith("local-")
    assert code_of(cluster.begin) == "not_the_owner"
    assert code_of(Side(orders, tmp_path, "", "").begin) == "not_the_owner"
    cluster.begin(former=uid)
    assert code_of(laptop.begin) == "not_the_owner"
    refused = laptop.on(monkeypatch, "check")
    assert refused.exit_code == 3
    assert "levada takeover" in refused.stderr.replace("\n", "")
    assert "--from uid-1" in refused.stderr.replace("\n", " ")
    assert laptop.on(monkeypatch, "cleanup", "--yes").exit_code == 1
    assert cluster.on(monkeypatch, "cleanup", "--yes").exit_code == 0
    laptop.begin()


def test_staged_changes_of_a_former_laptop_pipeline_stay(
    orders: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another store, as after the source was made again, does not take the changes in the work folder for its own."""
    laptop = Side(orders, tmp_path, "a", "")
    laptop.begin(staged=100)
    orders.execute("DROP SCHEMA levada CASCADE")
    folder = laptop.path.parent / ".levada" / "shop" / "staging" / "shop"
    before = sorted(file.name for file in folder.iterdir())
    assert len(before) > 1
    assert code_of(laptop.begin) == "not_the_owner"
    assert sorted(file.name for file in folder.iterdir()) == before


def test_a_check_without_the_store_names_no_other_owner(
    orders: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The UID of a laptop is in the store. While that cannot be read, the laptop's publication is not another's."""
    laptop = Side(orders, tmp_path, "a", "")
    laptop.begin()
    orders.execute("INSERT INTO levada.store_migrations (version) VALUES (999)")
    refused = laptop.on(monkeypatch, "check")
    assert "[store_newer]" in refused.stderr
    assert "[not_the_owner]" not in refused.stderr


def test_ownership_is_taken_over_by_naming_the_former(
    orders: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store, publication and staged changes go together, and another UID than the owner's takes nothing."""
    staging = {"staging": {"uri": f"file://{tmp_path}/staging"}}
    former, laptop = Side(orders, tmp_path, "a", "uid-1", **staging), Side(orders, tmp_path, "a", "", **staging)
    former.begin(staged=100)
    wrong = laptop.on(monkeypatch, "takeover", "--from", "uid-2", "--yes")
    assert (wrong.exit_code, "[not_the_owner]" in wrong.stderr) == (1, True)
    for _ in range(2):
        assert laptop.on(monkeypatch, "takeover", "--from", "uid-1", "--yes").exit_code == 0
    [(uid, epoch)] = orders.query("SELECT owner_uid, epoch FROM levada.pipelines")
    assert (uid.startswith("local-"), epoch) == (True, 2)
    with orders.connect() as connection:
        assert read_publication_owner(connection, "levada_a__shop") == PipelineOwner(uid, "a/shop")
    assert code_of(former.begin) == "not_the_owner"
    laptop.begin()
    nothing = Side(orders, tmp_path, "c", "uid-3", store={"postgres": {"schema": "others"}})
    assert "[unknown_owner]" in nothing.on(monkeypatch, "takeover", "--from", "uid-1", "--yes").stderr


def test_a_takeover_of_nothing_leaves_the_engine_of_the_owner(
    orders: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A UID that owns no place changes none: not the owner's own, not an unknown one, nor a former one once more."""
    former, laptop = Side(orders, tmp_path, "a", "uid-1"), Side(orders, tmp_path, "a", "")
    former.begin()
    assert laptop.on(monkeypatch, "takeover", "--from", "uid-1", "--yes").exit_code == 0
    laptop.begin()
    [(own,)] = orders.query("SELECT owner_uid FROM levada.pipelines")
    everything = "SELECT * FROM levada.pipelines"
    with laptop.opened() as (_, running):
        running.next_epoch()
        before = orders.query(everything)
        for uid in (own, "uid-1", "uid-9"):
            done = laptop.on(monkeypatch, "takeover", "--from", uid, "--yes")
            assert done.exit_code == 0, done.stderr
            assert f"already: nothing of it belongs to UID {uid}" in done.stdout.replace("\n", " ")
            running.require_epoch()
        assert orders.query(everything) == before


def test_a_takeover_needs_the_slot_of_the_state(orders: Database, tmp_path: Path) -> None:
    """The state of another namespace goes with a slot of another name, which the manifest must have."""
    Side(orders, tmp_path, "a", "uid-1").begin()
    assert code_of(lambda: Side(orders, tmp_path, "b", "uid-2").begin("uid-1")) == "other_slot"
    assert orders.query("SELECT owner_uid, epoch FROM levada.pipelines") == [("uid-1", 1)]
    names: dict[str, object] = {"slot": {"name": "levada_a__shop"}, "publication": {"name": "levada_a__shop"}}
    Side(orders, tmp_path, "b", "uid-3", source=names).begin("uid-1")
    assert slots(orders) == ["levada_a__shop"]
    assert orders.query("SELECT former_names FROM levada.pipelines") == [(["a/shop"],)]


@pytest.mark.parametrize("by_command", [True, False], ids=["by the command", "at the start"])
def test_a_takeover_into_another_store_keeps_the_former_name(
    orders: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_command: bool
) -> None:
    """The publication and the staged changes name the former owner, whose lake tables are the new one's then."""
    source: dict[str, object] = {"slot": {"name": "s", "onLost": "Resync"}, "publication": {"name": "p"}}
    one, other = (
        Side(orders, tmp_path, namespace, f"uid-{namespace}", source=source, store={"postgres": {"schema": schema}})
        for namespace, schema in (("a", "store_a"), ("b", "store_b"))
    )
    one.begin()
    if by_command:
        assert other.on(monkeypatch, "takeover", "--from", "uid-a", "--yes").exit_code == 0
    else:
        other.begin("uid-a")
    assert orders.query("SELECT former_names FROM store_b.pipelines") == [(["a/shop"],)]


def test_a_publication_made_again_names_its_owner(orders: Database, tmp_path: Path) -> None:
    """The engine that creates it again while it runs marks it. One that was superseded marks nothing."""
    side = Side(orders, tmp_path, "a", "uid-1")
    side.begin()
    orders.execute("DROP PUBLICATION levada_a__shop")
    owner = PipelineOwner("uid-1", "a/shop")
    with side.opened() as (config, store), orders.connect() as connection:
        store.next_epoch()
        store.load_table_replication_states()
        assert discover(config, connection, store, owner, TableSizes()).published
        assert read_publication_owner(connection, "levada_a__shop") == owner
        side.begin()
        orders.execute("COMMENT ON PUBLICATION levada_a__shop IS NULL")
        with pytest.raises(StaleEpoch):
            discover(config, connection, store, owner, TableSizes())
        assert read_publication_owner(connection, "levada_a__shop") is None


def test_two_pipelines_that_name_one_slot(orders: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under other names and in other stores the slot's owner is known still, also with a publication of the user's."""
    orders.execute("CREATE PUBLICATION mine FOR TABLE orders")
    source: dict[str, object] = {"slot": {"name": "s"}, "publication": {"name": "mine", "management": "External"}}
    one, other = (
        Side(orders, tmp_path, namespace, f"uid-{namespace}", source=source, store={"postgres": {"schema": schema}})
        for namespace, schema in (("a", "store_a"), ("b", "store_b"))
    )
    one.begin()
    assert code_of(other.begin) == "not_the_owner"
    assert orders.query("SELECT owner_uid FROM store_b.pipelines") == [(None,)], "a refused start claims nothing"
    done = other.on(monkeypatch, "cleanup", "--yes")
    assert (
        done.exit_code,
        "slot s belongs to a Pipeline of another namespace (UID uid-a)" in done.stderr.replace("\n", " "),
    ) == (1, True)
    assert slots(orders) == ["s"]
    assert one.on(monkeypatch, "cleanup", "--yes").exit_code == 0
    assert slots(orders) == []
    assert orders.query("SELECT obj_description(oid) FROM pg_publication") == [(None,)]


def another_database(postgres: EmbeddedPostgres, orders: Database, suffix: str) -> Database:
    """Create a second database of that server, with a table of the same name."""
    with orders.connect() as connection:
        connection.execute(f"CREATE DATABASE {orders.name}_{suffix}".encode())
    other = Database(postgres, f"{orders.name}_{suffix}")
    other.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    return other


def test_two_sources_that_share_a_staging_area(
    postgres: EmbeddedPostgres, orders: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of one name is refused before a segment of the first is removed. The same owner may change source."""
    second = another_database(postgres, orders, "second")
    staging = {"staging": {"uri": f"file://{tmp_path}/staging"}}
    one = Side(orders, tmp_path, "", "", **staging)
    one.begin(staged=100)
    before = sorted(p.name for p in (tmp_path / "staging" / "shop").iterdir())
    assert "owner" in before
    assert len(before) > 1
    for side in (Side(second, tmp_path / "2", "", "", **staging), Side(second, tmp_path, "a", "uid-a", **staging)):
        assert code_of(side.begin) == "not_the_owner"
        assert side.on(monkeypatch, "cleanup", "--yes").exit_code == 1
    assert sorted(p.name for p in (tmp_path / "staging" / "shop").iterdir()) == before
    assert slots(second) == []
    # A slot's name is used once on a server, and this is one server.
    moved = Side(second, tmp_path / "3", "", "", source={"slot": {"name": "moved"}}, **staging)
    [(uid,)] = orders.query("SELECT owner_uid FROM levada.pipelines")
    assert moved.on(monkeypatch, "takeover", "--from", uid, "--yes").exit_code == 0
    assert code_of(moved.begin) == "store_empty", "and a resync of all tables is the way on, as of any lost state"


def test_the_owner_of_staged_changes_may_change_its_source(
    postgres: EmbeddedPostgres, orders: Database, tmp_path: Path
) -> None:
    """A Pipeline with a UID that finds another server at its address is still the owner, and may resync."""
    upgraded = another_database(postgres, orders, "upgraded")
    staging = {"staging": {"uri": f"file://{tmp_path}/staging"}}
    Side(orders, tmp_path, "a", "uid-1", **staging).begin(staged=100)
    source: dict[str, object] = {"slot": {"name": "upgraded", "onLost": "Resync"}}
    after = Side(upgraded, tmp_path / "2", "a", "uid-1", source=source, **staging)
    after.begin()
    assert slots(upgraded) == ["upgraded"]


def test_a_slot_of_another_database_stays(
    postgres: EmbeddedPostgres,
    orders: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two pipelines of one name in two databases have one slot's name: the second does not start, nor drops the slot.

    It reports whose slot it is, and not that slot's lag. Its clean-up removes the rest, also while an engine streams
    from the slot.
    """
    second = another_database(postgres, orders, "namesake")
    one, other = Side(orders, tmp_path / "1", "", ""), Side(second, tmp_path / "2", "", "")
    one.begin()
    assert code_of(other.begin) == "slot_foreign"
    [name] = slots(orders)
    whose = f"slot {name} is a logical slot of plugin pgoutput in database {orders.name}, not a permanent one"
    lag = other.on(monkeypatch, "lag")
    assert (lag.exit_code, lag.stdout) == (1, "")
    assert whose in lag.stderr.replace("\n", " ")
    assert "slot_foreign" in lag.stderr
    status = other.on(monkeypatch, "status", "-o", "json")
    assert status.exit_code == 1
    progress = json.loads(status.stdout)
    assert progress["error"]["code"] == "slot_foreign"
    assert whose in progress["error"]["reason"]
    assert (progress["slot"]["lagBytes"], progress["slot"]["active"]) == (None, None)
    monkeypatch.setattr(cleanup, "pipeline_config", limited(Limits(session_end_s=0.0)))
    with open_stream(orders, name, name):
        done = other.on(monkeypatch, "cleanup", "--yes")
    # The server notices a moment later that the stream is closed.
    until(lambda: not orders.query("SELECT FROM pg_replication_slots WHERE slot_name = %s AND active", name))
    assert done.exit_code == 0, done.stderr
    assert f"will stay: slot {name} is a logical slot" in done.stdout.replace("\n", " ")
    assert f"slot {name}: dropped" not in done.stdout
    assert slots(orders) == [name]
    assert one.on(monkeypatch, "cleanup", "--yes").exit_code == 0
    assert slots(orders) == []
