"""Requests of a library user to a pipeline without a manifest: retry, resync, stop with a time limit, clean-up."""

from __future__ import annotations

import pickle
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig, public, table, wait_for
from tests.rigs.recording import Recording

from levada.errors import NeedsOperator, Transient
from levada.postgres.connection import PostgresConnection
from levada.runtime.config import PipelineConfig, PublicationConfig, RetryLimits, SlotConfig, StagingConfig
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.pipeline import Pipeline
from levada.spec import load_manifests
from levada.values import QualifiedTable


@pytest.fixture
def orders(rig: Rig) -> Rig:
    """The pipeline of the one table orders."""
    rig.change(selects=Only("orders"), retries=RetryLimits(max_attempts=1))
    return rig


def new_pipeline(rig: Rig) -> Pipeline:
    """Return another object of the same pipeline."""
    return Pipeline(rig.config, store=rig.store(), destination=rig.destination)


class Failing(Recording):
    """A destination whose batches fail until a test says otherwise."""

    fails = False

    def write_events(self, events: object, mark: object) -> object:  # type: ignore[override]
        if self.fails:
            raise NeedsOperator("no_space", "the disk of the service is full", hint="make room")
        return super().write_events(events, mark)  # type: ignore[arg-type]


@pytest.mark.nightly
def test_a_retry_and_a_resync_are_requested(orders: Rig, db: Database) -> None:
    """A table that needs a person goes on after `retry`, without a copy. `resync` copies it again."""
    orders.destination = failing = Failing()
    orders.start()
    orders.wait_caught_up()
    assert orders.running is not None
    assert orders.running.retry() == (), "no table is errored"
    failing.fails = True
    db.execute("INSERT INTO orders VALUES (11)")
    orders.wait(lambda p: table(p, "orders").phase == "Errored")
    failing.fails = False
    assert orders.running.retry([public("orders")]) == (public("orders"),)
    orders.wait_caught_up()
    assert failing.copies_of("orders") == 1
    assert failing.applied_rows == {"orders": 1}
    assert orders.running.resync() == (public("orders"),)
    orders.wait(lambda p: failing.copies_of("orders") == 2)
    orders.wait_caught_up()
    with pytest.raises(NeedsOperator) as unknown:
        orders.running.resync([public("items")])
    assert unknown.value.code == "unknown_table"


@pytest.mark.parametrize("given", ["public.orders", ["public.orders"]])
def test_a_text_in_place_of_a_table(orders: Rig, given: Any) -> None:
    """The error says what a table is named by. Each way of its hint is one."""
    orders.start()
    orders.wait_caught_up()
    assert orders.running is not None
    for call in (orders.running.retry, orders.running.resync):
        with pytest.raises(NeedsOperator) as refused:
            call(given)
        assert refused.value.code == "unknown_table"
        assert (
            refused.value.message
            == f"not a {'list of tables' if given == 'public.orders' else 'QualifiedTable'}: {given!r}"
        )
        for way in re.findall(r"QualifiedTable[^ ]*\(.*?\)", refused.value.hint):
            assert eval(way, {"QualifiedTable": QualifiedTable}) == public("orders")


def test_requests_wait_for_the_start(orders: Rig, db: Database) -> None:
    """A request to a pipeline that was not started yet is done by its start. One that has ended takes none."""
    orders.start()
    orders.wait_caught_up()
    ended = orders.running
    assert ended is not None
    orders.stop()
    with pytest.raises(Transient) as refused:
        ended.resync()
    assert refused.value.code == "engine_not_running"
    again = new_pipeline(orders)
    assert again.resync() == (public("orders"),)
    orders.running = again
    again.start()
    orders.wait_caught_up()
    assert orders.destination.copies_of("orders") == 2


def test_a_stop_with_a_time_limit(orders: Rig, db: Database) -> None:
    """A stop returns False while a batch of the destination takes longer, and the pipeline goes on to end."""
    orders.start()
    orders.wait_caught_up()
    entered, leave = threading.Event(), threading.Event()

    def block(_: str) -> None:
        entered.set()
        wait_for(leave)

    orders.destination.before_apply = block
    db.execute("INSERT INTO orders VALUES (11)")
    wait_for(entered)
    assert orders.running is not None
    assert orders.running.stop(0.1) is False
    assert repr(orders.running).startswith("<Pipeline shop: ")
    leave.set()
    assert orders.running.stop() is True
    assert repr(orders.running) == "<Pipeline shop: Stopped>"
    assert orders.destination.applied_rows == {"orders": 1}
    assert new_pipeline(orders).stop(0.1) is True, "one that was not started has nothing to end"


