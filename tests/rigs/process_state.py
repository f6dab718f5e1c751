"""The state of a process that a test must not leave to the next one.

`tests.lint.process_state_names` lists all such state, and why the rest of it is harmless.
"""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from levada import logs, mask_keys
from levada.cli.hints import set_invocation
from levada.copy.reader_sessions import SESSIONS

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def process_as_before() -> Iterator[None]:
    """Put back what a command or a pipeline in this process changed for all of it."""
    fields, collected = dict(logs._fields), gc.get_threshold()
    handlers = {each: signal.getsignal(each) for each in _SIGNALS}
    set_invocation(None)
    with _logging_as_before():
        yield
    gc.set_threshold(*collected)
    for each, handler in handlers.items():
        if signal.getsignal(each) is not handler:
            signal.signal(each, handler)
    logs._fields.clear()
    logs._fields.update(fields)
    # A key whose file is gone would be known to the next test.
    mask_keys._read.clear()
    SESSIONS.keep(0)
    SESSIONS.close()


@contextmanager
def _logging_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(), logging.getLogger("levada")]
    before = [(x.level, x.propagate, x.disabled, list(x.handlers)) for x in loggers]
    yield
    for logger, (level, propagate, disabled, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.propagate, logger.disabled = propagate, disabled
        logger.handlers[:] = handlers
