"""A process with a limit of memory, as a container has it."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")


class MemoryLimit:
    """A cgroup of version 1 or 2. A process that uses more memory than its limit is killed by the kernel."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._v2 = (folder / "memory.max").exists()
        (folder / ("memory.max" if self._v2 else "memory.limit_in_bytes")).write_text(str(limit))
        self.limit = limit

    def enter(self) -> None:
        """Move the calling process into the group. For ``preexec_fn``."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def peak(self) -> int:
        """The most memory that was in use, in bytes."""
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            if (self._folder / name).exists():
                return int((self._folder / name).read_text())
        return 0

    @property
    def kills(self) -> int:
        """The number of processes that the kernel killed."""
        text = (self._folder / ("memory.events" if self._v2 else "memory.oom_control")).read_text()
        return int(next(line.split()[1] for line in text.splitlines() if line.startswith("oom_kill ")))


@contextlib.contextmanager
def memory_limit(limit: int) -> Iterator[MemoryLimit]:
    """Make a group with that limit. The test is skipped where this user may make none."""
    root = _ROOT if (_ROOT / "cgroup.controllers").exists() else _ROOT / "memory"
    folder = root / f"levada-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
        group = MemoryLimit(folder, limit)
    except OSError as error:
        pytest.skip(f"no cgroup with a limit of memory can be made: {error}")
    try:
        yield group
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
