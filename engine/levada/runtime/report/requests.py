"""Requests to the supervisor of a pipeline, from any thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from levada.errors import NeedsOperator, Transient
from levada.runtime.config import PipelineConfig
from levada.runtime.inbox import Ask, Inbox


def ask(inbox: Inbox, config: PipelineConfig, ended: Callable[[], bool], request: Ask[None]) -> None:
    """Send a request to the supervisor and wait for its answer. Raise its refusal.

    ``ended`` returns True once the pipeline has ended. Raise Transient ``engine_not_running`` if it has ended, and
    ``engine_unreachable`` without an answer.
    """
    answer_s = config.limits.cuts.answer_s
    deadline = time.monotonic() + answer_s

    def check() -> None:
        if ended():
            raise Transient(
                "engine_not_running",
                f"pipeline {config.name} has ended, and answers no request",
                hint="see its log and start it again, then send the request again",
            )
        if time.monotonic() > deadline:
            raise Transient(
                "engine_unreachable",
                f"pipeline {config.name} did not answer in {answer_s:g} s, and may still do it",
                hint="see the log of the engine, then run the command again",
            )

    check()
    inbox.ask(request).wait(check)


def not_started(pipeline: str, so: str) -> NeedsOperator:
    """Return the error of a call that needs a started pipeline. ``so`` is what the call cannot do."""
    return NeedsOperator(
        "pipeline_not_started",
        f"pipeline {pipeline} was not started, so {so}",
        hint="call start() first, or use the pipeline in a with statement",
    )
