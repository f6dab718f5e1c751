"""The index from key to place, against a dictionary."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from levada.destinations.key_index.index import RATIO, IndexLimits, KeyIndex
from levada.destinations.keys import KeyKind, Keys
from levada.segments.checksums import DamageError, seal, unseal

DOMAIN = 40


def make_keys(kind: KeyKind, numbers: Iterable[int]) -> Keys:
    """Return keys for small numbers. Four hashes each share the high half."""
    values = np.fromiter(numbers, np.int64)
    if kind is KeyKind.INTEGER:
        return Keys(kind, values - 10)
    return Keys(kind, (values // 4).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15), (values % 4).astype(np.uint64))


def places(index: KeyIndex, kind: KeyKind, *, forget: Iterable[int] = ()) -> dict[int, tuple[str, int]]:
    """Return the location of every number of the domain, or of those in ``forget`` if there are any."""
    asked = list(forget)
    numbers = asked or list(range(DOMAIN))
    found = index.lookup(make_keys(kind, numbers), forget=bool(asked))
    return {
        n: (index.file_path(int(found.file_id[i])), int(found.position[i]))
        for i, n in enumerate(numbers)
        if found.found[i]
    }


@dataclass
class Model:
    """The expected content of an index."""

    snapshot: int | None = None
    places: dict[int, tuple[str, int]] = field(default_factory=dict)

    def copy(self) -> Model:
        return Model(self.snapshot, dict(self.places))


SMALL = IndexLimits(block_rows=4, in_memory_rows=16, obsolete_lines=3, durable_rows=8)
"""Few rows do what otherwise takes millions."""
numbers = st.lists(st.integers(0, DOMAIN - 1), unique=True, max_size=12)


class IndexMachine(RuleBasedStateMachine):
    """Any sequence of changes, commits, crashes and reopenings leaves what a dictionary would hold."""

    @initialize(kind=st.sampled_from(KeyKind))
    def begin(self, kind: KeyKind) -> None:
        self.folder = TemporaryDirectory()
        self.kind = kind
        self.now, self.committed = Model(), Model()
        self.files = 0
        self.index = KeyIndex.open(Path(self.folder.name), kind, SMALL)

    @rule(added=numbers, start=st.integers(0, 1000))
    def add_file(self, added: list[int], start: int) -> None:
        path = f"file:/data/{self.files}.parquet"
        self.files += 1
        positions = None if start < 500 else np.arange(start, start + len(added))
        self.index.add_file(path, make_keys(self.kind, added), positions)
        first = 0 if start < 500 else start
        self.now.places |= {n: (path, first + i) for i, n in enumerate(added)}

    @rule(asked=numbers.filter(bool))
    def forget(self, asked: list[int]) -> None:
        expected = {n: self.now.places[n] for n in asked if n in self.now.places}
        assert places(self.index, self.kind, forget=asked) == expected
        for n in expected:
            del self.now.places[n]

    @rule(snapshot=st.integers(1, 2**63 - 1))
    def fill_and_commit(self, snapshot: int) -> None:
        """Make a run that is much larger than those of later commits, so that they are merged without it."""
        self.add_file(list(range(DOMAIN)), 0)
        self.commit(snapshot)

    @rule(asked=st.integers(0, DOMAIN - 1), snapshot=st.integers(1, 2**63 - 1))
    def forget_one_and_commit(self, asked: int, snapshot: int) -> None:
        self.forget([asked])
        self.commit(snapshot)

    @rule(data=st.data())
    def remove_files(self, data: st.DataObject) -> None:
        known = sorted({p for p, _ in self.now.places.values()})
        removed = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
        self.index.remove_files([*removed, "file:/data/unknown"])
        self.now.places = {n: p for n, p in self.now.places.items() if p[0] not in removed}

    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.now.places = {}

    @rule(snapshot=st.integers(1, 2**63 - 1))
    def commit(self, snapshot: int) -> None:
        self.index.commit(snapshot)
        self.now.snapshot = snapshot
        self.committed = self.now.copy()

    @rule(step=st.integers(0, 12))
    def crash_in_commit(self, step: int) -> None:
        """End the commit at its n-th call to the disk: it happened as a whole, or not at all."""
        with pytest.MonkeyPatch.context() as patch:
            calls = 0

            def or_crash(inner):  # type: ignore[no-untyped-def]  # stands for several functions
                def call(*args, **kwargs):  # type: ignore[no-untyped-def]
                    nonlocal calls
                    calls += 1
                    if calls > step:
                        raise KeyboardInterrupt
                    return inner(*args, **kwargs)

                return call

            for name in ("fsync", "open", "truncate"):
                patch.setattr(os, name, or_crash(getattr(os, name)))
            for name in ("open", "replace", "unlink"):
                patch.setattr(Path, name, or_crash(getattr(Path, name)))
            with contextlib.suppress(KeyboardInterrupt):
                self.index.commit(77)
        self.index = KeyIndex.open(Path(self.folder.name), self.kind, SMALL)
        done = self.index.snapshot_id == 77 and self.committed.snapshot != 77
        if done or places(self.index, self.kind) != self.committed.places:
            self.now.snapshot = 77
            self.committed = self.now.copy()
        self.now = self.committed.copy()

    @rule()
    def reopen(self) -> None:
        """A process that ends loses what was not committed."""
        self.index = KeyIndex.open(Path(self.folder.name), self.kind, SMALL)
        self.now = self.committed.copy()

    @rule()
    def discard(self) -> None:
        self.index.discard()
        self.now = self.committed.copy()

    @invariant()
    def holds_what_a_dictionary_would(self) -> None:
        if hasattr(self, "index"):
            assert self.index.snapshot_id == self.now.snapshot
            assert places(self.index, self.kind) == self.now.places

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


def test_index_is_a_dictionary() -> None:
    """Whatever is added, forgotten, removed, committed, lost in a crash and reopened."""
    run_state_machine_as_test(IndexMachine, settings=settings(max_examples=100, stateful_step_count=25))


@pytest.mark.parametrize("kind", list(KeyKind))
def test_many_rows_in_many_runs(tmp_path: Path, kind: KeyKind) -> None:
    """With blocks and runs of real sizes every row is found where it was put last, after reopening as before."""
    rng = np.random.default_rng(1)
    index = KeyIndex.open(tmp_path, kind)
    where = np.full(600_000, -1, np.int64)
    for file, size in enumerate([400_000, 400_000, 400_000, 90_000, 20_000, 5_000, 10, 10]):
        chosen = rng.permutation(len(where))[:size]
        where[chosen] = file << 32 | np.arange(size)
        index.add_file(f"f{file}", make_keys(kind, chosen))
        if file > 1:
            index.commit(file)
    sizes = [r.rows for r in index._runs]
    assert len(sizes) > 1
    assert all(older >= RATIO * sum(sizes[i + 1 :]) for i, older in enumerate(sizes))
    for each in (index, KeyIndex.open(tmp_path, kind)):
        asked = rng.integers(0, len(where), 100_000)
        found = each.lookup(make_keys(kind, asked))
        assert np.array_equal(found.found, where[asked] >= 0)
        packed = found.file_id.astype(np.int64) << 32 | found.position
        assert np.array_equal(packed[found.found], where[asked][found.found])


def run_bytes(folder: Path) -> int:
    """Return the size of an index's entries on disk."""
    return sum(file.stat().st_size for file in folder.glob("run-*"))


