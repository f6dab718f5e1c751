"""CPU seconds and resident memory of a process and all its descendants, read from ``/proc`` (Linux).

A client here is Python, a JVM and Python workers: only the whole tree tells what a row costs. Processes that have
ended count through their parents' totals of waited-for children, so nothing is lost between two samples. A server
that was started as a daemon (`EmbeddedPostgres`) is no descendant and does not count.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int | str) -> list[str] | None:
    """The fields of ``/proc/<pid>/stat`` from ``state`` on; None if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


def process_tree(pid: int | None = None) -> list[int]:
    """The process (default: this one) and its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(entry)) is not None:
            children.setdefault(int(stat[1]), []).append(int(entry))
    tree = [pid or os.getpid()]
    for p in tree:
        tree += children.get(p, [])
    return tree


def cpu_seconds(pid: int | None = None) -> float:
    """User and system seconds that the tree has used so far, those of its ended processes included."""
    stats = filter(None, map(_stat, process_tree(pid)))
    return sum(int(s) for stat in stats for s in stat[11:15]) / _TICKS


def rss_bytes(pid: int | None = None) -> int:
    """Resident bytes of the tree; pages that two processes share count twice."""
    stats = filter(None, map(_stat, process_tree(pid)))
    return sum(int(stat[21]) for stat in stats) * _PAGE


@dataclass(frozen=True, slots=True)
class Usage:
    """What a measured block took. ``peak_rss`` in bytes, as far as samples every 0.1 s saw it."""

    wall: float
    cpu: float
    peak_rss: int

    def __str__(self) -> str:
        return f"{self.wall:.2f} s wall, {self.cpu:.2f} s CPU, {self.peak_rss / 1e6:.0f} MB"


class Meter:
    """A context manager that measures this process and its descendants; ``usage`` is there afterwards.

    ``pid``: another root than this process, a child of it or not.
    """

    usage: Usage

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._peak = 0
        self._done = threading.Event()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        self._cpu = cpu_seconds(self._pid)
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        wall = time.perf_counter() - self._start
        cpu = cpu_seconds(self._pid) - self._cpu
        self._done.set()
        self._thread.join()
        self.usage = Usage(wall, cpu, self._peak)

    def _sample(self) -> None:
        while True:
            self._peak = max(self._peak, rss_bytes(self._pid))
            if self._done.wait(0.1):
                return


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table, so that a run's output can be kept as it is printed."""
    lines = [
        [f"{c:,.2f}" if isinstance(c, float) else f"{c:,}" if isinstance(c, int) else str(c) for c in r] for r in rows
    ]
    widths = [max(len(x) for x in column) for column in zip(headers, *lines, strict=True)]
    out = [headers, ["-" * w for w in widths], *lines]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) + " |" for r in out)
