"""Written changes are read back, and none of them is visible before its manifest."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.segments.changes import batch, changes, column, delete, insert, table, update

from levada.errors import NeedsOperator, Transient
from levada.pgoutput.changes import ChangeBatch, RelationChange, Truncate
from levada.private import sync
from levada.schema import Kind, ReplicatedTableSchema, TableTarget
from levada.schema.changes import COMMIT_LSN, ORDINAL, UNCHANGED, UNREPRESENTABLE
from levada.segments import SegmentLog, SegmentWriter, StagedBatch, Staging, TableStart
from levada.segments.files import SegmentFiles
from levada.segments.limits import FileLimits
from levada.segments.projection import layout
from levada.segments.writer import CommittedAs
from levada.values import Lsn, OnUnrepresentable, QualifiedTable, TableId

NAMES = (QualifiedTable("public", "t"),)

TABLES = [
    table(1),
    table(2, column(1, "id", Kind.INT8), column(2, "amount", Kind.INT4), column(5, "tag")),
]


@st.composite
def rows_of(draw: st.DrawFn, schema: ReplicatedTableSchema, lsn: int, first: int) -> list[dict[str, Any]]:
    """A few changes of one transaction, with any of the optional columns."""
    values = {Kind.INT8: st.integers(-(2**63), 2**63 - 1), Kind.INT4: st.integers(-(2**31), 2**31 - 1)}
    row: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
        {c.name: st.none() | values.get(c.type.kind, st.text(max_size=5)) for c in schema.columns}
    )
    out = []
    for ordinal in range(first, first + draw(st.integers(1, 4))):
        new, old = draw(row), draw(row)
        made = draw(
            st.sampled_from(
                [
                    insert(lsn, ordinal, **new),
                    update(lsn, ordinal, **new),
                    update(lsn, ordinal, old, "O", **new),
                    delete(lsn, ordinal, "O", **new),
                    {**update(lsn, ordinal, **new), UNCHANGED: [schema.columns[-1].attnum]},
                    {**insert(lsn, ordinal, **new), UNREPRESENTABLE: [(schema.columns[-1].attnum, "infinity")]},
                ]
            )
        )
        out.append(made)
    return out


@st.composite
def streams(draw: st.DrawFn) -> list[ChangeBatch]:
    """Transactions of one or two tables, one slice each, some of them over several slices."""
    out = []
    lsn = 100
    for _ in range(draw(st.integers(1, 6))):
        lsn += draw(st.integers(1, 50)) * 8
        items = []
        ordinal = 0
        for schema in draw(st.lists(st.sampled_from(TABLES), min_size=1, max_size=3)):
            rows = draw(rows_of(schema, lsn, ordinal))
            ordinal += len(rows)
            items.append(changes(schema, rows))
        if draw(st.booleans()):
            out.append(batch(*items, end=lsn + 8))
        else:
            out += [batch(i, transactions=0) for i in items[:-1]]
            out.append(batch(items[-1], end=lsn + 8))
    return out


def expected(stream: list[ChangeBatch], schema: ReplicatedTableSchema) -> list[dict[str, Any]]:
    """The rows of one table in a stream, in the layout that is read."""
    empty = dict.fromkeys(layout(schema).names)
    return [
        {**empty, **row}
        for b in stream
        for item in b.items
        if item.schema.id == schema.id  # type: ignore[union-attr]  # rows alone are in these streams
        for row in item.rows.to_pylist()  # type: ignore[union-attr]  # as above
    ]


def read(staging: Staging, log: SegmentLog, schema: ReplicatedTableSchema, after: int = 0) -> list[dict[str, Any]]:
    """The rows of one table in the log."""
    staged = StagedBatch(
        staging, log.list(), [TableStart(TableTarget.of(schema), Lsn(after))], Lsn(2**60), OnUnrepresentable.NULL
    )
    return [row for rows in staged.changes(schema.id).scan() for row in rows.to_pylist()]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stream=streams(), group=st.sampled_from([1, 400, 1 << 20]), after=st.integers(0, 2000))
def test_what_is_written_is_read_back(tmp_path_factory: Any, stream: list[ChangeBatch], group: int, after: int) -> None:
    """Whatever the slices, the layouts and the size of row groups: the same rows, in the same order, in the range."""
    staging = Staging.open(str(tmp_path_factory.mktemp("staging")), durable=False)
    log = SegmentLog(staging, "shop")
    writer = SegmentWriter(staging, "shop", 1, Lsn(0), row_group_bytes=group, max_buffered_bytes=2 * group)
    for b in stream:
        writer.add(b)
        assert writer.buffered_bytes <= 2 * group
    end = stream[-1].end_lsn
    assert end is not None
    manifest = writer.commit(end)
    assert manifest.total_rows == sum(b.rows for b in stream)
    assert manifest.transactions == sum(b.transactions for b in stream)
    assert log.list() == (manifest,)
    for schema in TABLES:
        want = [r for r in expected(stream, schema) if r[COMMIT_LSN] >= after]
        assert read(staging, log, schema, after) == want


class CrashingStaging(Staging):
    """Ends everything at the n-th operation that changes the file system."""

    left: int

    def count(self) -> None:
        """Count one operation."""
        object.__setattr__(self, "left", self.left - 1)
        if self.left < 0:
            raise Transient("crash", "here")

    def output(self, path: str) -> Any:
        self.count()
        return super().output(path)

    def _sync(self, path: str) -> None:
        self.count()
        super()._sync(path)

    def remove(self, path: str) -> None:
        self.count()
        super().remove(path)


@pytest.mark.parametrize("files", [2, 1])
@pytest.mark.parametrize("operations", range(10))
def test_a_crash_leaves_no_half_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operations: int, files: int
) -> None:
    """Ended between any two operations on files, a segment is there whole or not at all, and garbage goes at start."""
    whole = Staging.open(str(tmp_path))
    staging = CrashingStaging(whole.uri, True)
    object.__setattr__(staging, "left", operations)

    def counted(path: Path | str) -> None:
        staging.count()
        sync(path)

    # The manifest is replaced by a function that does not know the staging area.
    monkeypatch.setattr("levada.private.sync", counted)
    log = SegmentLog(staging, "shop")
    with suppress(Transient):
        writer = SegmentWriter(staging, "shop", 1, Lsn(0), row_group_bytes=1 if files == 2 else 1 << 20)
        for n in range(2):
            writer.add(batch(*(changes(t, [insert(8 + n, 0, id=1)]) for t in TABLES), end=16 + n))
        log.remove(writer.commit(Lsn(17)))
    after = SegmentLog(whole, "shop")
    for m in after.list():
        assert all((tmp_path / path).exists() for path in m.paths)
        assert [len(read(whole, after, t)) for t in TABLES] == [2, 2]
    # Each file is opened and synced, then the manifest, which is there from its rename on and is then removed.
    assert bool(after.list()) == (operations in (2 * files + 1, 2 * files + 2))
    after.collect_garbage()
    left = {p.name for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {n for m in after.list() for n in (f"{m.name}.json", *(p.split("/")[1] for p in m.paths))}


def test_an_aborted_segment_leaves_nothing(tmp_path: Path) -> None:
    """Abort removes what was written, row groups of an unfinished transaction among them."""
    staging = Staging.open(str(tmp_path))
    writer = SegmentWriter(staging, "shop", 1, Lsn(0), row_group_bytes=1)
    writer.add(batch(changes(TABLES[0], [insert(8, 0, id=1)]), transactions=0))
    assert list(tmp_path.rglob("*.parquet"))
    writer.abort()
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_what_is_not_a_row_is_in_the_manifest(tmp_path: Path) -> None:
    """Schema versions and truncates are kept in order, also where no row changed."""
    staging = Staging.open(str(tmp_path))
    log = SegmentLog(staging, "shop")
    newer = table(1, *TABLES[0].columns, column(3, "more"), at=80)
    truncate = Truncate(
        Lsn(88),
        0,
        (TableId(1),),
        cascade=False,
        restart_identity=True,
        commit_ts_us=5,
        xid=9,
        names=NAMES,
    )
    writer = log.writer(3, Lsn(40))
    assert writer.empty
    writer.add(batch(RelationChange(Lsn(80), 0, newer), truncate, end=96))
    assert not writer.empty
    manifest = writer.commit(Lsn(96))
    assert log.list() == (manifest,)
    assert (manifest.relations[0].schema, manifest.truncates) == (newer, (truncate,))
    assert (manifest.epoch, manifest.start_lsn, manifest.first_commit_ts_us) == (3, Lsn(40), 5)


def test_overlapping_segments_are_refused(tmp_path: Path) -> None:
    """Two segments over the same WAL mean two drivers: neither is read."""
    log = SegmentLog(Staging.open(str(tmp_path)), "shop")
    for epoch, start in ((1, 0), (2, 8)):
        writer = log.writer(epoch, Lsn(start))
        writer.add(batch(changes(TABLES[0], [insert(10, 0, id=1)]), end=16))
        writer.commit(Lsn(start + 16))
    with pytest.raises(NeedsOperator) as refused:
        log.list()
    assert refused.value.code == "segments_overlap"
    with pytest.raises(NeedsOperator):
        log.collect_garbage()


def test_small_tables_share_a_file(tmp_path: Path) -> None:
    """Many small tables and a large one are two files and a manifest, and each table reads its own rows alone."""
    staging = Staging.open(str(tmp_path))
    log = SegmentLog(staging, "shop")
    small, large = [table(n) for n in range(2, 60)], table(1)
    writer = SegmentWriter(staging, "shop", 1, Lsn(0), row_group_bytes=20_000)
    for n in range(2):
        at = 8 + 8 * n
        for t in [*reversed(small), large]:
            rows = [insert(at, i, id=i, note=f"{t.name} {i}") for i in range(200 if t is large else t.id % 4 + 1)]
            writer.add(batch(changes(t, rows), end=at + 8))
    manifest = writer.commit(Lsn(24))
    assert log.list() == (manifest,)
    assert len(manifest.paths) == 2
    assert len(list((tmp_path / "shop").iterdir())) == 3
    assert manifest.total_bytes >= sum((tmp_path / path).stat().st_size for path in manifest.paths)
    assert [len(manifest.files_of(t.id)) for t in [large, *small]] == [1] * 59
    assert manifest.files_of(TableId(60)) == ()
    for t in [large, *small]:
        notes = [r["note"] for r in read(staging, log, t)]
        count = 200 if t is large else t.id % 4 + 1
        assert notes == 2 * [f"{t.name} {i}" for i in range(count)]
        assert len(read(staging, log, t, after=16)) == count
    log.remove(manifest)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_buffered_rows_of_many_tables_are_written_as_pieces(tmp_path: Path) -> None:
    """A segment whose tables exceed the memory together is still one shared file, also if it is aborted."""
    staging = Staging.open(str(tmp_path))
    log = SegmentLog(staging, "shop")
    tables = [table(n) for n in range(1, 40)]
    for end in ("commit", "abort"):
        writer = SegmentWriter(staging, "shop", 1, Lsn(0 if end == "commit" else 800), max_buffered_bytes=4000)
        start = writer.start_lsn
        for n in range(10):
            at = start + 8 + 8 * n
            writer.add(batch(*(changes(t, [insert(at, 0, id=n, note="x" * 40)]) for t in tables), end=at + 8))
            assert writer.buffered_bytes <= 4000
        if end == "commit":
            manifest = writer.commit(Lsn(88))
        else:
            writer.abort()
    assert len(manifest.paths) == 1
    assert max(len(manifest.files_of(t.id)) for t in tables) > 1
    assert {p.name for p in (tmp_path / "shop").iterdir()} == {f"{manifest.name}.json", Path(manifest.paths[0]).name}
    for t in tables:
        assert [r["id"] for r in read(staging, log, t)] == list(range(10))


def test_a_new_version_begins_another_piece(tmp_path: Path) -> None:
    """Rows before and after a change of columns are pieces of their own, each with its version."""
    staging = Staging.open(str(tmp_path))
    log = SegmentLog(staging, "shop")
    newer = table(1, *TABLES[0].columns, column(3, "more"), at=16)
    writer = log.writer(1, Lsn(0))
    writer.add(batch(changes(TABLES[0], [insert(8, 0, id=1, note="a")]), end=16))
    relation = RelationChange(Lsn(16), 0, newer)
    writer.add(batch(relation, changes(newer, [insert(16, 1, id=2, note="b", more="c")]), end=24))
    manifest = writer.commit(Lsn(24))
    assert [manifest.schema_of(f) for f in manifest.files] == [TABLES[0], newer]
    assert len(manifest.paths) == 1
    assert [(r["id"], r["more"]) for r in read(staging, log, TABLES[0])] == [(1, None), (2, "c")]


@pytest.mark.parametrize("path", ["../precious", "other/rows.parquet", "shop/../../precious", "/precious", "shop", ""])
def test_a_manifest_names_no_file_of_others(tmp_path: Path, path: str) -> None:
    """A damaged or forged path outside of the pipeline's folder is neither read nor removed."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    log = SegmentLog(Staging.open(str(tmp_path / "staging")), "shop")
    writer = log.writer(1, Lsn(0))
    writer.add(batch(changes(TABLES[0], [insert(8, 0, id=1)]), end=16))
    manifest = writer.commit(Lsn(16))
    (file,) = manifest.files
    forged = replace(manifest, files=SegmentFiles.of([replace(file, path=path)]))
    (tmp_path / "staging" / "shop" / f"{manifest.name}.json").write_bytes(forged.dumps())
    for act in (log.list, log.collect_garbage):
        with pytest.raises(NeedsOperator) as caught:
            act()
        assert caught.value.code == "manifest_unreadable"
    assert precious.read_text() == "kept"


