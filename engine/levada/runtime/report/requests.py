"""Requests to the supervisor of a pipeline, from any thread."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Final

from levada.errors import LevadaError, NeedsOperator, Transient
from levada.runtime.config import PipelineConfig
from levada.runtime.stages.messages import Report

_POLL_S: Final = 0.1


def ask(
    inbox: queue.SimpleQueue[Report],
    config: PipelineConfig,
    ended: Callable[[], bool],
    request: Callable[[Callable[[LevadaError | None], None]], Report],
) -> None:
    """Send a request to the supervisor and wait for its answer. Raise its refusal.

    ``ended`` returns True once the pipeline has ended. Raise Transient ``engine_not_running`` if it had ended before,
    and ``engine_unreachable`` without an answer.
    """
    if ended():
        raise Transient(
            "engine_not_running",
            f"pipeline {config.name} has ended, and takes no request",
            hint="start it again, then send the request again",
        )
    answers: queue.SimpleQueue[LevadaError | None] = queue.SimpleQueue()
    inbox.put(request(answers.put))
    answer_s = config.limits.cuts.answer_s
    deadline = time.monotonic() + answer_s
    while True:
        try:
            refusal = answers.get(timeout=_POLL_S)
        except queue.Empty:
            if ended() or time.monotonic() > deadline:
                raise Transient(
                    "engine_unreachable",
                    f"pipeline {config.name} did not answer in {answer_s:g} s, and may still do it",
                    hint="see the log of the engine, then run the command again",
                ) from None
            continue
        if refusal is not None:
            raise refusal
        return


def not_started(pipeline: str, so: str) -> NeedsOperator:
    """Return the error of a call that needs a started pipeline. ``so`` is what the call cannot do."""
    return NeedsOperator(
        "pipeline_not_started",
        f"pipeline {pipeline} was not started, so {so}",
        hint="call start() first, or use the pipeline in a with statement",
    )