def left_behind(db: Database) -> tuple[int, int, int]:
    """Return the numbers of slots, publications and event triggers in the test's database."""
    [counts] = db.query(
        "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()),"
        " (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_event_trigger)"
    )
    return counts  # type: ignore[return-value]


def test_a_clean_up_removes_what_a_pipeline_made(orders: Rig, db: Database, tmp_path: Path) -> None:
    """No slot, publication, trigger, state or staged file stays. The tables stay, unless the user says otherwise."""
    orders.start()
    orders.wait_caught_up()
    assert orders.running is not None
    with pytest.raises(NeedsOperator) as refused:
        orders.running.cleanup()
    assert refused.value.code == "pipeline_already_started"
    orders.stop()
    lines = new_pipeline(orders).cleanup()
    assert any(line.startswith("slot") and "dropped" in line for line in lines)
    assert left_behind(db) == (0, 0, 0)
    assert list((tmp_path / "staging").rglob("*.parquet")) == []
    assert [len(orders.destination.dropped), len(orders.destination.marks)] == [1, 1], "dropped once, before its copy"
    new_pipeline(orders).cleanup()
    orders.start()
    orders.wait_caught_up()
    orders.stop()
    again = new_pipeline(orders)
    again.cleanup(destination_tables=True)
    assert orders.destination.marks == {}
    with pytest.raises(NeedsOperator) as used:
        again.start()
    assert used.value.code == "pipeline_already_started"


def test_a_clean_up_waits_for_no_engine(orders: Rig, db: Database) -> None:
    """While an engine streams, nothing is removed, and it goes on."""
    orders.change(limits=replace(orders.config.limits, session_end_s=0.1))
    orders.start()
    orders.wait_caught_up()
    with pytest.raises(Transient) as refused:
        new_pipeline(orders).cleanup()
    assert refused.value.code == "slot_active"
    db.execute("INSERT INTO orders VALUES (11)")
    orders.wait_caught_up()
    assert orders.destination.applied_rows == {"orders": 1}


MANIFEST = """
apiVersion: levada.dev/v1alpha1
kind: Pipeline
metadata: {name: shop}
spec:
  source: {host: db, database: shop, credentialsSecretRef: {name: login}}
  tables: {include: [{schema: public, name: "*", where: "id > 3"}]}
  destination: {iceberg: {catalog: {type: Hadoop, warehouse: "file:///lake"}}}
  staging: {uri: "s3://lake/staging"}
"""


def test_a_configuration_can_be_pickled(tmp_path: Path) -> None:
    """A round trip gives an equal configuration, made by hand or of a manifest. Of Secrets' files it has the paths."""
    by_hand = PipelineConfig(
        name="shop",
        source=PostgresConnection("db", 5432, "shop", user="levada", password="very secret"),
        slot=SlotConfig("levada_shop"),
        publication=PublicationConfig("levada_shop"),
        staging=StagingConfig("s3://lake/staging"),
        work_dir=tmp_path,
    )
    assert pickle.loads(pickle.dumps(by_hand)) == by_hand
    assert b"very secret" in pickle.dumps(by_hand), "docs/python.md says so"
    for secret, keys in {"login": ("username", "password"), "keys": ("accessKeyId", "secretAccessKey")}.items():
        (tmp_path / secret).mkdir()
        for key in keys:
            (tmp_path / secret / key).write_text("very secret")
    of_manifest = pipeline_config(load_manifests(MANIFEST), secrets=tmp_path, work_dir=tmp_path)
    pickled = pickle.dumps(of_manifest)
    assert pickle.loads(pickled) == of_manifest
    assert pickle.loads(pickled).is_selected(public("orders"))
    assert b"very secret" not in pickled
    assert "very secret" not in repr(by_hand)
