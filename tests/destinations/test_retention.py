"""The snapshots that are kept, and that all of them can still be read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.destinations.foreign_commits import EXPIRE
from tests.destinations.orders import (
    CURRENT_SNAPSHOT_ONLY,
    ORDERS,
    apply,
    copy,
    items,
    the_table,
)
from tests.rigs.lake import Lake

from levada.destinations.iceberg import retention
from levada.destinations.iceberg.lineage import Verdict
from levada.destinations.iceberg.maintenance import MaintenanceSettings, compact, expire
from levada.destinations.iceberg.metadata import LastCommit, Reference, Snapshot, TableFacts, TableMetadata
from levada.destinations.iceberg.retention import (
    RETENTION,
    Retention,
    RetentionLimits,
    is_expiry_due,
    tag_name,
)
from levada.destinations.iceberg.schema import IcebergSchema
from levada.destinations.iceberg.table import IcebergTable
from levada.values import Lsn, Watermark

MARK = Watermark("shop", 1, Lsn(1))
NOW = 1_800_000_000_000
DAY = 24 * 3600 * 1000


def table_of(
    snapshots: Sequence[Snapshot], refs: Mapping[str, Reference], recorded: int | None = None
) -> TableMetadata:
    """Return metadata with these snapshots, the last of which is the current one unless ``refs`` has main."""
    by_id = {s.id: s for s in snapshots}
    main = refs.get("main") or Reference(snapshots[-1].id, branch=True)
    history, found = [], by_id.get(main.snapshot)
    while found is not None:
        history.append(found)
        found = by_id.get(found.parent or -1)
    return TableMetadata(
        uuid="u",
        location="file:/t",
        layout=IcebergSchema((), {}),
        last_field_id=0,
        properties={},
        history=tuple(history),
        snapshots=by_id,
        last_commit=LastCommit(MARK, main.snapshot if recorded is None else recorded, 0),
        schema_id=0,
        schemas={},
        format_version=2,
        specs={0: ()},
        spec_id=0,
        last_partition_id=999,
        order=(),
        order_id=0,
        log=(),
        refs={"main": main, **refs},
    )


def chain(times: Sequence[int]) -> list[Snapshot]:
    """Return snapshots of these times, each the parent of the next."""
    facts = TableFacts(1, 0, 1, 0, 1)
    return [Snapshot(i, "append", t, MARK, facts, i - 1 or None) for i, t in enumerate(sorted(times), 1)]


def after(before: TableMetadata, due: Retention) -> TableMetadata:
    """Return the metadata after these changes."""
    gone = set(due.expired)
    kept = [s for s in before.snapshots.values() if s.id not in gone]
    refs = {n: r for n, r in before.refs.items() if n not in due.untagged}
    refs |= {n: Reference(i, branch=False) for n, i in due.tagged.items()}
    assert before.last_commit is not None
    return table_of(kept, refs, before.last_commit.snapshot_id)


ages = st.one_of(
    st.integers(0, 4 * 3600 * 1000), st.integers(0, 10 * DAY), st.integers(0, 400 * DAY), st.integers(0, 5000 * DAY)
)
tables = st.lists(ages, min_size=1, max_size=150).map(lambda found: chain([NOW - age for age in found]))
limits: st.SearchStrategy[int] = st.sampled_from([0, 3600, 120 * 3600, 90 * 24 * 3600, 87600 * 3600])


@given(tables, limits, st.data())
@settings(deadline=None)
def test_what_is_kept(snapshots: list[Snapshot], limit: int, data: st.DataObject) -> None:
    """Each moment within the limit has a state that is less than an interval older. What is needed always stays."""
    few_newest = RetentionLimits(newest=20)
    ids = st.sampled_from([s.id for s in snapshots])
    refs = {f"t{i}": Reference(id_, branch=data.draw(st.booleans())) for i, id_ in enumerate(data.draw(st.sets(ids)))}
    recorded = data.draw(ids)
    before = table_of(snapshots, refs, recorded)
    due = retention.retention(before, limit, NOW, few_newest)
    left = after(before, due)

    assert {r.snapshot for r in refs.values()} | set(range(recorded, len(snapshots) + 1)) <= set(left.snapshots)
    assert all(r.snapshot in left.snapshots for r in left.refs.values())
    oldest = NOW - limit * 1000 if limit else 0
    times = [s.timestamp_ms for s in snapshots]
    kept = sorted(s.timestamp_ms for s in left.snapshots.values())
    for moment in [*(t for t in times if t >= oldest), NOW, *([oldest] if limit else [])]:
        true = max((t for t in times if t <= moment), default=None)
        if true is not None:
            found = max(t for t in kept if t <= moment)
            assert found == true or true - found < RETENTION.interval(NOW - true + RETENTION.interval(NOW - true))
    # What has no chain of parents to the current snapshot has a tag.
    reached = {s.id for s in left.history}
    tagged = {r.snapshot for r in left.refs.values()}
    branched = {s.id for s in left.snapshots.values()} - reached - tagged
    assert not branched

    again = retention.retention(left, limit, NOW, few_newest)
    assert not again.expired
    assert not again.untagged


@given(st.lists(ages, min_size=1, max_size=2000).map(lambda found: chain([NOW - age for age in found])), limits)
@settings(deadline=None, max_examples=20)
def test_the_number_has_a_bound(snapshots: list[Snapshot], limit: int) -> None:
    """However many snapshots there are, no more are kept than the newest and one of each interval."""
    left = after(before := table_of(snapshots, {}), retention.retention(before, limit, NOW))
    bound, begins = RETENTION.newest + 2, 0
    oldest = (5000 if limit in (0, 87600 * 3600) else 0) * DAY
    for until, width in (*RETENTION.intervals, (oldest, RETENTION.longest)):
        end = min(until, limit * 1000) if limit else until
        bound += max(0, (end - begins) // width + 2)
        begins = until
    assert len(left.snapshots) <= bound


def test_the_figures_of_the_manual() -> None:
    """With a commit every 20 s, 5 days have about 420 snapshots, and ten days without a limit about 470."""
    snapshots = chain(range(NOW - 10 * DAY, NOW, 20_000))
    before = table_of(snapshots, {})
    left = after(before, retention.retention(before, 120 * 3600, NOW))
    assert 410 <= len(left.snapshots) <= 430
    assert 460 <= len(after(before, retention.retention(before, 0, NOW)).snapshots) <= 480


def test_days_of_commits_and_looks() -> None:
    """A look every ten minutes leaves what one look would, and its tags go with the snapshots."""
    begin, limit = NOW - 3 * DAY, 36 * 3600
    all_of_them = chain(range(begin, NOW, 60_000))
    left = table_of(all_of_them[:1], {})
    for moment in range(begin + 600_000, NOW + 1, 600_000):
        grown = [*left.snapshots.values(), *(s for s in all_of_them if moment - 600_000 <= s.timestamp_ms < moment)]
        tags = {n: r for n, r in left.refs.items() if n != "main"}
        before = table_of(sorted({s.id: s for s in grown}.values(), key=lambda s: s.id), tags)
        left = after(before, retention.retention(before, limit, moment))
    whole = table_of(all_of_them, {})
    assert set(left.snapshots) == set(after(whole, retention.retention(whole, limit, NOW)).snapshots)
    assert {n for n in left.refs if n != "main"} == {
        tag_name(s) for s in left.snapshots.values() if s.id <= all_of_them[-RETENTION.newest].id - 1
    }


def test_branches_and_tags_of_others() -> None:
    """Snapshots of a branch stay. Behind a gap, a branch keeps its own ones and not the main branch's."""
    main = chain([NOW - 100 * DAY + i * 60_000 for i in range(1000)])
    facts = TableFacts(1, 0, 1, 0, 1)
    side = [Snapshot(5001, "append", NOW, None, facts, 500), Snapshot(5002, "append", NOW, None, facts, 5001)]
    refs = {
        "main": Reference(1000, branch=True),
        "audit": Reference(5002, branch=True),
        "mine": Reference(300, branch=False),
        tag_name(main[0]): Reference(400, branch=False),
        tag_name(main[1]): Reference(2, branch=True),
    }
    before = table_of([*main, *side], refs)
    left = after(before, retention.retention(before, 3600, NOW))
    assert {5001, 5002, 300, 400, 2} <= set(left.snapshots)
    assert refs.items() <= left.refs.items()
    left = after(left, retention.retention(left, 3600, NOW))
    # The last state before the limit is the current one.
    assert set(left.snapshots) == {5001, 5002, 300, 400, 2, 1000}
    del left.refs["audit"]  # type: ignore[attr-defined]
    left = after(left, retention.retention(left, 3600, NOW + DAY))
    assert set(left.snapshots) == {300, 400, 2, 1000, 5002}


