"""Files of transactions in progress that are folded before the COMMIT: the tables are those of batches without it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.orders import ORDERS
from tests.destinations.random_source import RandomSource
from tests.rigs.lake import Lake
from tests.rigs.waiting import until
from tests.servers.ducklake import DuckLake

from levada.apply.metadata import stored_form
from levada.apply.moves import MoveBatch, MovePlan
from levada.copy.batch_processes import BatchProcesses
from levada.copy.process_tasks import ProcessTasks
from levada.destinations.data_files import folded_ahead
from levada.destinations.data_files.file_destination import FileDestination
from levada.destinations.data_files.folded_ahead import FoldedAhead
from levada.destinations.iceberg.settings import TableSettings
from levada.errors import Transient
from levada.schema import Kind, TableTarget
from levada.segments import StagedBatch
from levada.segments.batch import EventBatch
from levada.segments.files import SegmentFile, SegmentFiles
from levada.segments.manifest import Manifest
from levada.segments.writer import UNKNOWN_COMMIT
from levada.testing import column
from levada.values import Deletes, Watermark


@dataclass
class Place:
    """A destination whose batches have tasks, and what its lake has."""

    destination: FileDestination[Any]
    mark: Callable[[int], Watermark]
    rows: Callable[[], list[dict[str, Any]]]
    folder: Path
    settings: TableSettings | None = None

    def data_files(self) -> set[str]:
        """The names of the data files in the lake's folder, without those of deletes."""
        return {p.name for p in self.folder.rglob("*.parquet") if "delete" not in p.name}

    def write(self, stream: Stream, form: Callable[[StagedBatch], EventBatch] = lambda staged: staged) -> int:
        """Apply what the source has changed. Return the number of ranges that other processes have folded."""
        batch = form(stream.batch())
        self.destination.write_events(batch, self.mark(batch.until))
        return batch.changes(stream.schema.id).tasks