def test_deleted_keys_leave_the_index(tmp_path: Path) -> None:
    """Rows that come and go, forgotten as they are deleted, leave neither entries nor files."""
    index = KeyIndex.open(tmp_path, KeyKind.INTEGER)
    kept = make_keys(KeyKind.INTEGER, range(1000))
    index.add_file("kept", kept)
    for i in range(60):
        passing = make_keys(KeyKind.INTEGER, range(1000 + 100 * i, 1100 + 100 * i))
        index.add_file(f"passing-{i}", passing)
        index.commit(2 * i)
        found = index.lookup(passing, forget=True)
        assert found.found.all()
        index.remove_files([f"passing-{i}"])
        index.commit(2 * i + 1)
        with pytest.raises(KeyError):
            index.file_path(int(found.file_id[0]))
    assert run_bytes(tmp_path) < 2 * len(kept) * 16
    assert index.lookup(kept).found.all()
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) < 200_000


@pytest.mark.parametrize("kind", list(KeyKind))
def test_a_removed_key_hides_older_entries_after_a_merge(tmp_path: Path, kind: KeyKind) -> None:
    """Small runs are merged without the large one before them, which has the removed keys' entries."""
    index = KeyIndex.open(tmp_path, kind)
    index.add_file("f", make_keys(kind, range(1000)))
    index.commit(1)
    for key in range(3):
        index.lookup(make_keys(kind, [key]), forget=True)
        index.commit(2 + key)
    for each in (index, KeyIndex.open(tmp_path, kind)):
        assert each.lookup(make_keys(kind, range(6))).found.tolist() == [False] * 3 + [True] * 3


