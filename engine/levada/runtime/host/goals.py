"""The goals at which a run of the engine ends, and the way in which errored tables count for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from levada.runtime.host.outcomes import CaughtUp, TablesErrored
from levada.runtime.pipeline import Pipeline
from levada.runtime.report.catch_up import needs_manual_retry
from levada.status import Progress

Goal: TypeAlias = Callable[[Pipeline], Callable[[Progress], bool]]
"""A function that is called with a started pipeline. It returns a predicate that is True once the goal is reached."""


def caught_up(pipeline: Pipeline) -> Callable[[Progress], bool]:
    """Return the predicate of `Pipeline.caught_up`. This is the goal of ``levada run --until caught-up``."""
    return pipeline.caught_up()


def judge(progress: Progress, reached: Callable[[Progress], bool]) -> CaughtUp | TablesErrored | None:
    """Return the outcome once every table that needs no manual retry has ``reached`` the goal, and None before. Pure.

    A table that needs a manual retry does not keep others from the goal. Suspended tables are ignored. Without any
    table, the goal is not reached, but it may raise an error.
    """
    running = tuple(t for t in progress.tables if not t.suspended)
    able = tuple(t for t in running if not needs_manual_retry(t))
    if not progress.tables:
        reached(progress)
        return None
    if able and not reached(replace(progress, tables=able)):
        return None
    return CaughtUp(progress) if len(able) == len(running) else TablesErrored(progress)