# -- on tables


def read(lake: Lake, version: int | str) -> dict[int, Any]:
    """Return the items of a snapshot, by its ID or tag, as Spark reads them."""
    text = f"'{version}'" if isinstance(version, str) else version
    return {r["id"]: r["item"] for r in lake.sql("SELECT id, item FROM {t} VERSION AS OF " + str(text))}


FEW = RetentionLimits(newest=5, intervals=(), longest=1000)
"""Keep the five newest snapshots, and of older ones the first of a second."""


def now_ms() -> int:
    """Return the time in milliseconds."""
    return int(time.time() * 1000)


@pytest.mark.nightly
def test_kept_snapshots_have_the_rows_of_their_time(hadoop: Lake) -> None:
    """Thinned out between batches, deletes, a truncate and compactions, each kept snapshot has its exact rows."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination, n=30)
    rows = {i: f"item {i}" for i in range(1, 31)}
    states = {the_table(destination).metadata.snapshot_id: dict(rows)}
    for turn in range(30):
        if turn == 22:
            stream.truncate()
            rows = {}
        for i in (turn, turn + 1):
            stream.update(id=i, item=f"turn {turn}", note=None) if i in rows else stream.insert(
                id=i, item=f"turn {turn}", note=None
            )
            rows[i] = f"turn {turn}"
        if turn % 3 == 0 and rows.pop(turn - 5, ""):
            stream.delete(id=turn - 5)
        apply(hadoop, destination, stream)
        table = the_table(destination)
        states[table.metadata.snapshot_id] = dict(rows)
        if turn % 10 == 9:
            compact(table, destination._tables.jvm)
            table.record_current()
            states |= {s.id: dict(rows) for s in table.metadata.history if s.id not in states}
            expire(table, MaintenanceSettings(1, 0, retention=FEW), now_ms())
    metadata = the_table(destination).metadata
    assert len(metadata.snapshots) < len(states) - 10
    assert len(metadata.snapshots) > 7
    for snapshot in metadata.snapshots:
        assert read(hadoop, snapshot) == states[snapshot]
    tags = {name: ref.snapshot for name, ref in metadata.refs.items() if name != "main"}
    assert tags
    for name, snapshot in tags.items():
        assert read(hadoop, name) == states[snapshot]
    assert hadoop.destination().applied(ORDERS.id) == hadoop.mark(stream.taken)
    assert items(hadoop) == rows


def test_files_go_with_the_last_snapshot_that_needs_them(hadoop: Lake) -> None:
    """When the older snapshots and their tags are gone, so are their files."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination, n=30)
    for turn in range(15):
        stream.update(id=1, item=f"turn {turn}", note=None)
        apply(hadoop, destination, stream)
    table = the_table(destination)
    before = _stored(table)
    expire(table, MaintenanceSettings(1, 0, retention=FEW), now_ms())
    assert any(name.startswith("levada-") for name in table.metadata.refs)
    compact(table, destination._tables.jvm)
    table.record_current()
    expire(table, MaintenanceSettings(1, 1, retention=replace(FEW, newest=1)), now_ms() + 2 * 3600 * 1000)
    assert list(table.metadata.refs) == ["main"]
    assert len(table.metadata.snapshots) == 1
    left = _stored(table)
    assert left == {path.rsplit("/")[-1] for path in table.paths_in_use()}
    assert len(left) < len(before)


