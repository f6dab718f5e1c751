"""Tasks of a small copy, which run in this process.

To pass a task to Spark or to a worker process costs more than to read some thousand rows, and each of Spark's tasks
opens a session at the source. Nothing else is different: a task is pickled and repeated as elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from levada.copy.reader_sessions import SESSIONS
from levada.copy.tasks import Submit, attempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEPT_S: Final = 5.0
"""Seconds for which a session at the source is kept for the next small copy."""


def keep_sessions() -> None:
    """Let this process keep its sessions at the source for a few seconds after each use."""
    SESSIONS.keep(_KEPT_S)


class InProcess:
    """The `levada.copy.tasks.TaskRunner` of this process. Its tasks end by themselves, because they are short."""

    @property
    def spark(self) -> SparkSession | None:
        """None, because the tasks run without Spark."""
        return None

    def group(self, description: str) -> InProcess:
        """Return itself, because the tasks of all groups are alike."""
        keep_sessions()
        return self

    @contextmanager
    def submitter(self, needed: Callable[[], bool]) -> Iterator[Submit]:
        """Yield the function that runs a task at once."""
        yield attempt

    def cancel(self) -> None:
        """Leave the tasks alone. The end of the source's session ends one that waits."""

    def check(self) -> None:
        """Do nothing, because tasks always run."""

    def close(self) -> None:
        """Close the sessions that are kept."""
        SESSIONS.close()


IN_PROCESS: Final = InProcess()
