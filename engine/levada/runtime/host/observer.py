"""The interface by which a caller follows a run of the engine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from levada.runtime.host.outcomes import Refused
from levada.status import Progress


class EngineObserver:
    """Receives the events of `Engine.run`, in the thread that called it. Each method here does nothing.

    An exception that a method raises stops the pipeline, and `Engine.run` raises it.
    """

    def step(self, description: str) -> AbstractContextManager[None]:
        """Return a context manager that is entered for one step of the start, such as the start of Spark."""
        return nullcontext()

    def running(self) -> AbstractContextManager[None]:
        """Return a context manager that is entered while a pipeline runs.

        A run has several pipelines one after the other if the destination's Secret changes.
        """
        return nullcontext()

    def progress(self, progress: Progress) -> None:
        """Handle the newest progress, several times a second while a pipeline runs."""

    def refused(self, refusal: Refused) -> None:
        """Handle a start that was refused. In a pod, a start may be repeated before `Engine.run` returns."""
