"""CPU seconds and resident memory of a process and all its descendants, read from ``/proc`` (Linux).

A client here is Python, a JVM and Python workers, so that only the whole tree shows the cost of a row. A process that
has ended counts through its parent's total of waited-for children. If the parent does not wait (Spark's daemon of
Python workers ignores SIGCHLD), it counts with its last sample. A server that was started as a daemon
(`EmbeddedPostgres`) is no descendant and does not count.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class _Process:
    """A row of ``/proc``.

    ``cpu`` is in ticks, with that of its waited-for children. ``start`` distinguishes reused PIDs.
    """

    pid: int
    parent: int
    start: int
    cpu: int
    rss: int

    @classmethod
    def read(cls, pid: int | str) -> _Process | None:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The name before it is in parentheses, and may hold anything.
        f = text[text.rindex(")") + 2 :].split()
        return cls(int(pid), int(f[1]), int(f[19]), sum(map(int, f[11:15])), int(f[21]) * _PAGE)

    def ignores_children(self) -> bool:
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
        return bool(int(ignored.split()[1], 16) >> (signal.SIGCHLD - 1) & 1)


def _tree(root: int) -> dict[int, _Process]:
    """The process and its living descendants, by PID."""
    children: dict[int, list[_Process]] = {}
    for process in filter(None, map(_Process.read, filter(str.isdigit, os.listdir("/proc")))):
        children.setdefault(process.parent, []).append(process)
    first = _Process.read(root)
    queue = [first] if first is not None else []
    for process in queue:
        queue += children.get(process.pid, [])
    return {p.pid: p for p in queue}


def process_tree(pid: int | None = None) -> list[int]:
    """The process (default: this one) and its living descendants."""
    return list(_tree(pid or os.getpid()))


def rss_bytes(pid: int | None = None) -> int:
    """Return the resident bytes of the tree. Pages that two processes share count twice."""
    return sum(p.rss for p in _tree(pid or os.getpid()).values())


def memory_bytes(pid: int | None = None) -> int:
    """Resident bytes of the tree, pages that processes share counted once: what the memory of a pod is."""
    return sum(_proportional_bytes(p) for p in process_tree(pid))


def _proportional_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1]) * 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of a measured block. ``peak_rss`` is in bytes, the largest of samples every 0.2 s."""

    wall: float
    cpu: float
    peak_rss: int

    def __str__(self) -> str:
        return f"{self.wall:.2f} s wall, {self.cpu:.2f} s CPU, {self.peak_rss / 1e6:.0f} MB"


class Meter:
    """A context manager that measures this process (or ``pid``) and its descendants. Then it has ``usage``."""

    usage: Usage

    def __init__(self, pid: int | None = None) -> None:
        self._root = pid or os.getpid()
        self._peak = 0
        self._unwaited = 0
        self._last: dict[int, _Process] = {}
        self._ignoring: dict[int, bool] = {}
        self._done = threading.Event()

    def __enter__(self) -> Self:
        self._cpu = self._sample()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        wall = time.perf_counter() - self._start
        self._done.set()
        self._thread.join()
        self.usage = Usage(wall, (self._sample() - self._cpu) / _TICKS - self._watching, self._peak)

    def _watch(self) -> None:
        while not self._done.wait(_EVERY_S):
            self._sample()
        # What it costs to measure is no cost of what is measured.
        self._watching = time.thread_time() if self._root == os.getpid() else 0.0

    def _sample(self) -> int:
        """Take a sample. Return the ticks of the tree so far."""
        now = _tree(self._root)
        for pid, before in self._last.items():
            gone = pid not in now or now[pid].start != before.start
            if gone and self._ignoring.get(before.parent, False):
                self._unwaited += before.cpu
        for process in now.values():
            if process.parent in now and process.parent not in self._ignoring:
                self._ignoring[process.parent] = now[process.parent].ignores_children()
        self._last = now
        self._peak = max(self._peak, sum(p.rss for p in now.values()))
        return self._unwaited + sum(p.cpu for p in now.values())


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table, so that a run's output can be kept as it is printed."""
    lines = [
        [f"{c:,.2f}" if isinstance(c, float) else f"{c:,}" if isinstance(c, int) else str(c) for c in r] for r in rows
    ]
    widths = [max(len(x) for x in column) for column in zip(headers, *lines, strict=True)]
    out = [headers, ["-" * w for w in widths], *lines]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) + " |" for r in out)
