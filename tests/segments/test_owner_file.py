"""The file that names the owner of a folder in the staging area."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from levada.errors import NeedsOperator
from levada.segments.owner_file import claim_folder, read_owner, replace_owner
from levada.segments.staging import Staging
from levada.values import PipelineOwner

ONE, OTHER = PipelineOwner("uid-1", "a/shop"), PipelineOwner("uid-2", "b/shop")


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_the_first_to_claim_is_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    """Also on a file system without hard links. The file is for its user alone, and nothing else is left there."""
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    staging = Staging.open(str(tmp_path))
    assert claim_folder(staging, "shop", ONE) == ONE
    assert claim_folder(staging, "shop", OTHER) == ONE
    assert [p.name for p in (tmp_path / "shop").iterdir()] == ["owner"]
    assert (tmp_path / "shop" / "owner").stat().st_mode & 0o777 == 0o600
    replace_owner(staging, "shop", OTHER)
    assert read_owner(staging, "shop") == OTHER


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x00", b"[]", b'{"uid": "uid-1"}'])
def test_a_damaged_file_names_no_owner(tmp_path: Path, content: bytes) -> None:
    """The folder may have another Pipeline's segments, so that each claim is refused. The hint has the path."""
    staging = Staging.open(str(tmp_path))
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "owner").write_bytes(content)
    with pytest.raises(NeedsOperator) as refused:
        claim_folder(staging, "shop", ONE)
    assert refused.value.code == "owner_unreadable"
    assert f"remove shop/owner from {tmp_path}" in refused.value.hint


def refuse(source: str, target: str) -> None:
    """Do what link() does on such a file system."""
    raise OSError(errno.EPERM, os.strerror(errno.EPERM), source)