def test_bytes_are_16_or_24_a_row(tmp_path: Path) -> None:
    """An index takes 16 bytes a row for integers and 24 for hashes."""
    for kind, width in ((KeyKind.INTEGER, 16), (KeyKind.HASH, 24)):
        index = KeyIndex.open(tmp_path / kind, kind)
        index.add_file("f", make_keys(kind, range(40)))
        index.commit(1)
        assert run_bytes(tmp_path / kind) == 40 * width


@pytest.mark.parametrize("kind", KeyKind)
def test_keys_that_rows_share_are_found(tmp_path: Path, kind: KeyKind) -> None:
    """An index says whether each row has a key of its own, also of rows that are in several runs."""
    index = KeyIndex.open(tmp_path, kind, SMALL)
    for n in range(3):
        index.add_file(f"f{n}", make_keys(kind, range(40 * n, 40 * n + 40)))
    assert index.is_distinct()
    index.commit(1)
    assert index.is_distinct()
    index.add_file("g", make_keys(kind, [7]))
    assert not index.is_distinct()
    index.clear()
    assert index.is_distinct()


@pytest.mark.parametrize(
    "damage", ["run lost", "run cut", "log lost", "log cut", "manifest cut", "other kind", "other key", "version 3"]
)
def test_damaged_index_is_empty(tmp_path: Path, damage: str) -> None:
    """An unreadable index is one without a snapshot, and can be filled again."""
    index = KeyIndex.open(tmp_path, KeyKind.INTEGER, key=[1])
    index.add_file("f", make_keys(KeyKind.INTEGER, range(5)))
    index.commit(7)
    what, how = damage.split()
    path = {"run": "run-0", "log": "files-0.log"}.get(what, "index.json")
    if how == "lost":
        (tmp_path / path).unlink()
    elif how == "cut":
        os.truncate(tmp_path / path, 5)
    elif what == "version":
        # It does not have the key.
        content = unseal((tmp_path / path).read_bytes(), 4)
        (tmp_path / path).write_bytes(seal(content, int(how)))
    kind, key = KeyKind.HASH if damage == "other kind" else KeyKind.INTEGER, [2] if damage == "other key" else [1]
    index = KeyIndex.open(tmp_path, kind, key=key)
    assert index.snapshot_id is None
    assert places(index, kind) == {}
    index.add_file("g", make_keys(kind, range(5)))
    index.commit(8)
    again = KeyIndex.open(tmp_path, kind, key=key)
    assert again.snapshot_id == 8
    assert places(again, kind) == {n: ("g", n) for n in range(5)}


