"""Processes that are killed while a destination writes, and the writes that they begin."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from levada.destinations import Destination, TableTarget
from levada.segments import StagedBatch
from levada.testing.failing import FailingBatch
from levada.testing.rows import ArrowRows, FailingRows
from levada.values import Watermark

AFTER: Final = 1 << 30
"""The point after the last batch or event was read, and before the destination commits."""
RETURNED: Final = 1 << 31
"""The point after the destination's method has returned, and before the engine has heard of it."""
_TIMEOUT_S: Final = 300


def die() -> None:
    """End this process as the kernel ends one without memory."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Copying:
    """A copy, killed before it reads the Arrow batch of the number ``at``."""

    target: TableTarget
    rows: ArrowRows
    mark: Watermark
    at: int

    def __call__(self, destination: Destination) -> None:
        """Write the rows, and end the process."""
        at = self.at if self.at != AFTER else sum(1 for _ in self.rows.batches())
        destination.write_table_rows(self.target, FailingRows(self.rows, at, die), self.mark)


@dataclass(frozen=True, slots=True)
class Applying:
    """A batch of changes, killed before it reads the Arrow batch or the event of the number ``at``."""

    batch: StagedBatch
    mark: Watermark
    at: int

    def __call__(self, destination: Destination) -> None:
        """Apply the changes, and end the process."""
        batch = self.batch if self.at == RETURNED else FailingBatch(self.batch, self.at, die)
        destination.write_events(batch, self.mark)


def kill_in_child(opening: Callable[[], Destination], work: Callable[[Destination], None]) -> None:
    """Run the work in another process, which is killed at its point, or at its end at the latest.

    The process is forked from one that has imported what the first such process needs.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, _module(opening)])
    child = context.Process(target=_run, args=(dict(os.environ), opening, work), daemon=False)
    child.start()
    child.join(_TIMEOUT_S)
    if child.exitcode is None:
        child.kill()
        child.join()
    assert child.exitcode == -signal.SIGKILL, f"the process to be killed ended with {child.exitcode}"


def _module(opening: Callable[[], Destination]) -> str:
    """Return the name of the module that has the function or its class."""
    function = opening.func if isinstance(opening, partial) else opening
    return str(getattr(function, "__module__", __name__))


def _run(environment: dict[str, str], opening: Callable[[], Destination], work: Callable[[Destination], None]) -> None:
    # That of the process from which this one is forked may be older.
    os.environ.clear()
    os.environ.update(environment)
    destination = opening()
    destination.startup()
    work(destination)
    die()
