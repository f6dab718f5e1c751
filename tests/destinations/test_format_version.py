"""Tables of format version 3: deletion vectors, row lineage, and the upgrade from version 2."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.foreign_commits import COMPACT, EXPIRE, UNDO, current, goes_on, look, resync, two_batches
from tests.destinations.lost_answers import lost_answers
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.orders import CURRENT_SNAPSHOT_ONLY, ORDERS, apply, items
from tests.rigs.lake import Lake

from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.java import CommitUnknown
from levada.destinations.iceberg.maintenance import FileLimits
from levada.destinations.iceberg.table import IcebergTable
from levada.errors import DestinationChanged
from levada.schema import TableTarget
from levada.segments import StagedBatch

LINEAGE = "SELECT id, _row_id, _last_updated_sequence_number AS changed FROM {t}"
DELETES = (
    "SELECT file_path, content_offset, content_size_in_bytes, referenced_data_file, record_count, file_format "
    "FROM {t}.delete_files"
)
FOREIGN_DML = [
    "DELETE FROM {t} WHERE id = 3",
    "UPDATE {t} SET item = 'theirs' WHERE id IN (1, 3)",
    "MERGE INTO {t} t USING (SELECT 3L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
]
BY_POSITION = (
    "ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read',"
    " 'write.merge.mode'='merge-on-read')"
)


@pytest.fixture
def newer(hadoop: Lake) -> Lake:
    """A Hadoop catalog with tables of format version 3."""
    hadoop.manifest["formatVersion"] = 3
    return hadoop


def check_vectors(lake: Lake) -> list[Any]:
    """Assert that all deletes are vectors, one for each data file at most, and exact. Return them."""
    found = lake.sql(DELETES)
    assert {d.file_format for d in found} <= {"PUFFIN"}
    assert max(Counter(d.referenced_data_file for d in found).values(), default=1) == 1
    rows = lake.sql("SELECT count(*) AS n FROM {t}")[0].n
    [stored] = lake.sql("SELECT coalesce(sum(record_count), 0) AS n FROM {t}.data_files")
    assert stored.n - sum(d.record_count for d in found) == rows
    return found


def check_lineage(lake: Lake) -> dict[int, tuple[int, int]]:
    """Assert that each row has an ID of its own and the sequence number of a commit. Return both by key."""
    rows = {r.id: (r._row_id, r.changed) for r in lake.sql(LINEAGE)}
    assert len({row_id for row_id, _ in rows.values()}) == len(rows)
    last = lake.sql("SELECT max(sequence_number) AS n FROM {t}.entries")[0].n
    assert all(row_id is not None and 0 < changed <= last for row_id, changed in rows.values())
    return rows


def several_files(lake: Lake, destination: IcebergDestination, n: int = 12, files: int = 4) -> Stream:
    """Copy rows 1 to n into several data files."""
    rows = [{"id": i, "item": f"item {i}", "note": "x" * 100} for i in range(1, n + 1)]
    parts = [rows[i::files] for i in range(files)]
    destination.write_table_rows(TableTarget.of(ORDERS), MemoryRows(ORDERS, *parts), lake.mark(1000))
    return Stream(ORDERS)


def lower(lake: Lake) -> dict[str, Any]:
    """Set the manifest back to format version 2, and return what it was."""
    before = dict(lake.manifest)
    lake.manifest.pop("formatVersion")
    return before


def test_rows_are_deleted_by_vectors(newer: Lake) -> None:
    """A batch writes one file with a vector for each data file that it deletes rows from, merged with the earlier."""
    destination = newer.destination()
    stream = several_files(newer, destination)
    for key in (1, 2, 3, 4):
        stream.delete(id=key)
    apply(newer, destination, stream)
    first = check_vectors(newer)
    assert len(first) == 4
    assert len({d.file_path for d in first}) == 1
    before = check_lineage(newer)
    stream.update(id=5, item="E", note=None, unchanged=[3])
    stream.delete(id=6)
    apply(newer, destination, stream)
    second = check_vectors(newer)
    assert sorted(d.record_count for d in second) == [1, 1, 2, 2]
    assert len({d.file_path for d in second}) == 2
    summary = newer.iceberg().metadata.snapshots[-1].summary
    assert (summary["added-dvs"], summary["removed-dvs"]) == ("2", "2")
    stream.update(id=5, item="EE", note=None)
    stream.delete(id=7)
    apply(newer, newer.destination(work="other"), stream)
    check_vectors(newer)
    assert items(newer) == {5: "EE"} | {i: f"item {i}" for i in range(8, 13)}
    after = check_lineage(newer)
    assert {i: after[i] for i in range(8, 13)} == {i: before[i] for i in range(8, 13)}
    assert after[5][1] > before[5][1]


@pytest.mark.nightly
@pytest.mark.parametrize("upgraded_by", ["manifest", pytest.param("other tool", marks=pytest.mark.nightly)])
def test_an_upgrade_in_the_middle_of_a_stream(hadoop: Lake, upgraded_by: str) -> None:
    """The next batch upgrades the table. Its position deletes become vectors, and its history stays readable."""
    destination = hadoop.destination()
    stream = several_files(hadoop, destination)
    for key in (1, 2, 5):
        stream.delete(id=key)
    apply(hadoop, destination, stream)
    stream.update(id=6, item="F", note=None)
    apply(hadoop, destination, stream)
    before, old = items(hadoop), current(hadoop)
    assert {d.file_format for d in hadoop.sql(DELETES)} == {"PARQUET"}
    hadoop.manifest["formatVersion"] = 3
    if upgraded_by == "other tool":
        hadoop.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')")
    destination = hadoop.destination()
    assert destination.applied(ORDERS.id) == hadoop.mark(stream.taken)
    # One row in a file with old deletes, one without, and one that was updated already.
    for key in (9, 3, 6):
        stream.delete(id=key)
    apply(hadoop, destination, stream)
    wanted = {k: v for k, v in before.items() if k not in (9, 3, 6)}
    assert items(hadoop) == wanted
    assert hadoop.iceberg().metadata.format_version == 3
    assert sum(d.record_count for d in check_vectors(hadoop)) == 7
    check_lineage(hadoop)
    past = hadoop.sql(f"SELECT id, item FROM {{t}} VERSION AS OF {old}")
    assert {r.id: r.item for r in past} == before
    goes = hadoop.destination(work="other")
    stream.update(id=4, item="D", note=None, unchanged=[3])
    apply(hadoop, goes, stream)
    assert items(hadoop) == wanted | {4: "D"}
    check_vectors(hadoop)
    hadoop.sql(COMPACT)
    hadoop.sql(EXPIRE)
    stream.delete(id=4)
    apply(hadoop, goes, stream)
    assert items(hadoop) == wanted_without(wanted, 4)


def wanted_without(rows: dict[int, Any], key: int) -> dict[int, Any]:
    """Return the rows without one of them."""
    return {k: v for k, v in rows.items() if k != key}


@pytest.mark.sampled
@pytest.mark.parametrize(("nth", "when"), [(1, "after"), (2, "before"), (2, "after"), (3, "before"), (3, "after")])
def test_a_crash_in_an_upgrade(hadoop: Lake, monkeypatch: pytest.MonkeyPatch, nth: int, when: str) -> None:
    """Whichever commit is the last one of a process, before or after it, the next process ends the upgrade."""
    destination = hadoop.destination()
    stream = several_files(hadoop, destination)
    stream.delete(id=1)
    apply(hadoop, destination, stream)
    hadoop.manifest["formatVersion"] = 3
    stream.delete(id=2)
    stream.update(id=5, item="E", note=None, unchanged=[3])
    before, batch, calls = hadoop.mark(stream.taken), stream.batch(), []

    def dying(commit: Callable[..., Any]) -> Callable[..., Any]:
        def dies(*args: Any) -> Any:
            calls.append(1)
            result = commit(*args) if len(calls) < nth or when == "after" else None
            if len(calls) == nth:
                raise KeyboardInterrupt
            return result

        return dies

    with monkeypatch.context() as patch:
        for kind in ("commit", "commit_metadata"):
            patch.setattr(IcebergTable, kind, dying(getattr(IcebergTable, kind)))
        with pytest.raises(KeyboardInterrupt):
            hadoop.destination().write_events(batch, hadoop.mark(batch.until))
    destination = hadoop.destination()
    applied = (nth, when) == (3, "after")
    assert destination.applied(ORDERS.id) == (hadoop.mark(batch.until) if applied else before)
    destination.write_events(batch, hadoop.mark(batch.until))
    assert items(hadoop) == {3: "item 3", 4: "item 4", 5: "E"} | {i: f"item {i}" for i in range(6, 13)}
    check_vectors(hadoop)


def test_the_format_version_cannot_become_lower(newer: Lake) -> None:
    """A table of version 3 is parked by its code while the manifest says 2. A resync makes it again with version 2."""
    stream = two_batches(newer, newer.destination())
    before = lower(newer)
    destination = newer.destination()
    with pytest.raises(DestinationChanged) as caught:
        destination.applied(ORDERS.id)
    assert caught.value.code == "format_version_lowered"
    assert "formatVersion: 3" in str(caught.value.hint)
    batch = stream.batch()
    with pytest.raises(DestinationChanged) as caught:
        newer.destination().write_events(batch, newer.mark(batch.until))
    assert caught.value.code == "format_version_lowered"
    lowered = dict(newer.manifest)
    newer.manifest.update(before)
    goes_on(newer, newer.destination(), stream)
    newer.manifest.pop("formatVersion")
    assert newer.manifest == lowered
    resync(newer, newer.destination(), stream)
    assert newer.iceberg().metadata.format_version == 2


def test_a_table_of_an_unknown_version(jdbc: Lake) -> None:
    """A version above those that the engine knows parks the table."""
    jdbc.manifest["formatVersion"] = 3
    destination = jdbc.destination()
    two_batches(jdbc, destination)
    jdbc.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='4')")
    with pytest.raises(DestinationChanged) as caught:
        look(destination)
    assert caught.value.code == "foreign_table_change"


@pytest.mark.sampled
@pytest.mark.parametrize("statement", FOREIGN_DML, ids=["delete", "update", "merge"])
@pytest.mark.parametrize(
    "mode",
    [pytest.param(BY_POSITION, id="by position"), pytest.param("", id="copy on write", marks=pytest.mark.nightly)],
)
def test_changes_by_another_writer(newer: Lake, statement: str, mode: str) -> None:
    """Vectors and files of another writer park the table. Undone, it goes on. Its rows never get into a batch."""
    destination = newer.destination()
    stream = two_batches(newer, destination)
    if mode:
        newer.sql(mode)
    ours = current(newer)
    newer.sql(statement)
    for changed in (destination, newer.destination()):
        with pytest.raises(DestinationChanged) as caught:
            changed.applied(ORDERS.id)
        assert caught.value.code == "foreign_write"
    newer.sql(UNDO.replace("{s}", str(ours)))
    assert destination.applied(ORDERS.id) == newer.mark(stream.taken)
    goes_on(newer, destination, stream)
    check_vectors(newer)
    newer.sql(statement)
    resync(newer, destination, stream)
    check_vectors(newer)


@pytest.mark.nightly
def test_a_file_of_many_vectors_outlives_those_that_were_replaced(newer: Lake) -> None:
    """Neither expiry nor the removal of orphans takes a file in which one vector of many is still live."""
    destination = newer.destination(
        maintenance={"compactEverySeconds": 1, "expireSnapshotsAfterHours": 0},
        files=FileLimits(data_files=1000, deleted_share=10, orphan_age_s=-60),
        retention=CURRENT_SNAPSHOT_ONLY,
    )
    stream = several_files(newer, destination, n=40)

    def maintained() -> None:
        state = destination._known.states[ORDERS.id]
        state.maintained_at = state.files_due_at = -10.0
        look(destination)

    for key in (1, 2, 3, 4):
        stream.delete(id=key)
    apply(newer, destination, stream)
    [shared] = {d.file_path for d in check_vectors(newer)}
    for key in (5, 6, 7):
        stream.delete(id=key)
        apply(newer, destination, stream)
        maintained()
        assert len(newer.iceberg().metadata.snapshots) == 1
        assert Path(shared.removeprefix("file:")).exists()
        assert sorted(items(newer)) == list(range(key + 1, 41))
    assert shared in {d.file_path for d in check_vectors(newer)}
    stream.delete(id=8)
    apply(newer, destination, stream)
    maintained()
    assert not Path(shared.removeprefix("file:")).exists()
    assert sorted(items(newer)) == list(range(9, 41))


@pytest.mark.nightly
def test_compaction_drops_vectors(newer: Lake) -> None:
    """Vectors go with their data files, row IDs stay, and later deletes find the rows in the new files."""
    destination = newer.destination(maintenance={"compactEverySeconds": 1}, files=FileLimits(data_files=3))
    stream = several_files(newer, destination)
    for key in (1, 2, 3):
        stream.delete(id=key)
        apply(newer, destination, stream)
    before = check_lineage(newer)
    destination._known.states[ORDERS.id].maintained_at = -10.0
    look(destination)
    assert check_vectors(newer) == []
    assert check_lineage(newer) == before
    stream.delete(id=4)
    stream.update(id=12, item="L", note=None, unchanged=[3])
    apply(newer, destination, stream)
    assert len(check_vectors(newer)) == 1
    assert items(newer) == {i: f"item {i}" for i in range(5, 12)} | {12: "L"}
    check_lineage(newer)
    stream.truncate()
    stream.insert(id=1, item="again", note=None)
    apply(newer, destination, stream)
    assert check_vectors(newer) == []
    assert items(newer) == {1: "again"}


@pytest.mark.nightly
def test_a_lost_answer_and_a_replay(newer: Lake) -> None:
    """A commit without an answer counts once, whether it happened or not. A replayed batch changes nothing."""
    destination = newer.destination()
    stream = several_files(newer, destination, n=20)
    batches: list[StagedBatch] = []
    for key, happens in ((1, True), (2, False), (5, True), (6, False)):
        stream.delete(id=key)
        stream.update(id=key + 2, item=f"after {key}", note=None)
        batch = stream.batch()
        batches.append(batch)
        with lost_answers(destination, happens=happens):
            if happens:
                destination.write_events(batch, newer.mark(batch.until))
            else:
                with pytest.raises(CommitUnknown):
                    destination.write_events(batch, newer.mark(batch.until))
        destination.write_events(batch, newer.mark(batch.until))
        check_vectors(newer)
    before = newer.rows()
    snapshot = current(newer)
    for batch in batches:
        newer.destination().write_events(batch, newer.mark(batch.until))
    assert current(newer) == snapshot
    assert newer.rows() == before


@pytest.mark.nightly
def test_a_commit_that_loses_a_race_leaves_no_file(newer: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction between the look-up and the commit of a batch is noticed, and the vectors are written again."""
    destination = newer.destination()
    stream = several_files(newer, destination)
    stream.delete(id=1)
    apply(newer, destination, stream)
    write, times = IcebergTable.write, []

    def late(self: IcebergTable, *args: Any, **kwargs: Any) -> int:
        times.append(1)
        if len(times) == 1:
            newer.sql(COMPACT)
        return write(self, *args, **kwargs)

    monkeypatch.setattr(IcebergTable, "write", late)
    stream.delete(id=2)
    apply(newer, destination, stream)
    assert len(times) == 2
    assert sorted(items(newer)) == list(range(3, 13))
    check_vectors(newer)
    folder = Path(newer.manifest["catalog"]["warehouse"]) / "shop_public" / "orders" / "data"
    referenced = {d.file_path.removeprefix("file:") for d in newer.sql(DELETES)}
    referenced |= {r.file_path.removeprefix("file:") for r in newer.sql("SELECT file_path FROM {t}.all_delete_files")}
    assert {str(f) for f in folder.rglob("*.puffin")} == referenced