class Workers(BatchProcesses):
    """Worker processes that no batch uses by itself."""

    def places(self, changes: int, tasks: float) -> int:
        """Return 0."""
        return 0


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Worker processes for the tests of this file."""
    modules = ["levada.destinations.ducklake.destination", "levada.destinations.iceberg.storage"]
    processes = ProcessTasks([*modules, "levada.destinations.data_files.folded_ahead"])
    yield Workers(processes, 2)
    processes.close()


@pytest.fixture
def ducklake_place(ducklake: DuckLake, workers: Workers) -> Place:
    """DuckLake."""
    destination = ducklake.destination()
    destination.batch_tasks = workers
    return Place(destination, ducklake.mark, ducklake.rows, ducklake.folder)


@pytest.fixture(params=["plain", "partitioned"])
def iceberg_place(request: pytest.FixtureRequest, hadoop: Lake, workers: Workers) -> Place:
    """Iceberg, without and with partitions."""
    destination = hadoop.destination()
    destination.batch_tasks = workers
    settings = {"partitionBy": ["bucket(3, id)"], "sortBy": ["note"]}
    chosen = TableSettings.model_validate(settings) if request.param == "partitioned" else None
    folder = Path(hadoop.manifest["catalog"]["warehouse"])
    return Place(destination, hadoop.mark, lambda: hadoop.by_pyiceberg().to_pylist(), folder, chosen)


def fold_ahead(place: Place, stream: Stream, manifest: Manifest, files: Sequence[SegmentFile] | None = None) -> int:
    """Fold the files of a segment as before its COMMIT. Return their number."""
    chosen = [f for f in manifest.files if f.offset is None] if files is None else files
    for file in chosen:
        early = replace(file, first_lsn=UNKNOWN_COMMIT, last_lsn=UNKNOWN_COMMIT)
        one = Manifest.of_file("p", 1, early, manifest.schema_of(file))
        staged = StagedBatch(stream.source.staging, [one], [stream.start()], one.end_lsn)
        place.destination.fold_ahead(staged.changes(stream.schema.id))
    return len(chosen)


def staged(stream: Stream) -> Manifest:
    """Stage what the source has changed, and return the segment."""
    taken = stream.taken
    stream.source.batch(stream)
    stream.taken = taken
    return stream.source.manifests[-1]


def play(place: Place, seed: int) -> int:
    """Compare a lake with a random source. Some files of each batch are folded before the batch before it is applied.

    Return the number of results that batches have used.
    """
    source = RandomSource(seed)
    source.stream.settings = place.settings
    first = TableTarget.of(source.schema, settings=place.settings)
    place.destination.write_table_rows(first, source.copied(), place.mark(1000))
    used = 0
    for _ in range(4):
        for _ in range(2):
            source.change()
            manifest = staged(source.stream)
            files = [f for f in manifest.files if f.offset is None and source.random.random() < 0.8]
            fold_ahead(place, source.stream, manifest, files)
        used += place.write(source.stream)
        names = sorted(c.name for c in source.schema.columns)
        assert {r["id"]: tuple(f"{n}={r[n]!r}" for n in names) for r in place.rows()} == source.expected()
    return used


@pytest.mark.parametrize("seed", [4, *(pytest.param(s, marks=pytest.mark.nightly) for s in range(10, 40))])
def test_random_batches_into_ducklake(ducklake_place: Place, seed: int) -> None:
    """Moved and exchanged keys, unknown values, truncates and new columns come to the rows of the source."""
    used = play(ducklake_place, seed)
    assert seed != 4 or used > 0


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [4, 5, 6, 7, 8])
def test_random_batches_into_iceberg(iceberg_place: Place, seed: int) -> None:
    """The same in Iceberg."""
    used = play(iceberg_place, seed)
    assert seed != 4 or used > 0


def copied(place: Place) -> Stream:
    """Copy three rows."""
    rows = MemoryRows(ORDERS, [{"id": i, "item": f"item {i}", "note": None} for i in (1, 2, 3)])
    place.destination.write_table_rows(TableTarget.of(ORDERS), rows, place.mark(1000))
    return Stream(ORDERS)


def items(place: Place) -> dict[int, Any]:
    """The rows of the lake."""
    return {r["id"]: r["item"] for r in place.rows()}


def test_a_batch_only_looks_up_what_was_folded(ducklake_place: Place) -> None:
    """Its data files are those of before the COMMIT. Rows that changed in between are deleted."""
    place, stream = ducklake_place, copied(ducklake_place)
    with stream.source.transaction():
        stream.update(id=1, item="one", note=None)
        stream.insert(id=10, item="ten", note=None)
        stream.delete(id=3)
    manifest = staged(stream)
    before = place.data_files()
    assert fold_ahead(place, stream, manifest) == 2
    written = place.data_files() - before
    assert (len(written), items(place)) == (1, {1: "item 1", 2: "item 2", 3: "item 3"})
    assert place.write(stream) == 2
    assert items(place) == {1: "one", 2: "item 2", 10: "ten"}
    assert place.data_files() == before | written


@pytest.mark.parametrize(
    "what", ["copy", "column", "truncate", "age", "another index", "ignored", "moves", "savepoint"]
)
def test_what_changed_meanwhile_makes_it_void(ducklake_place: Place, what: str) -> None:
    """The batch folds the file again, in the form that the table has then, and no file is left over."""
    place, stream = ducklake_place, copied(ducklake_place)
    clock = [0.0]
    place.destination._table_of(stream.target).ahead = FoldedAhead(clock=lambda: clock[-1])
    if what in ("truncate", "savepoint"):
        with stream.source.transaction():
            stream.insert(id=9, item="gone", note=None)
            if what == "truncate":
                stream.truncate()
            stream.insert(id=10, item="ten", note=None)
    else:
        stream.insert(id=10, item="ten", note=None)
    if what == "ignored":
        stream.delete(id=1)
    manifest = staged(stream)
    before = place.data_files()
    fold_ahead(place, stream, manifest)
    (written,) = place.data_files() - before
    expected = {1: "item 1", 2: "item 2", 3: "item 3", 10: "ten"}
    form: Callable[[StagedBatch], EventBatch] = stored_form

    def moving(staged: StagedBatch) -> EventBatch:
        return MoveBatch(staged, MovePlan((), {}, staged.until), place.destination)

    match what:
        case "copy":
            place.destination.drop_table_for_copy(TableTarget.of(ORDERS))
            copied(place)
        case "column":
            stream.alter(replace(stream.schema, columns=(*stream.schema.columns, column(9, "more", Kind.TEXT))))
        case "truncate":
            expected = {10: "ten"}
        case "age":
            clock.append(3601.0)
        case "ignored":
            stream.deletes, form = Deletes.IGNORE, stored_form
        case "moves":
            form = moving
        case "savepoint":
            files = [replace(f, rolled_back=((0, 1),)) for f in manifest.files]
            stream.source.manifests[-1] = replace(manifest, files=SegmentFiles.of(files))
        case "another index":
            place.destination._table_of(stream.target).index.forget()
    assert place.write(stream, form) == 0
    assert items(place) == expected
    assert written not in place.data_files()


def test_the_results_of_all_tables_are_bounded(ducklake_place: Place) -> None:
    """Once they take the memory for them, a file is left to its batch."""
    place, stream = ducklake_place, copied(ducklake_place)
    for number, most in ((10, 1 << 20), (11, 1)):
        place.destination.most_bytes_ahead = most
        stream.insert(id=number, item="new", note=None)
        fold_ahead(place, stream, staged(stream))
    assert place.write(stream) == 1
    assert items(place).keys() == {1, 2, 3, 10, 11}


@pytest.mark.parametrize("how", ["rolled back", "shutdown"])
def test_what_no_batch_uses_is_removed(ducklake_place: Place, how: str) -> None:
    """A transaction that is rolled back leaves no data file, and neither does the end of the engine."""
    place, stream = ducklake_place, copied(ducklake_place)
    stream.insert(id=10, item="ten", note=None)
    before, manifest = place.data_files(), staged(stream)
    fold_ahead(place, stream, manifest)
    assert len(place.data_files()) == len(before) + 1
    if how == "shutdown":
        place.destination.shutdown()
    else:
        place.destination.forget_ahead(ORDERS.id, manifest.files.paths)
    assert place.data_files() == before


def test_a_batch_waits_for_what_is_being_folded(ducklake_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses the result. If that fails, it folds the file itself."""
    place, stream = ducklake_place, copied(ducklake_place)
    run, going, go = folded_ahead.run_tasks, threading.Event(), threading.Event()
    fails = False

    def slowly(*args: Any, **more: Any) -> Any:
        going.set()
        assert go.wait(60)
        if fails:
            raise Transient("worker_failed", "on purpose")
        return run(*args, **more)

    monkeypatch.setattr(folded_ahead, "run_tasks", slowly)
    for number in (10, 11):
        going.clear()
        go.clear()
        stream.insert(id=number, item="new", note=None)
        taken = stream.taken
        manifest = staged(stream)
        errors: list[Exception] = []

        def ahead(manifest: Manifest = manifest, errors: list[Exception] = errors) -> None:
            try:
                fold_ahead(place, stream, manifest)
            except Transient as error:
                errors.append(error)

        folding = threading.Thread(target=ahead)
        folding.start()
        assert going.wait(60)
        used: list[int] = []
        writing = threading.Thread(target=lambda used=used: used.append(place.write(stream)))
        writing.start()
        until(lambda taken=taken: stream.taken > taken)
        go.set()
        folding.join()
        writing.join()
        assert (used, len(errors)) == ([0], 1) if fails else ([1], 0)
        assert items(place)[number] == "new"
        fails = True
    assert place.destination.applied(ORDERS.id) == place.mark(stream.taken)
