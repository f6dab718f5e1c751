"""The machine as this process has it: its share by CPU affinity and the limits of its cgroup, and its file names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from levada.errors import NeedsOperator
from levada.segments.memory import BATCH_BYTES, CAPTURE_BYTES, LEAST_BYTES

_GROUPS: Final = Path("/sys/fs/cgroup")
_NO_LIMIT: Final = 1 << 60
"""A limit of the memory from there on is none. Version 1 of cgroups has no word for that."""

_ENGINE: Final = 640 << 20
"""Bytes for the engine, and for one worker of each copy. The engine was seen to take 370 MiB with a transaction of
500,000 rows.
"""
_WORKER: Final = 64 << 20
"""Bytes for a worker process. Each was seen to take 50 MiB, also with rows of 200 KB."""
_JVM: Final = 256 << 20
"""Bytes of Spark's JVM outside of its heap: classes, compiled code, threads."""
_SMALLEST_HEAP: Final = 256 << 20
"""Bytes of heap with which Spark starts and commits."""
_LARGEST_HEAP: Final = 1 << 30
"""Bytes of heap that are enough to compact tables."""
_TASK: Final = 128 << 20
"""Bytes for the Python worker of a task of Spark, which writes files."""
_FEWEST_THREADS: Final = 8
_THREADS_PER_CORE: Final = 4
"""Threads that apply batches for each core. A small batch takes 20 ms of CPU, and waits several times as long for the
lake and the catalog.
"""
_MOST_THREADS: Final = 32
"""Threads that apply batches, however many cores there are. They share one interpreter, and each may hold a connection
of the destination, whose server has 100 for everybody by default.
"""
_LARGE_BATCHES: Final = 3
"""The number of large batches for which there is memory, where it has no limit and the cores are few."""
_OF_MACHINE: Final = 4
"""The part of the machine's memory for changes, where no limit is set: what else runs there is not known."""
_PER_CORE: Final = 2
"""Worker processes for each core. A worker waits for the source or the destination about half of the time."""


def available_cores(groups: Path = _GROUPS) -> int:
    """Return the number of cores that this process may use, rounded up."""
    cores = len(os.sched_getaffinity(0))
    words = _words(groups / "cpu.max")
    words = words or _words(groups / "cpu" / "cpu.cfs_quota_us") + _words(groups / "cpu" / "cpu.cfs_period_us")
    match words:
        case [quota, period] if quota.isdigit() and period.isdigit():
            return max(1, min(cores, -(-int(quota) // int(period))))
    return cores


def memory_limit(groups: Path = _GROUPS) -> int | None:
    """Return the limit of the memory in bytes, or None if there is none."""
    match _words(groups / "memory.max") or _words(groups / "memory" / "memory.limit_in_bytes"):
        case [limit] if limit.isdigit() and int(limit) < _NO_LIMIT:
            return int(limit)
    return None


def worker_limit(cores: int, memory: int | None) -> int:
    """Return the number of worker processes from which a copy gets no more than one, by cores and bytes of memory.

    Kubernetes ends the whole container if its processes together exceed the memory.
    """
    by_cores = _PER_CORE * cores
    return by_cores if memory is None else max(1, min(by_cores, (memory - _ENGINE) // _WORKER))


def jvm_heap(memory: int | None) -> int:
    """Return the bytes of heap for the JVM of a driver that has so many bytes of memory."""
    rest = _LARGEST_HEAP if memory is None else (memory - _JVM - _ENGINE) * 2 // 3
    return max(_SMALLEST_HEAP, min(_LARGEST_HEAP, rest))


def task_slots(cores: int, memory: int | None) -> int:
    """Return the number of Spark's tasks that run simultaneously in a local session, by cores and bytes of memory.

    Each task has a Python worker, which reads rows and writes files.
    """
    rest = cores if memory is None else (memory - jvm_heap(memory) - _JVM - _ENGINE) // _TASK
    return max(1, min(cores, rest))


def apply_threads(cores: int) -> int:
    """Return the number of tables to which changes are applied at the same time, by cores.

    The memory of their batches is bounded by `change_memory`.
    """
    return min(_MOST_THREADS, max(_FEWEST_THREADS, _THREADS_PER_CORE * cores))


def installed_memory() -> int:
    """Return the bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def change_memory(cores: int, memory: int | None, installed: int) -> int:
    """Return the bytes of memory for changes, which capture and apply share.

    ``memory`` is the limit in bytes, None where there is none, and ``installed`` the memory of the whole machine.
    """
    if memory is None:
        by_cores = max(_LARGE_BATCHES, cores + 1) * BATCH_BYTES + CAPTURE_BYTES
        return max(LEAST_BYTES, min(by_cores, installed // _OF_MACHINE))
    return max(LEAST_BYTES, memory - jvm_heap(memory) - _JVM - _ENGINE)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


_VARIABLES: Final = ("LC_ALL", "LC_CTYPE", "LANG")
"""The first one that is set decides."""


def require_utf8() -> None:
    """Raise NeedsOperator ``locale_not_utf8`` if Python names files in another encoding than Arrow and Java do."""
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8":
        return
    variable = next((v for v in _VARIABLES if os.environ.get(v)), _VARIABLES[0])
    raise NeedsOperator(
        "locale_not_utf8",
        f"{variable}={os.environ.get(variable, '')} lets Python name files in {encoding}, and not in UTF-8",
        hint=f"export {variable}=C.UTF-8",
    )
