"""Staged data is read as it was written, or reported as damaged."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.segments.changes import batch, changes, column, insert, table, update

from levada.errors import NeedsOperator
from levada.pgoutput.changes import RelationChange, Truncate
from levada.schema import Kind, TableTarget
from levada.schema.changes import UNCHANGED
from levada.segments import Manifest, SegmentLog, SegmentWriter, StagedBatch, Staging, TableStart
from levada.segments.checksums import BLOCK, ChecksumReader, ChecksumWriter, DamageError, VersionError, seal, unseal
from levada.segments.limits import FileLimits
from levada.segments.manifest import MANIFEST_VERSION, PARTLY_VERSION
from levada.values import Lsn, OnUnrepresentable, QualifiedTable, TableId

NAMES = (QualifiedTable("public", "t"),)

FLIPS = 300
TABLE = table(1, column(1, "id", Kind.INT8), column(2, "note"), column(3, "size", Kind.FLOAT8))
OTHER = table(0, *TABLE.columns)


def write(folder: Path, *, segments: int = 1, parquet: bool = True, limits: FileLimits | None = None) -> SegmentLog:
    """Stage segments of 200 changes each, with a schema change and a truncate.

    The changes are in Parquet files, or else in pieces behind those of another table.
    """
    log = SegmentLog(replace(Staging.open(str(folder)), limits=limits or FileLimits()), "shop")
    for n in range(segments):
        at = 1000 * n
        rows = [insert(at + 8 + i, 0, id=i, note=f"row {i % 7}", size=i / 3) for i in range(200)]
        rows.append({**update(at + 300, 0, {"id": 4}, id=5, size=1.5), UNCHANGED: [2]})
        truncate = Truncate(
            Lsn(at + 2),
            0,
            (TableId(1),),
            cascade=True,
            restart_identity=False,
            commit_ts_us=5,
            xid=9,
            names=NAMES,
        )
        groups = 1000 if parquet else FileLimits().row_group_bytes
        writer = SegmentWriter(log.staging, "shop", 1, Lsn(at), ledger=log.ledger, row_group_bytes=groups)
        if not parquet:
            writer.add(batch(changes(OTHER, [insert(at + 1, 0, id=1, note="x", size=1.0)]), transactions=0))
        writer.add(batch(truncate, RelationChange(Lsn(at + 3), 0, TABLE), changes(TABLE, rows), end=at + 400))
        writer.commit(Lsn(at + 400))
    return log


def read(log: SegmentLog, manifests: Sequence[Manifest]) -> tuple[Any, ...]:
    """Everything that apply reads of the manifests."""
    until = Lsn(1 << 40)
    staged = StagedBatch(
        log.staging, manifests, [TableStart(TableTarget.of(TABLE), Lsn(0))], until, OnUnrepresentable.NULL
    )
    mine = staged.changes(TABLE.id)
    return tuple(manifests), tuple(mine.truncates), mine.versions, [r for b in mine.scan() for r in b.to_pylist()]


@pytest.mark.parametrize(
    ("limits", "parquet"), [(FileLimits(whole_bytes=0), True), (FileLimits(), True), (FileLimits(), False)]
)
def test_every_flipped_bit_of_a_data_file_is_noticed(tmp_path: Path, limits: FileLimits, parquet: bool) -> None:
    """One wrong bit in the file, wherever it is, is reported with the table and the way out, and never read.

    So it is where a file is too large to be read as a whole, and in a table's piece of a shared file.
    """
    log = write(tmp_path, parquet=parquet, limits=limits)
    (manifest,) = log.list()
    file = manifest.files[-1]
    assert (file.offset is None) == parquet
    path = tmp_path / file.path
    whole = path.read_bytes()
    begin = file.offset or 0
    for bit in random.Random(1).sample(range(8 * begin, 8 * (begin + file.bytes)), FLIPS):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(NeedsOperator) as noticed:
            read(log, log.list())
        assert noticed.value.code == "segment_damaged"
        assert noticed.value.hint == "levada resync MANIFEST public.t1"


def test_every_flipped_bit_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    """One wrong bit in a manifest, in an LSN, a path or a name, makes it count as lost, and never as another one."""
    log = write(tmp_path)
    (manifest,) = log.list()
    path = tmp_path / "shop" / f"{manifest.name}.json"
    whole = path.read_bytes()
    for bit in random.Random(2).sample(range(8 * len(whole)), FLIPS):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert log.list() == ()
        assert log.end() == 0
    assert log.collect_garbage() == 2


def test_damage_of_a_shared_file_concerns_one_table(tmp_path: Path) -> None:
    """A wrong byte in one table's piece leaves the other tables readable."""
    log = write(tmp_path, parquet=False)
    (manifest,) = log.list()
    other, _ = manifest.files
    path = tmp_path / other.path
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert len(read(log, [manifest])[-1]) == 201
    staged = StagedBatch(log.staging, [manifest], [TableStart(TableTarget.of(OTHER), Lsn(0))], Lsn(1 << 40))
    with pytest.raises(NeedsOperator) as noticed:
        staged.changes(OTHER.id).read()
    assert (noticed.value.code, noticed.value.hint) == ("segment_damaged", "levada resync MANIFEST public.t0")


