"""Files with rows, keys and addresses, on a machine with other users."""

from __future__ import annotations

import stat
from pathlib import Path

from levada.cli.run import make_folder
from levada.segments import Staging


def mode(folder: Path) -> int:
    """Return the permissions of a folder."""
    return stat.S_IMODE(folder.stat().st_mode)


def test_folders_are_their_owners_alone(tmp_path: Path) -> None:
    """The work folder and a local staging area are closed to others, and folders above them stay as they are."""
    tmp_path.chmod(0o755)
    make_folder(tmp_path / "beside" / "work")
    staging = Staging.open(str(tmp_path / "lake" / "staging"))
    with staging.output("shop/segments/a.parquet") as file:
        file.write(b"rows")
    staging.publish("shop/other/a.json", b"{}", naming=[])
    assert mode(tmp_path / "beside" / "work") == 0o700
    for folder in ("staging", "staging/shop", "staging/shop/segments", "staging/shop/other"):
        assert mode(tmp_path / "lake" / folder) == 0o700
    assert mode(tmp_path) == mode(tmp_path / "lake") == mode(tmp_path / "beside") == 0o755
