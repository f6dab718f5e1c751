"""The start of a destination, which is retried while the destination does not answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from levada.destinations.answers import perform
from levada.destinations.interface import Destination
from levada.errors import LevadaError, Transient
from levada.runtime.config import RetryLimits
from levada.runtime.destination_errors import destination_errors
from levada.stores.phases import DataSync, Init, TableReplicationPhase

_log = logging.getLogger(__name__)


def open_destination(
    destination: Destination,
    retries: RetryLimits,
    phases: Collection[TableReplicationPhase],
    *,
    stopping: threading.Event,
    report: Callable[[LevadaError | None], None],
) -> None:
    """Start the destination up for a pipeline whose tables have these phases.

    If a table was already copied, a retried error is only logged. The pipeline then stages changes until the
    destination can be used. If no table was copied, Transient is retried as in `start_up_with_retries`, which explains
    ``stopping`` and ``report``.
    """
    copied = not all(isinstance(phase, Init | DataSync) for phase in phases)
    if not copied:
        start_up_with_retries(destination, retries, stopping, report)
        return
    try:
        start_up(destination)
    except LevadaError as error:
        if not error.retried:
            raise
        _log.warning("changes are staged until the destination can be used: %s", error)


def start_up(destination: Destination) -> None:
    """Call the destination's `startup`. Raise NeedsOperator ``destination_failed`` for an error of any other type."""
    with destination_errors(type(destination), "startup"):
        perform(destination.startup)


def start_up_with_retries(
    destination: Destination,
    retries: RetryLimits,
    stopping: threading.Event,
    report: Callable[[LevadaError | None], None] = lambda _: None,
) -> None:
    """Call `startup` until it does not raise Transient, as often and with the delays that a table is retried.

    Servers refuse requests for a moment after their own start. ``report`` receives each error that is retried, and None
    when the next attempt begins. Raise the last error after the last attempt, or once ``stopping`` is set.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            return start_up(destination)
        except Transient as error:
            if attempt >= retries.max_attempts or stopping.is_set():
                raise
            delay = retries.delay(attempt)
            _log.warning("the destination cannot be opened yet, next attempt in %.0f s: %s", delay, error)
            report(error)
            if stopping.wait(delay):
                raise
            report(None)