@pytest.mark.parametrize("parquet", [True, False])
@pytest.mark.parametrize("change", ["truncated", "longer", "another file"])
def test_a_file_that_was_replaced_is_noticed(tmp_path: Path, change: str, parquet: bool) -> None:
    """A file of another length, or another file of the same table, is not read.

    Bytes after the last piece of a shared file belong to no table, and nothing reads them.
    """
    log = write(tmp_path, segments=2, parquet=parquet)
    one, other = (tmp_path / m.files[-1].path for m in log.list())
    match change:
        case "truncated":
            one.write_bytes(one.read_bytes()[:-1])
        case "longer":
            one.write_bytes(one.read_bytes() + b"\0")
            if not parquet:
                assert len(read(log, log.list())[-1]) == 402
                return
        case _:
            shutil.copy(other, one)
    with pytest.raises(NeedsOperator) as noticed:
        read(log, log.list())
    assert noticed.value.code == "segment_damaged"


@pytest.mark.parametrize("parquet", [True, False])
def test_a_lost_file_asks_for_a_resync(tmp_path: Path, parquet: bool) -> None:
    """A staged file that another hand removed is reported with the table that needs it."""
    log = write(tmp_path, parquet=parquet)
    manifests = log.list()
    (tmp_path / manifests[0].files[0].path).unlink()
    with pytest.raises(NeedsOperator) as noticed:
        read(log, manifests)
    assert noticed.value.code == "staging_file_missing"
    assert noticed.value.hint == "levada resync MANIFEST public.t1"


@pytest.mark.parametrize("name", ["0000000000000000-0000000000000500-00000001.json", None])
def test_a_manifest_from_elsewhere_is_refused(tmp_path: Path, name: str | None) -> None:
    """A manifest under another name, or of another pipeline, is not taken for one of this log."""
    log = write(tmp_path)
    (manifest,) = log.list()
    source = tmp_path / "shop" / f"{manifest.name}.json"
    folder = tmp_path / ("shop" if name else "other")
    folder.mkdir(exist_ok=True)
    shutil.copy(source, folder / (name or source.name))
    with pytest.raises(NeedsOperator) as refused:
        SegmentLog(log.staging, folder.name).list()
    assert refused.value.code == "manifest_foreign"


def test_a_manifest_of_another_release_is_refused(tmp_path: Path) -> None:
    """An intact manifest of another version stops the start: another release can still read it."""
    log = write(tmp_path)
    (manifest,) = log.list()
    path = tmp_path / "shop" / f"{manifest.name}.json"
    path.write_bytes(seal(unseal(path.read_bytes(), MANIFEST_VERSION), PARTLY_VERSION + 1))
    with pytest.raises(NeedsOperator) as refused:
        log.list()
    assert refused.value.code == "manifest_unreadable"


MISSING = object()
WRONG = [
    ("pipeline", 5), ("epoch", "three"), ("end_lsn", "over there"), ("newest", MISSING), ("newest", {"1": 5}),
    ("committed", MISSING), ("files", None), ("files", {"paths": [], "count": 1, "packed": ""}),
    ("versions", [5]), ("last", "over there"), ("truncates", MISSING),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_an_intact_manifest_of_another_form_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    """No field is guessed: one that is missing, or has another type, stops the start with the name of the field."""
    log = write(tmp_path)
    (manifest,) = log.list()
    path = tmp_path / "shop" / f"{manifest.name}.json"
    content = json.loads(unseal(path.read_bytes(), MANIFEST_VERSION)) | {key: value}
    if value is MISSING:
        del content[key]
    path.write_bytes(seal(json.dumps(content).encode(), MANIFEST_VERSION))
    with pytest.raises(NeedsOperator, match=f"not a manifest of this release: {key}") as refused:
        log.list()
    assert refused.value.code == "manifest_unreadable"
    assert "over there" not in refused.value.message


def test_a_sealed_document_is_intact_or_refused() -> None:
    """The seal covers the content, the version and itself."""
    document = seal(b'{"a":1}', 12)
    assert unseal(document, 12) == b'{"a":1}'
    with pytest.raises(VersionError):
        unseal(document, 13)
    for bit in range(8 * len(document)):
        damaged = bytearray(document)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamageError):
            unseal(bytes(damaged), 12)
    for length in range(len(document)):
        with pytest.raises(DamageError):
            unseal(document[:length], 12)


class Bytes:
    """A file in memory, as Arrow's."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> int:
        self.data += data
        return len(data)

    def close(self) -> None:
        pass

    def read_at(self, nbytes: int, offset: int) -> bytes:
        return bytes(self.data[offset : offset + nbytes])

    def size(self) -> int:
        return len(self.data)


def test_blocks_are_verified_wherever_a_read_begins() -> None:
    """A file of several blocks, written in pieces of any size, is read at any place. A wrong byte fails its block."""
    rng = random.Random(3)
    content = rng.randbytes(2 * BLOCK + 12345)
    file = Bytes()
    writer = ChecksumWriter(file)
    at = 0
    while at < len(content):
        at += writer.write(content[at : at + rng.choice([1, 1000, BLOCK - 1, BLOCK, BLOCK + 7])])
    assert (writer.tell(), len(writer.checksums)) == (len(content), 3)
    reader = ChecksumReader(file, len(content), writer.checksums)
    for _ in range(50):
        start = rng.randrange(len(content))
        count = rng.randrange(len(content) - start + 9)
        reader.seek(start)
        assert reader.read(count) == content[start : start + count]
    file.data[BLOCK + 5] ^= 1
    reader = ChecksumReader(file, len(content), writer.checksums)
    assert reader.read(BLOCK) == content[:BLOCK]
    with pytest.raises(DamageError):
        reader.read(1)
    reader.seek(-10, 2)
    assert reader.read() == content[-10:]
