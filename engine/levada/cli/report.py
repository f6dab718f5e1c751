"""The display of `levada run`: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

from rich.console import Console, RenderableType
from rich.live import Live

from levada.cli.render import changed_lines, dashboard, summary
from levada.status import Progress

_SUMMARY_S: Final = 60.0
_RATE_WINDOW_S: Final = 5.0
_LEAST_TABLES: Final = 3
_PHASES: Final = logging.getLogger("levada.runtime.tables.phase_changes")


class Report(ABC):
    """Displays the snapshots of progress that its caller passes."""

    @abstractmethod
    def show(self, now: Progress) -> None:
        """Display the snapshot."""

    def __enter__(self) -> Self:
        return self

    def __exit__(  # noqa: B027 - lines need no end
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """End the display."""


def fitting_dashboard(now: Progress, before: Progress | None, console: Console) -> RenderableType:
    """Return the dashboard with as many tables as leave room for everything else: errors are below the tables."""

    def excess(most: int) -> int:
        return len(console.render_lines(dashboard(now, before, most), pad=False)) - console.height

    most = min(len(now.tables), console.height)
    # A table may take several lines.
    numbers = range(_LEAST_TABLES + 1, most + 1)
    return dashboard(now, before, _LEAST_TABLES + bisect_right(numbers, 0, key=excess))


class LiveReport(Report):
    """One table that is redrawn continuously. Log lines appear above it, without those of phases, which it shows."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4)
        self._before: Progress | None = None
        self._before_at = 0.0

    def show(self, now: Progress) -> None:
        """Draw the snapshot. Rates are averages over the last seconds."""
        self._live.update(fitting_dashboard(now, self._before, self._console))
        if self._before is None or time.monotonic() - self._before_at > _RATE_WINDOW_S:
            self._before, self._before_at = now, time.monotonic()

    def __enter__(self) -> Self:
        if not _PHASES.isEnabledFor(logging.DEBUG):
            _PHASES.setLevel(logging.WARNING)
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()
        _PHASES.setLevel(logging.NOTSET)


class LineReport(Report):
    """A line for each change, and a summary once a minute while rows arrive."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._before: Progress | None = None
        self._summed_up_at = time.monotonic()
        self._summed_up_rows = 0

    def show(self, now: Progress) -> None:
        """Print the changes since the last call."""
        lines = list(changed_lines(now, self._before))
        self._before = now
        rows = now.capture.rows
        if rows != self._summed_up_rows and time.monotonic() - self._summed_up_at > _SUMMARY_S:
            self._summed_up_at, self._summed_up_rows = time.monotonic(), rows
            lines.append(summary(now))
        if lines:
            # One text, because thousands of tables can change at once.
            at = f"{datetime.now(UTC):%H:%M:%S}"
            self._console.print("\n".join(f"{at} {line}" for line in lines), markup=False)


def report(console: Console) -> Report:
    """Return the display that suits the console. A dumb terminal cannot redraw a table."""
    return LiveReport(console) if console.is_terminal and not console.is_dumb_terminal else LineReport(console)