def _stored(table: IcebergTable) -> set[str]:
    listed = table.java.io().listPrefix(table.own_folder).iterator()
    found = set()
    while listed.hasNext():
        found.add(listed.next().location().rsplit("/")[-1])
    return found


@pytest.mark.nightly
def test_another_tool_expires_snapshots(hadoop: Lake) -> None:
    """It leaves what has a tag, its commits and tags are no foreign write, and Levada goes on."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination, n=3)
    rows = {i: f"item {i}" for i in range(1, 4)}
    states = {the_table(destination).metadata.snapshot_id: dict(rows)}
    for turn in range(12):
        stream.update(id=1, item=f"turn {turn}", note=None)
        rows[1] = f"turn {turn}"
        apply(hadoop, destination, stream)
        states[the_table(destination).metadata.snapshot_id] = dict(rows)
    expire(the_table(destination), MaintenanceSettings(1, 0, retention=FEW), now_ms())
    hadoop.sql("ALTER TABLE {t} CREATE TAG mine")
    hadoop.sql(EXPIRE)
    metadata = the_table(destination).metadata
    assert set(metadata.snapshots) == {ref.snapshot for ref in metadata.refs.values()}
    assert len(metadata.snapshots) > 1
    for snapshot in metadata.snapshots:
        assert read(hadoop, snapshot) == states[snapshot]
    restarted = hadoop.destination()
    assert restarted.applied(ORDERS.id) == hadoop.mark(stream.taken)
    stream.update(id=1, item="later", note=None)
    apply(hadoop, restarted, stream)
    table = the_table(restarted)
    expire(table, MaintenanceSettings(1, 0, retention=FEW), now_ms())
    assert table.check_intact().verdict is Verdict.INTACT
    assert "mine" in table.metadata.refs


def test_the_chain_since_the_last_commit_stays(hadoop: Lake) -> None:
    """Snapshots of another tool since Levada's last commit are not expired, so that a foreign write is noticed."""
    destination = hadoop.destination()
    copy(hadoop, destination, n=3)
    for i in range(4):
        hadoop.sql("INSERT INTO {t} VALUES (" + str(100 + i) + ", 'foreign', NULL)")
    table = the_table(destination)
    expire(table, MaintenanceSettings(1, 0, retention=CURRENT_SNAPSHOT_ONLY), now_ms())
    assert len(table.metadata.snapshots) == 5


