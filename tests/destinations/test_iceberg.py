"""Iceberg's own parts: history, foreign writers, crashes around a commit, the key index, maintenance."""

from __future__ import annotations

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.orders import CURRENT_SNAPSHOT_ONLY, ORDERS, apply, copy, items
from tests.rigs.database import Database
from tests.rigs.lake import Lake

from levada.destinations import TableMode
from levada.destinations.iceberg.maintenance import Work, work_due
from levada.destinations.iceberg.metadata import TableFacts
from levada.destinations.iceberg.settings import Settings
from levada.destinations.iceberg.table import IcebergTable
from levada.errors import NeedsOperator
from levada.schema import IdentityKind, Kind, ReplicatedTableSchema, TableTarget
from levada.spec.problems import explain
from levada.testing import column, table
from levada.testing.source import NOW
from levada.values import QualifiedTable, TableId

EVERY_LOOK = {"compactEverySeconds": 1, "expireSnapshotsAfterHours": 0}


def _files(lake: Lake) -> set[str]:
    return {str(f) for f in lake.iceberg().inspect.files().column("file_path").to_pylist()}


def test_each_snapshot_carries_its_watermark(lake: Lake) -> None:
    """The summary of each commit has pipeline, epoch and LSN. A batch is one commit of two files."""
    destination = lake.destination()
    stream = copy(lake, destination)
    stream.update(id=1, item="A", note=None)
    apply(lake, destination, stream, epoch=3)
    first, second = lake.iceberg().metadata.snapshots
    assert first.summary["levada.lsn"] == "0/3E8"
    told = {k: v for k, v in second.summary.additional_properties.items() if k.startswith("levada.")}
    assert told == {
        "levada.pipeline": lake.context.pipeline,
        "levada.epoch": "3",
        "levada.lsn": str(lake.mark(stream.taken).lsn),
    }
    assert second.summary["added-data-files"] == second.summary["added-delete-files"] == "1"


@pytest.mark.parametrize("mode", list(TableMode))
def test_a_batch_without_changes_moves_the_watermark_alone(hadoop: Lake, mode: TableMode) -> None:
    """Its segments are removed, so the next process must not miss them. The table keeps its snapshot."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination, mode=mode)
    apply(hadoop, destination, stream)
    assert len(hadoop.iceberg().metadata.snapshots) == 1
    assert destination.applied(ORDERS.id) == hadoop.mark(stream.taken)
    destination = hadoop.destination()
    assert destination.applied(ORDERS.id) == hadoop.mark(stream.taken)
    stream.insert(id=4, item="d", note=None)
    apply(hadoop, destination, stream)
    assert destination.applied(ORDERS.id) == hadoop.mark(stream.taken)
    assert [r["id"] for r in hadoop.rows()] == [1, 2, 3, 4]


def test_a_drop_that_did_not_end_is_ended(hadoop: Lake) -> None:
    """A table whose metadata files a crash removed half of the way makes room for the next copy of the same table."""
    destination = hadoop.destination()
    copy(hadoop, destination)
    folder = destination._tables._table_folder(destination._known.states[ORDERS.id].name)
    assert folder is not None
    folder.mark_dropped(destination._tables.owner.properties(destination._known.states[ORDERS.id].name, ORDERS))
    metadata = Path(hadoop.manifest["catalog"]["warehouse"]) / "shop_public" / "orders" / "metadata"
    for file in metadata.glob("*.metadata.json"):
        file.unlink()
    destination = hadoop.destination(work="next")
    destination.drop_table_for_copy(TableTarget.of(ORDERS))
    copy(hadoop, destination)
    assert len(hadoop.rows()) == 3


def test_tables_are_written_side_by_side(hadoop: Lake) -> None:
    """Several threads write a table each, and none sees anything of the others."""
    destination = hadoop.destination()
    tables = [replace(ORDERS, id=TableId(100 + i), name=QualifiedTable("public", f"t{i}")) for i in range(4)]

    def run(schema: ReplicatedTableSchema) -> None:
        stream = copy(hadoop, destination, schema, n=3)
        for i in range(3):
            stream.update(id=1, item=f"{schema.name} {i}", note=None, unchanged=[3])
            stream.insert(id=10 + i, item="new", note=None)
            apply(hadoop, destination, stream)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, tables))
    for schema in tables:
        seen = {r["id"]: r["item"] for r in hadoop.rows(schema.name.name)}
        new = dict.fromkeys((10, 11, 12), "new")
        assert seen == {1: f"{schema.name} 2", 2: "item 2", 3: "item 3"} | new


@pytest.mark.sampled
@pytest.mark.parametrize("index", ["lost", "stale", "broken"])
def test_the_index_is_a_cache(hadoop: Lake, index: str) -> None:
    """Without its index, with an old one, or with a broken one, the next batch is applied all the same."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    stream.update(id=1, item="A", note=None)
    stream.insert(id=4, item="d", note=None)
    folder = hadoop.context.work_dir / "iceberg-keys"
    kept = folder.with_name("kept")
    if index == "stale":
        shutil.copytree(folder, kept)
    apply(hadoop, destination, stream)
    if index == "lost":
        shutil.rmtree(folder)
    elif index == "stale":
        shutil.rmtree(folder)
        shutil.move(kept, folder)
    else:
        for path in folder.rglob("index.json"):
            path.write_text("{")
    stream.update(id=1, item="AA", note=None, unchanged=[3])
    stream.delete(id=4)
    stream.update(id=2, item="B", note=None)
    apply(hadoop, hadoop.destination(), stream)
    assert items(hadoop) == {1: "AA", 2: "B", 3: "item 3"}