def flip(path: Path, bit: int) -> None:
    """Change one bit of a file, in its place."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


@pytest.mark.parametrize("kind", list(KeyKind))
def test_every_flipped_bit_is_noticed(tmp_path: Path, kind: KeyKind) -> None:
    """One wrong bit in any file makes the index an empty one, or changes nothing: it never gives another place."""
    index = KeyIndex.open(tmp_path / "index", kind)
    for file in range(3):
        index.add_file(f"f{file}", make_keys(kind, range(file * 10, file * 10 + 12)))
        index.commit(file + 1)
    seed, expected = index.seed, places(index, kind)
    files = [p for p in sorted((tmp_path / "index").iterdir()) for _ in range(8 * p.stat().st_size)]
    first = {p: files.index(p) for p in set(files)}
    noticed = 0
    for n in random.Random(4).sample(range(len(files)), 300):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "index", tmp_path / "copy")
        flip(tmp_path / "copy" / files[n].name, n - first[files[n]])
        again = KeyIndex.open(tmp_path / "copy", kind)
        if again.snapshot_id is None:
            noticed += 1
            assert places(again, kind) == {}
            assert again.seed != seed
        else:
            assert (again.snapshot_id, again.seed, places(again, kind)) == (3, seed, expected)
    assert noticed > 200


def test_files_of_another_time_are_noticed(tmp_path: Path) -> None:
    """A folder restored in part has runs that are not those of its manifest, though their names and sizes are."""
    made = []
    for start in (0, 20):
        index = KeyIndex.open(tmp_path / str(start), KeyKind.INTEGER)
        index.add_file("f", make_keys(KeyKind.INTEGER, range(start, start + 10)))
        index.commit(7)
        made.append(tmp_path / str(start) / "run-0")
    shutil.copy(*made)
    assert KeyIndex.open(tmp_path / "20", KeyKind.INTEGER).snapshot_id is None


def test_the_seed_stays_with_the_index(tmp_path: Path) -> None:
    """It is secret, kept with what is committed, another one in each index, and made with one that begins again."""
    index = KeyIndex.open(tmp_path / "a", KeyKind.HASH)
    index.add_file("f", make_keys(KeyKind.HASH, range(5)))
    index.commit(1)
    index.clear()
    index.discard()
    assert KeyIndex.open(tmp_path / "a", KeyKind.HASH).seed == index.seed
    assert KeyIndex.open(tmp_path / "b", KeyKind.HASH).seed != index.seed
    (tmp_path / "a" / "index.json").unlink()
    assert KeyIndex.open(tmp_path / "a", KeyKind.HASH).seed != index.seed


def test_damage_is_not_merged(tmp_path: Path) -> None:
    """A run that is damaged while it is open is not read into another one, whose checksum would be right."""
    index = KeyIndex.open(tmp_path, KeyKind.INTEGER)
    index.add_file("f", make_keys(KeyKind.INTEGER, range(20)))
    index.commit(1)
    flip(tmp_path / "run-0", 100)
    index.add_file("g", make_keys(KeyKind.INTEGER, range(20, 40)))
    with pytest.raises(DamageError):
        index.commit(2)


def test_only_a_large_index_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of a small index waits for no disk. One that has grown is durable as a whole, with its older files."""
    waits: list[str] = []
    flush = os.fsync

    def counted(descriptor: int) -> None:
        waits.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    limits = IndexLimits(durable_rows=1000)
    index = KeyIndex.open(tmp_path, KeyKind.INTEGER, limits)
    index.add_file("f0", make_keys(KeyKind.INTEGER, range(900)))
    index.commit(1)
    assert waits == []
    index = KeyIndex.open(tmp_path, KeyKind.INTEGER, limits)
    index.add_file("f1", make_keys(KeyKind.INTEGER, range(900, 1010)))
    index.commit(2)
    assert set(waits) == {"run-0", "run-1", "files-0.log", ".index.json.partial", tmp_path.name}