@pytest.mark.parametrize("uri", ["file://{}", "{}", "memory://levada-{}"])
def test_any_file_system_will_do(tmp_path: Path, uri: str) -> None:
    """Segments are the same on a path, a file URI and a file system of fsspec's."""
    staging = Staging.open(uri.format(tmp_path))
    log = SegmentLog(staging, "shop")
    assert log.list() == ()
    writer = log.writer(1, Lsn(0))
    writer.add(batch(changes(TABLES[0], [insert(8, 0, id=1, note="a b")]), end=16))
    manifest = writer.commit(Lsn(16))
    assert log.list() == (manifest,)
    assert manifest.total_bytes > 0
    assert [r["note"] for r in read(staging, log, TABLES[0])] == ["a b"]
    log.remove(manifest)
    assert log.list() == ()
    assert log.collect_garbage() == 0


def test_an_unknown_file_system_is_told() -> None:
    """A URI that nothing answers to is an error with a code, not a traceback of a library's."""
    with pytest.raises(NeedsOperator) as unknown:
        Staging.open("nosuch://bucket/x")
    assert unknown.value.code == "staging_unusable"


@pytest.mark.parametrize("form", ["file://{}", "file:{}", "file://localhost{}"])
def test_a_file_uri_names_one_folder_of_this_machine(tmp_path: Path, form: str) -> None:
    """Spaces, letters beyond ASCII, # and ? are part of the folder's name, and %25 is a percent sign.

    Such a folder is synced like any other, so the slot may be acknowledged for what is in it.
    """
    folder = tmp_path / "my #1? 100% füld"
    staging = Staging.open(form.format(str(folder).replace("%", "%25")))
    staging.probe()
    assert not folder.exists()
    staging.publish("a", b"a", naming=())
    assert (folder / "a").read_bytes() == b"a"
    assert staging._local