@pytest.mark.nightly
def test_an_upgrade_between_the_files_and_the_commit(hadoop: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Position deletes never get into a table that another tool upgraded in the meantime."""
    destination = hadoop.destination()
    stream = several_files(hadoop, destination)
    hadoop.manifest["formatVersion"] = 3
    write = IcebergTable.write
    done: list[int] = []

    def late(self: IcebergTable, *args: Any, **kwargs: Any) -> int:
        if not done:
            done.append(1)
            hadoop.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')")
        return write(self, *args, **kwargs)

    monkeypatch.setattr(IcebergTable, "write", late)
    stream.delete(id=1)
    batch = stream.batch()
    with pytest.raises(DestinationChanged) as caught:
        destination.write_events(batch, hadoop.mark(batch.until))
    assert caught.value.code == "format_version_lowered"
    destination = hadoop.destination()
    destination.write_events(batch, hadoop.mark(batch.until))
    assert sorted(items(hadoop)) == list(range(2, 13))
    check_vectors(hadoop)


@pytest.mark.nightly
def test_a_shadow_copy_has_vectors(newer: Lake) -> None:
    """Several batches on a shadow copy merge into one vector for each file, and leave no other file behind."""
    destination = newer.destination()
    stream = several_files(newer, destination)
    copied = [{"id": i, "item": f"copied {i}", "note": "y"} for i in range(1, 13)]
    rows = MemoryRows(ORDERS, copied[::2], copied[1::2])
    assert destination.copy_replacement(TableTarget.of(ORDERS), rows, newer.mark(stream.lsn + 1))
    for key in (1, 2, 3, 4):
        stream.delete(id=key)
        stream.update(id=key + 4, item=f"after {key}", note=None)
        batch = stream.batch()
        destination.write_events(batch, newer.mark(batch.until))
        assert destination.write_replacement_events(batch, newer.mark(batch.until))
    assert destination.swap_replacement(ORDERS.id, newer.mark(stream.taken))
    wanted = {k + 4: f"after {k}" for k in range(1, 5)} | {i: f"copied {i}" for i in range(9, 13)}
    assert items(newer) == wanted
    found = check_vectors(newer)
    assert len(found) == 2
    shadow = Path(found[0].file_path.removeprefix("file:")).parent
    assert {str(f) for f in shadow.glob("*.puffin")} == {d.file_path.removeprefix("file:") for d in found}
    check_lineage(newer)
    stream.delete(id=12)
    apply(newer, destination, stream)
    assert items(newer) == wanted_without(wanted, 12)


def test_a_vector_that_vanished_is_not_committed(newer: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of vectors that another tool removed before the commit is written again."""
    destination = newer.destination()
    stream = several_files(newer, destination)
    write, times = IcebergTable.write, []

    def late(self: IcebergTable, files: Any, deletes: Any, **kwargs: Any) -> int:
        times.append(1)
        if len(times) == 1:
            self.storage().delete(deletes.vectors[0].path)
        return write(self, files, deletes, **kwargs)

    monkeypatch.setattr(IcebergTable, "write", late)
    stream.delete(id=1)
    apply(newer, destination, stream)
    assert len(times) == 2
    assert sorted(items(newer)) == list(range(2, 13))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_random_batches_and_versions(hadoop: Lake, seed: int) -> None:
    """Random changes with restarts, compaction, an upgrade and small reads between leave what a simulation has."""
    rng = random.Random(seed)
    destination = hadoop.destination()
    stream = several_files(hadoop, destination, n=60, files=5)
    model = {i: f"item {i}" for i in range(1, 61)}
    for turn in range(12):
        if turn == 3:
            hadoop.manifest["formatVersion"] = 3
        if turn == 3 or rng.random() < 0.3:
            destination = hadoop.destination(
                maintenance={"compactEverySeconds": 1}, work=rng.choice(["", "other"]), files=FileLimits(data_files=6)
            )
        for _ in range(rng.choice([1, 8, 30])):
            key = rng.randrange(1, 80)
            if key not in model:
                stream.insert(id=key, item=f"{turn}", note=None)
                model[key] = f"{turn}"
            elif rng.random() < 0.5:
                stream.delete(id=key)
                del model[key]
            else:
                stream.update(id=key, item=f"{turn} {key}", note=None, unchanged=rng.choice([[], [3]]))
                model[key] = f"{turn} {key}"
        apply(hadoop, destination, stream)
        if rng.random() < 0.3:
            destination._known.states[ORDERS.id].maintained_at = -10.0
            with ThreadPoolExecutor(1) as pool:
                pool.submit(destination.maintain, ORDERS.id).result()
        assert {r["id"]: r["item"] for r in hadoop.by_pyiceberg().to_pylist()} == model
        if turn >= 3:
            check_vectors(hadoop)
    assert items(hadoop) == model
    check_lineage(hadoop)
