"""Files with rows, keys and addresses, on a machine with other users."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest

from levada.destinations.key_index.index import KeyIndex
from levada.destinations.keys import KeyKind, Keys
from levada.private import process_folder
from levada.runtime.host.work_dir import create_work_dir
from levada.runtime.resources.spark import _settings
from levada.segments import Staging


def mode(folder: Path) -> int:
    """Return the permissions of a folder."""
    return stat.S_IMODE(folder.stat().st_mode)


def test_folders_are_their_owners_alone(tmp_path: Path) -> None:
    """The work folder and a local staging area are closed to others, and folders above them stay as they are."""
    tmp_path.chmod(0o755)
    create_work_dir(tmp_path / "beside" / "work")
    staging = Staging.open(str(tmp_path / "lake" / "staging"))
    with staging.output("shop/segments/a.parquet") as file:
        file.write(b"rows")
    staging.publish("shop/other/a.json", b"{}", naming=[])
    assert mode(tmp_path / "beside" / "work") == 0o700
    for folder in ("staging", "staging/shop", "staging/shop/segments", "staging/shop/other"):
        assert mode(tmp_path / "lake" / folder) == 0o700
    assert mode(tmp_path) == mode(tmp_path / "lake") == mode(tmp_path / "beside") == 0o755


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    """Staged files and key indexes are closed to others by themselves, also in a folder that others may enter."""
    lake, work = tmp_path / "staging", tmp_path / "index"
    for folder in (lake, work):
        folder.mkdir(mode=0o755)
    staging = Staging.open(str(lake))
    with staging.output("a.parquet") as file:
        file.write(b"rows")
    staging.publish("a.json", b"{}", naming=["a.parquet"])
    assert staging.read("a.parquet") == b"rows"
    index = KeyIndex.open(work, KeyKind.INTEGER)
    index.add_file("data.parquet", Keys(KeyKind.INTEGER, np.arange(3)))
    index.commit(1)
    files = [f for f in (*lake.iterdir(), *work.iterdir()) if f.is_file()]
    assert len(files) >= 5
    assert {f.name: oct(mode(f)) for f in files if mode(f) != 0o600} == {}


def test_sparks_scratch_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's blocks have rows. A folder that others may enter is not used. A setting of the manifest holds."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = process_folder("levada-spark")
    shared = first.parent
    assert mode(first) == mode(shared) == 0o700
    shared.chmod(0o777)
    other = process_folder("levada-spark")
    assert shared not in other.parents
    assert mode(other) == mode(other.parent) == 0o700
    shared.rename(tmp_path / "elsewhere")
    shared.symlink_to(tmp_path)
    assert process_folder("levada-spark").parent not in (shared, tmp_path)
    assert _settings("x", "1", {"spark.local.dir": "/fast"})["spark.local.dir"] == "/fast"
