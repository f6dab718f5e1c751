"""The ways in which a run of the engine ends, and the interface by which a caller follows one. Errors are raised."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Self, TypeAlias

from levada.errors import NeedsOperator
from levada.postgres.problems import Problem, Severity
from levada.runtime.report.catch_up import needs_manual_retry
from levada.status import Progress, TableProgress


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Every table has reached the goal, except suspended ones."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class TablesErrored:
    """Every table has reached the goal, except suspended ones and errored ones that need a manual retry."""

    progress: Progress

    @property
    def tables(self) -> tuple[TableProgress, ...]:
        """The tables that need a manual retry."""
        return tuple(t for t in self.progress.tables if needs_manual_retry(t))


@dataclass(frozen=True, slots=True)
class Suspended:
    """The manifest suspends the pipeline, since before the run or since a change during the run."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """`Engine.stop` was called. ``progress`` is None if the pipeline had not started."""

    progress: Progress | None


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The time ended before the goal was reached. ``progress`` is None if the pipeline had not started."""

    progress: Progress | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The pipeline cannot start. Nothing was changed.

    ``problems`` are those of the source, or the one that ``error`` reports.
    """

    problems: tuple[Problem, ...]
    error: NeedsOperator | None = None

    @classmethod
    def by(cls, error: NeedsOperator) -> Self:
        """Return the outcome of a start that raised ``error``."""
        return cls((Problem(Severity.ERROR, error.code, error.message, error.hint),), error)

    def __str__(self) -> str:
        return "\n".join(f"{p.message} [{p.code}]" for p in self.problems)


Outcome: TypeAlias = CaughtUp | TablesErrored | Suspended | Stopped | TimedOut | Refused


class EngineObserver:
    """Receives the events of `Engine.run`, in the thread that called it. Each method here does nothing.

    An exception that a method raises stops the pipeline, and `Engine.run` raises it.
    """

    def step(self, description: str) -> AbstractContextManager[None]:
        """Return a context manager that is entered for one step of the start, such as the start of Spark."""
        return nullcontext()

    def waits(self, problem: Problem) -> None:
        """Handle the reason for which a start waits before its next attempt, once for each attempt."""

    def running(self) -> AbstractContextManager[None]:
        """Return a context manager that is entered while a pipeline runs.

        A run has several pipelines one after the other if the destination's Secret changes.
        """
        return nullcontext()

    def progress(self, progress: Progress) -> None:
        """Handle the newest progress, several times a second while a pipeline runs."""

    def refused(self, refusal: Refused) -> None:
        """Handle a start that was refused. In a pod, a start may be repeated before `Engine.run` returns."""
