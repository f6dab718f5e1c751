"""Waits for a state of the pipeline's progress, for example until all tables have caught up with the source."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from levada.capture import CaptureWorker
from levada.errors import NeedsOperator
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.lag import current_wal_lsn
from levada.postgres.server import read_start_time
from levada.runtime.config import PipelineConfig
from levada.status import PipelineState, Progress, RetryPolicy, TableProgress
from levada.values import Lsn

_SHOWN: Final = 3


def caught_up_with_source(
    config: PipelineConfig, worker: Callable[[], CaptureWorker | None]
) -> Callable[[Progress], bool]:
    """Read how much is committed at the source now, and return a predicate on progress: every table has applied it.

    Suspended tables do not count. Tables that need a manual retry, and for which ``config`` has no request that is not
    acted on yet, do not keep others from it: once the others have applied it, the predicate raises NeedsOperator
    ``tables_errored``. Without any table it raises ``no_tables_selected``. It is False while a table is added to the
    publication as soon as another session's lock on it ends. ``worker`` returns the current capture worker. If the
    server was restarted, the predicate waits for a new session to verify the server's history, because LSNs of another
    history cannot be compared.
    """
    before = worker()
    sessions = 0 if before is None else before.position.sessions
    with SESSIONS.session(config.source, "caught-up") as connection:
        target, started_at = current_wal_lsn(connection), read_start_time(connection)
    known = before is not None and before.server is not None and before.server.started_at == started_at

    def verified() -> bool:
        now = worker()
        return known or now is not before or (now is not None and now.position.sessions > sessions)

    def reached(progress: Progress) -> bool:
        if progress.publication.waits:
            return False
        if not progress.tables:
            return _without_tables(progress)
        running = tuple(t for t in progress.tables if not t.suspended)
        errored = tuple(t for t in running if needs_manual_retry(t) and not _is_requested(t, config))
        able = [t for t in running if t not in errored]
        compared = verified() and (progress.verified_lsn or Lsn(0)) >= target
        if able and not (compared and all(t.has_reached(target) for t in able)):
            return False
        if errored:
            raise _errored(progress, errored)
        return True

    return reached


def needs_manual_retry(table: TableProgress) -> bool:
    """Return True if the table is errored and is not retried until that is requested."""
    return table.error is not None and table.error.retry_policy != RetryPolicy.TIMED_RETRY


def _is_requested(table: TableProgress, config: PipelineConfig) -> bool:
    """Return True if a retry or a resync of the table is configured that the pipeline has not acted on yet."""
    wanted = config.table(table.table)
    return wanted.retry_nonce not in (0, table.retry_nonce) or wanted.resync_nonce not in (0, table.resync_nonce)


def _without_tables(progress: Progress) -> bool:
    """Return False for a pipeline that starts. Raise NeedsOperator for one that runs and has no table left."""
    if progress.state is not PipelineState.RUNNING:
        return False
    raise NeedsOperator(
        "no_tables_selected",
        f"pipeline {progress.pipeline} has no table any more, so none can catch up",
        hint="select a table that exists, then start it again",
    )


def _errored(progress: Progress, tables: Sequence[TableProgress]) -> NeedsOperator:
    errors = [(t.table, t.error) for t in tables if t.error is not None]
    shown = [f"{table}: {error.reason} [{error.code}]" for table, error in errors[:_SHOWN]]
    more = [f"and {len(errors) - _SHOWN} more"] if len(errors) > _SHOWN else []
    return NeedsOperator(
        "tables_errored",
        f"pipeline {progress.pipeline}: {len(errors)} of {len(progress.tables)} tables need a manual retry, and the"
        f" others have caught up. {'; '.join(shown + more)}",
        hint=errors[0][1].solution,
    )


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