def test_a_file_uri_of_another_host_is_refused() -> None:
    """Two slashes instead of three make the first folder the name of a host. The hint has three."""
    with pytest.raises(NeedsOperator, match="host var") as refused:
        Staging.open("file://var/lake")
    assert (refused.value.code, refused.value.hint) == (
        "staging_unusable",
        "set spec.staging.uri: file:///var/lake",
    )


def test_row_groups_outside_of_the_range_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit LSN's statistics skip row groups, and only the requested columns are read."""
    staging = Staging.open(str(tmp_path))
    writer = SegmentWriter(staging, "shop", 1, Lsn(0), row_group_bytes=1)
    for lsn in range(8, 88, 8):
        writer.add(batch(changes(TABLES[0], [insert(lsn, 0, id=lsn, note="x")]), end=lsn + 8))
    manifest = writer.commit(Lsn(88))
    asked: list[Any] = []
    original = pq.ParquetFile.read_row_group

    def spy(self: Any, i: int, columns: Any = None, **more: Any) -> Any:
        asked.append((i, tuple(columns)))
        return original(self, i, columns=columns, **more)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    staged = StagedBatch(staging, [manifest], [TableStart(TableTarget.of(TABLES[0]), Lsn(24))], Lsn(48))
    got = staged.changes(TableId(1)).read(["id"])
    assert got is not None
    assert got.to_pydict() == {"id": [24, 32, 40]}
    assert asked == [(i, ("id", COMMIT_LSN)) for i in (2, 3, 4)]


