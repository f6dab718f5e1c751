"""Restarts of a running pipeline in its process, after a change of the destination's Secret."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.runtime import samples

from levada.runtime.host.secret_watcher import SecretWatcher, may_replace_pipeline
from levada.status import Progress, ResyncProgress


def mount(folder: Path, name: str, **keys: str) -> None:
    """Write a Secret as the kubelet does: files are links through ``..data`` to a folder, which is replaced."""
    (folder / f"..{name}").mkdir(parents=True)
    for key, value in keys.items():
        (folder / f"..{name}" / key).write_text(value)
        if not (folder / key).is_symlink():
            (folder / key).symlink_to(f"..data/{key}")
    (folder / "..new").symlink_to(f"..{name}")
    (folder / "..new").replace(folder / "..data")


def test_a_new_content_is_a_change(tmp_path: Path) -> None:
    """Found by two looks in a row: in between, it may be half written."""
    mount(tmp_path, "1", key="first")
    watcher = SecretWatcher(tmp_path)
    assert [watcher.changed() for _ in range(3)] == [False] * 3
    mount(tmp_path, "2", key="second")
    assert [watcher.changed() for _ in range(3)] == [False, True, True]


def test_the_same_content_is_none(tmp_path: Path) -> None:
    """The kubelet's rewrite of equal files is no change, and neither is a change that is taken back."""
    mount(tmp_path, "1", key="first")
    watcher = SecretWatcher(tmp_path)
    mount(tmp_path, "2", key="first")
    assert not any(watcher.changed() for _ in range(3))
    mount(tmp_path, "3", key="second")
    mount(tmp_path, "4", key="first")
    assert not any(watcher.changed() for _ in range(3))


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    """A Secret that is gone, or empty for a moment, is no reason for a restart."""
    folder = tmp_path / "lake"
    mount(folder, "1", key="first")
    watcher = SecretWatcher(folder)
    shutil.rmtree(folder)
    assert not any(watcher.changed() for _ in range(3))
    folder.mkdir()
    assert not any(watcher.changed() for _ in range(3))
    assert not SecretWatcher(None).changed()


def test_keys_do_not_run_into_each_other(tmp_path: Path) -> None:
    """Text that moves from the end of one file to the beginning of the next is a change."""
    mount(tmp_path, "1", a="xy", b="z")
    watcher = SecretWatcher(tmp_path)
    mount(tmp_path, "2", a="x", b="yz")
    assert [watcher.changed() for _ in range(2)] == [False, True]


REFUSED = samples.error(code="destination_denied")
RESYNC = ResyncProgress("Copying", None, 0, None)


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (samples.progress(samples.table()), True),
        (samples.progress(samples.table(), samples.table("payments", phase="Init")), True),
        (samples.progress(samples.table(), samples.table("payments", phase="DataSync")), False),
        (samples.progress(samples.table(resync=RESYNC)), False),
        (samples.progress(samples.table(resync=ResyncProgress("Waiting", None, 0, None))), True),
        (samples.progress(samples.table(phase="DataSync"), samples.table("b", phase="Errored", error=REFUSED)), True),
        (samples.progress(samples.table(phase="DataSync"), samples.table("b", error=samples.error())), False),
    ],
)
def test_a_copy_is_not_given_up(progress: Progress, expected: bool) -> None:
    """A copy under the former keys goes on, unless the destination refuses them."""
    assert may_replace_pipeline(progress) is expected