def test_a_tag_that_another_tool_sets_in_between(hadoop: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that got a tag after the decision stays, and the table goes on."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination, n=3)
    for turn in range(12):
        stream.update(id=1, item=f"turn {turn}", note=None)
        apply(hadoop, destination, stream)
    table = the_table(destination)
    due = retention.retention(table.metadata, 0, now_ms(), FEW)
    table.set_tags(due.tagged, due.untagged)
    hadoop.sql("ALTER TABLE {t} CREATE TAG late AS OF VERSION " + str(due.expired[0]))
    monkeypatch.setattr("levada.destinations.iceberg.maintenance.retention", lambda *_: Retention(due.expired))
    expire(table, MaintenanceSettings(1, 0, retention=FEW), now_ms())
    assert "late" in table.metadata.refs
    monkeypatch.undo()
    expire(table, MaintenanceSettings(1, 0, retention=FEW), now_ms())
    assert due.expired[0] in table.metadata.snapshots
    assert due.expired[1] not in table.metadata.snapshots


def test_files_that_others_may_need_stay(hadoop: Lake) -> None:
    """With gc.enabled=false no snapshot expires, and no error comes of it."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination, n=3)
    for turn in range(8):
        stream.update(id=1, item=f"turn {turn}", note=None)
        apply(hadoop, destination, stream)
    hadoop.sql("ALTER TABLE {t} SET TBLPROPERTIES ('gc.enabled' = 'false')")
    table = the_table(destination)
    expire(table, MaintenanceSettings(1, 1, retention=FEW), now_ms() + 10 * DAY)
    assert len(table.metadata.snapshots) == 9


@pytest.mark.parametrize(
    ("commits", "newest_age", "limit_h", "due"),
    [
        (RETENTION.newest + 40, 0, 120, False),
        (RETENTION.newest + 120, 0, 120, True),
        (3, 2 * 3600 * 1000 - 5000, 1, False),
        (3, 2 * 3600 * 1000 + 5000, 1, True),
        (3, 10 * DAY, 0, False),
    ],
)
def test_snapshots_expire_many_at_once(commits: int, newest_age: int, limit_h: int, due: bool) -> None:
    """Expiry reads the manifests of all that is kept. So it waits until many are due, or one is late by an hour."""
    newest = NOW - newest_age
    times = [newest - 1000 * i for i in reversed(range(commits))]
    snapshots = [
        Snapshot(i, "append", at, MARK, TableFacts(1, 0, 1, 0, 1), i - 1 or None) for i, at in enumerate(times, 1)
    ]
    assert is_expiry_due(table_of(snapshots, {}), limit_h * 3600, NOW) is due