def test_complete_files_of_a_transaction_in_progress(tmp_path: Path) -> None:
    """Each is returned once, whichever table begins first. What is rolled back is removed if nothing is left of it."""
    limits = FileLimits(row_group_bytes=64, early_rows=3)
    staging = replace(Staging.open(str(tmp_path), durable=False), limits=limits)
    writer = SegmentWriter(staging, "shop", 1, Lsn(0), name="open-1")
    one, other = TABLES[0], table(3)

    def add(schema: ReplicatedTableSchema, *ordinals: int) -> None:
        rows = [insert(5, n, id=n, note="n" * 40) for n in ordinals]
        writer.add(batch(changes(schema, rows), transactions=0))

    def complete() -> list[tuple[int, tuple[tuple[int, int], ...]]]:
        return [(int(f.table), f.rolled_back) for f, _ in writer.complete_files()]

    add(one, 0)
    add(other, 1, 2, 3)
    assert complete() == [(3, ())]
    add(one, 4, 5)
    add(other, 6, 7, 8)
    assert complete() == [(1, ()), (3, ())]
    add(one, 9, 10, 11)
    assert [f.path for f in writer.roll_back(((6, 12),))] == ["shop/open-1-3-00002.parquet"]
    add(other, 12, 13, 14)
    assert complete() == [(3, ((6, 12),))]
    add(one, 15)
    writer.add(batch(Truncate(Lsn(5), 16, (other.id,), False, False, 0, 1, NAMES), transactions=0))
    writer.roll_back(((6, 12), (16, 17)))
    writer.committed_as(CommittedAs(Lsn(100), 5), Lsn(0))
    manifest = writer.commit(Lsn(108))
    log = SegmentLog(staging, "shop")
    assert log.list() == (manifest,)
    assert manifest.truncates == ()
    rows = {t.id: [(r["id"], r[ORDINAL], r[COMMIT_LSN]) for r in read(staging, log, t)] for t in (one, other)}
    assert rows == {
        one.id: [(0, 0, 100), (4, 4, 100), (5, 5, 100), (15, 9, 100)],
        other.id: [(1, 1, 100), (2, 2, 100), (3, 3, 100), (12, 6, 100), (13, 7, 100), (14, 8, 100)],
    }
    named = {f"shop/{name}" for name in staging.list("shop")} - {f"shop/{manifest.name}.json"}
    assert named == set(manifest.paths)
