"""Long work that a signal or a deadline can interrupt: Spark's start, a source that does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_POLL_S: Final = 0.05


class Interrupted(Exception):  # noqa: N818 - not an error: the result is no longer wanted
    """The caller stopped waiting for the work. The work goes on in its thread."""


class _Work(Generic[T]):
    """One call in its own thread, with its result or its error. ``discard`` receives a result that was abandoned."""

    def __init__(self, work: Callable[[], T], discard: Callable[[T], object]) -> None:
        self._work = work
        self._discard = discard
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._turn = threading.Lock()
        self._abandoned = False
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="levada-start", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            with self._turn:
                abandoned = self._abandoned
                self._ended.set()
        if abandoned and self._error is None:
            self._discard(self._result[0])

    def abandon(self) -> None:
        """Let the work discard its own result once it ends, or discard the result of work that has ended."""
        with self._turn:
            self._abandoned, ended = True, self._ended.is_set()
        if ended and self._error is None:
            self._discard(self._result[0])

    def wait(self, timeout_s: float) -> bool:
        return self._ended.wait(timeout_s)

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result[0]


def wait_for(
    work: Callable[[], T],
    leave: Callable[[], bool],
    *,
    patience_s: float = 0.0,
    discard: Callable[[T], object] = lambda _: None,
    interrupt: Callable[[], object] = lambda: None,
    during: AbstractContextManager[object] | None = None,
) -> T:
    """Run the work and return its result or raise its error. Raise `Interrupted` once ``leave`` returns True.

    ``interrupt`` is called then, to shorten the work. Work that ends within ``patience_s`` seconds after that still
    counts, so that it can be closed in order. The result of work that ends later is passed to ``discard``, in the
    work's thread. If the work raises an error when ``leave``
    returns True, the error is raised as `Interrupted`: a signal to the whole process group causes such errors.

    ``during`` is entered while this waits. If it raises an error at its end, the result is passed to ``discard``.
    """
    with ExitStack() as made:
        with during or nullcontext():
            result = _waited(work, leave, patience_s, discard, interrupt)
            made.callback(discard, result)
        made.pop_all()
    return result


def _waited(
    work: Callable[[], T],
    leave: Callable[[], bool],
    patience_s: float,
    discard: Callable[[T], object],
    interrupt: Callable[[], object],
) -> T:
    running = _Work(work, discard)
    left_at: float | None = None
    try:
        while not running.wait(_POLL_S):
            if left_at is None and leave():
                left_at = time.monotonic()
                interrupt()
            if left_at is not None and time.monotonic() - left_at >= patience_s:
                raise Interrupted
    except BaseException:  # also KeyboardInterrupt, which Python raises for Ctrl-C without another handler
        running.abandon()
        raise
    try:
        return running.outcome()
    except Exception:
        if leave():
            raise Interrupted from None
        raise