def test_a_crash_around_the_commit(hadoop: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the process dies before the commit or right after it, the next one applies the batch once."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    commit = IcebergTable.commit
    for number, when in ((10, "before"), (12, "after")):

        def dies(self: IcebergTable, request: Any, when: str = when) -> None:
            if when == "after":
                commit(self, request)
            raise KeyboardInterrupt

        stream.insert(id=number, item=when, note=None)
        stream.update(id=1, item=when, note=None, unchanged=[3])
        batch = stream.batch()
        with monkeypatch.context() as patch:
            patch.setattr(IcebergTable, "commit", dies)
            with pytest.raises(KeyboardInterrupt):
                destination.write_events(batch, hadoop.mark(batch.until))
        destination = hadoop.destination()
        position = destination.applied(ORDERS.id)
        assert position == hadoop.mark(batch.until if when == "after" else 1000)
        destination.write_events(batch, hadoop.mark(batch.until))
    assert items(hadoop) == {1: "after", 2: "item 2", 3: "item 3", 10: "before", 12: "after"}


def test_a_rollback_is_noticed(lake: Lake) -> None:
    """A rollback makes a running and a restarted pipeline park the table. A roll forward resumes it."""
    destination = lake.destination()
    stream = copy(lake, destination)
    stream.insert(id=4, item="d", note=None)
    apply(lake, destination, stream)
    before = lake.iceberg().metadata.current_snapshot_id
    stream.delete(id=1)
    apply(lake, destination, stream)
    after = lake.iceberg().metadata.current_snapshot_id
    lake.sql("CALL {c}.system.rollback_to_snapshot({p}, " + str(before) + ")")
    stream.insert(id=5, item="e", note=None)
    batch = stream.batch()
    with pytest.raises(NeedsOperator) as caught:
        destination.write_events(batch, lake.mark(batch.until))
    assert caught.value.code == "table_rolled_back"
    destination = lake.destination()
    with pytest.raises(NeedsOperator) as caught:
        destination.applied(ORDERS.id)
    assert caught.value.code == "table_rolled_back"
    lake.sql("CALL {c}.system.set_current_snapshot({p}, " + str(after) + ")")
    destination.write_events(batch, lake.mark(batch.until))
    assert sorted(items(lake)) == [2, 3, 4, 5]


def test_a_catalog_that_was_restored(jdbc: Lake, db: Database) -> None:
    """A driver that has seen a later watermark parks the table: the changes in between are not staged any more."""
    destination = jdbc.destination()
    stream = copy(jdbc, destination)
    stream.insert(id=4, item="d", note=None)
    apply(jdbc, destination, stream)
    db.execute("UPDATE iceberg_tables SET metadata_location = previous_metadata_location")
    stream.insert(id=5, item="e", note=None)
    with pytest.raises(NeedsOperator) as caught:
        apply(jdbc, destination, stream)
    assert caught.value.code == "table_rolled_back"
    assert 5 not in items(jdbc)


def test_the_watermark_outlives_compaction_and_expiry(lake: Lake) -> None:
    """Compaction has no stamp, and expiry removes the stamped snapshots before it.

    The table still has its watermark, and the index follows.
    """
    destination = lake.destination(maintenance=EVERY_LOOK, retention=CURRENT_SNAPSHOT_ONLY)
    stream = copy(lake, destination, n=20)
    for i in range(1, 13):
        stream.update(id=i, item=f"batch {i}", note=None, unchanged=[3])
        apply(lake, destination, stream)
    before = lake.rows()
    state = destination._known.states[ORDERS.id]
    state.maintained_at = -10.0
    with ThreadPoolExecutor(1) as pool:  # as the engine does: Spark has no active session there
        pool.submit(destination.maintain, ORDERS.id).result()
    metadata = lake.iceberg().metadata
    assert [s.summary.operation.value for s in metadata.snapshots] == ["replace"]
    assert len(_files(lake)) == 1
    assert lake.rows() == before
    assert destination.applied(ORDERS.id) == lake.mark(stream.taken)
    assert state.index.opened is not None
    assert state.index.opened.snapshot_id == metadata.current_snapshot_id
    stream.update(id=1, item="later", note=None, unchanged=[3])
    stream.delete(id=20)
    apply(lake, destination, stream)
    after = {r["id"]: (r["item"], r["note"]) for r in lake.rows()}
    assert after[1] == ("later", "x" * 100)
    assert len(after) == 19
    assert lake.destination().applied(ORDERS.id) == lake.mark(stream.taken)


def test_compaction_by_somebody_else_is_followed(hadoop: Lake) -> None:
    """Another engine's compaction moves rows. The index reads their new places from the files that it wrote."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination, n=6)
    stream.update(id=1, item="A", note=None)
    apply(hadoop, destination, stream)
    hadoop.sql("CALL {c}.system.rewrite_data_files(table => {p}, options => map('rewrite-all', 'true'))")
    stream.update(id=1, item="AA", note=None)
    stream.update(id=5, item="E", note=None, unchanged=[3])
    stream.delete(id=6)
    apply(hadoop, destination, stream)
    assert items(hadoop) == {1: "AA", 2: "item 2", 3: "item 3", 4: "item 4", 5: "E"}


def test_work_due() -> None:
    """Many small files, many delete files and many deleted rows are worth a rewrite. A few are not."""
    mega = 1 << 20
    assert work_due(TableFacts(0, 0, 0, 0, 0)) == Work()
    assert work_due(TableFacts(4, 3, 1000, 10, 4 * mega)) == Work(max_files=1024)
    assert work_due(TableFacts(40, 3, 1000, 10, 40 * mega)).rewrite_data
    assert not work_due(TableFacts(40, 3, 1000, 10, 40 * 128 * mega)).rewrite_data
    assert work_due(TableFacts(4, 3, 1000, 300, 400 * mega)).rewrite_data
    assert work_due(TableFacts(4, 30, 1000, 10, 400 * mega)).rewrite_deletes


def _changelog(lake: Lake) -> list[tuple[Any, ...]]:
    names = ("_levada_op", "_levada_commit_lsn", "_levada_ordinal", "id", "item", "_levada_unchanged")
    rows = [tuple(r[n] for n in names) for r in lake.rows()]
    return sorted(rows, key=lambda r: (r[1], -1 if r[2] is None else r[2], r[0]))


def test_a_changelog_has_every_change_once(lake: Lake) -> None:
    """Every change is a row, with the names of values that were not sent. What comes again adds nothing."""
    destination = lake.destination()
    stream = copy(lake, destination, n=1, mode=TableMode.CHANGELOG)
    stream.update(id=1, item="A", note=None, unchanged=[3])
    stream.update(id=2, old={"id": 1}, item="moved", note=None)
    stream.truncate()
    stream.insert(id=3, item="c", note=None)
    stream.delete(id=3)
    batch = stream.batch()
    destination.write_events(batch, lake.mark(batch.until))
    lake.destination().write_events(batch, lake.mark(batch.until))
    expected = [
        ("I", 1000, None, 1, "item 1", None),
        ("U", 1010, 0, 1, "A", ["note"]),
        ("D", 1020, 0, 1, None, None),
        ("I", 1020, 0, 2, "moved", None),
        ("T", 1030, 0, None, None, None),
        ("I", 1040, 0, 3, "c", None),
        ("D", 1050, 0, 3, None, None),
    ]
    assert _changelog(lake) == expected
    assert {r["_levada_commit_ts"] for r in lake.rows()} == {None, NOW}
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns, column(4, "n", Kind.INT4, missing_value="1"))))
    stream.insert(id=4, item="d", note=None, n=2)
    more = stream.batch(since=1000)
    destination.write_events(more, lake.mark(more.until))
    rows = lake.rows()
    assert {(r["id"], r["n"]) for r in rows} >= {(4, 2), (3, None)}
    assert len(rows) == 8


def test_a_table_without_a_key_is_a_changelog(hadoop: Lake) -> None:
    """Every change is kept of a table whose rows cannot be distinguished. An update is both of its images."""
    keyless = replace(ORDERS, key=(), identity=IdentityKind.FULL)
    destination = hadoop.destination()
    assert destination.effective_mode(TableTarget.of(ORDERS)) is TableMode.UPSERT
    assert destination.effective_mode(TableTarget.of(keyless)) is TableMode.CHANGELOG
    destination.write_table_rows(
        TableTarget.of(keyless), MemoryRows(keyless, [{"id": 1, "item": "a"}]), hadoop.mark(1000)
    )
    stream = Stream(keyless)
    old = {"id": 1, "item": "a", "note": "long"}
    stream.update(id=1, item="b", note=None, unchanged=[3], old=old, old_kind="O")
    apply(hadoop, destination, stream)
    assert [(r[0], r[4], r[5]) for r in _changelog(hadoop)] == [
        ("I", "a", None),
        ("D", "a", None),
        ("I", "b", None),
    ]
    assert {r["note"] for r in hadoop.rows()} == {None, "long"}
    stream.alter(replace(ORDERS))
    with pytest.raises(NeedsOperator) as caught:
        apply(hadoop, destination, stream)
    assert caught.value.code == "mode_changed"


def test_settings_that_cannot_be_meant() -> None:
    """An unknown catalog, a missing setting and another placeholder are named by their path."""
    for config, path in (
        ({"catalog": {"type": "Nessie"}}, "catalog.type"),
        ({"catalog": {"type": "Jdbc", "warehouse": "/w"}}, "catalog.uri"),
        ({"catalog": {"type": "Hadoop", "warehouse": "w"}}, "catalog.warehouse"),
        ({"catalog": {"type": "Hadoop", "warehouse": "file://w"}}, "catalog.warehouse"),
        ({"catalog": {"type": "Hadoop", "warehouse": "/w"}, "namespace": "a_{table}"}, "namespace"),
    ):
        with pytest.raises(ValidationError) as caught:
            Settings.model_validate(config)
        assert [p.path for p in explain(caught.value, Settings)] == [path]


@pytest.mark.sampled
@pytest.mark.parametrize("seed", [1, 2])
def test_random_batches_come_to_what_a_simulation_does(hadoop: Lake, seed: int) -> None:
    """Random changes in random batches, with restarts, lost indexes and compaction between, leave the same rows."""
    rng = random.Random(seed)
    small = table(column(1, "a", Kind.INT4), column(2, "b", Kind.TEXT), column(3, "v", Kind.TEXT), key=(1, 2))
    destination = hadoop.destination(maintenance=EVERY_LOOK)
    model = {(i, str(i)): f"v{i}" for i in range(30)}
    rows = [{"a": a, "b": b, "v": v} for (a, b), v in model.items()]
    destination.write_table_rows(TableTarget.of(small), MemoryRows(small, rows[:9], [], rows[9:]), hadoop.mark(1000))
    stream = Stream(small)
    for turn in range(12):
        for _ in range(rng.choice([1, 5, 40])):
            _change(rng, stream, model, turn)
        if rng.random() < 0.3:
            destination = hadoop.destination(maintenance=EVERY_LOOK, work=rng.choice(["", "", "other"]))
        apply(hadoop, destination, stream)
        if rng.random() < 0.3:
            destination._known.states[small.id].maintained_at = -10.0
            destination.maintain(small.id)
        seen = {(r["a"], r["b"]): r["v"] for r in hadoop.by_pyiceberg().to_pylist()}
        assert seen == model
    assert len(hadoop.rows()) == len(model)


def _change(rng: random.Random, stream: Stream, model: dict[tuple[int, str], str | None], turn: int) -> None:
    free = (rng.randrange(40), str(rng.randrange(40)))
    value = f"{turn}-{rng.random()}"
    what = rng.random()
    if not model or (what < 0.3 and free not in model):
        stream.insert(a=free[0], b=free[1], v=value)
        model[free] = value
        return
    key = rng.choice(sorted(model))
    if what < 0.5:
        stream.delete(a=key[0], b=key[1])
        del model[key]
    elif what < 0.52:
        stream.truncate()
        model.clear()
    else:
        known, moves = rng.random() < 0.5, rng.random() < 0.3 and free not in model
        held = model.pop(key)
        new = free if moves else key
        model[new] = value if known else held
        stream.update(
            a=new[0],
            b=new[1],
            v=value if known else None,
            unchanged=[] if known else [3],
            old={"a": key[0], "b": key[1]} if moves else None,
        )
