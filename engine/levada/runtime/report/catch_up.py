"""Waits for a state of the pipeline's progress, for example until all tables have caught up with the source."""

from __future__ import annotations

import time
from collections.abc import Callable

from levada.capture import CaptureWorker
from levada.errors import NeedsOperator
from levada.postgres.lag import current_wal_lsn
from levada.postgres.server import read_start_time
from levada.runtime.config import PipelineConfig
from levada.status import Progress
from levada.values import Lsn


def caught_up_with_source(
    config: PipelineConfig, worker: Callable[[], CaptureWorker | None]
) -> Callable[[Progress], bool]:
    """Read how much is committed at the source now, and return a predicate on progress: every table has applied it.

    ``worker`` returns the current capture worker. If the server was restarted, the predicate waits for a new session
    to verify the server's history, because LSNs of another history cannot be compared.
    """
    before = worker()
    sessions = 0 if before is None else before.position.sessions
    with config.source.connect(application="caught-up") as connection:
        target, started_at = current_wal_lsn(connection), read_start_time(connection)
    known = before is not None and before.server is not None and before.server.started_at == started_at

    def verified() -> bool:
        now = worker()
        return known or now is not before or (now is not None and now.position.sessions > sessions)

    return lambda p: verified() and (p.verified_lsn or Lsn(0)) >= target and p.has_reached(target)


def wait_for_progress(
    pipeline: str,
    done: Callable[[Progress], bool],
    progress: Callable[[], Progress],
    wait: Callable[[], bool],
    timeout_s: float | None,
) -> Progress:
    """Wait until ``done`` is true of the newest progress, and return that progress.

    ``wait`` waits a short time and returns True if the pipeline has ended. Raise NeedsOperator ``pipeline_stopped``
    in that case, and TimeoutError after ``timeout_s`` seconds.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        newest = progress()
        if done(newest):
            return newest
        if wait():
            raise NeedsOperator(
                "pipeline_stopped", f"pipeline {pipeline} was stopped while it was waited for", hint="see its log"
            )
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(f"pipeline {pipeline} did not get there in {timeout_s} s")
