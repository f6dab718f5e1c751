"""Each request to a pipeline object with arguments that a program without types may give, and before the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.rigs.pipeline import Only, Rig, public
from tests.rigs.replicated import Replicated, T, replicated

from levada.errors import NeedsOperator, Transient
from levada.runtime.erasures.eraser import ErasureOptions
from levada.runtime.inbox import Inbox
from levada.runtime.pipeline import Pipeline
from levada.runtime.pipeline_requests import PipelineRequests
from levada.runtime.report.requests import ask
from levada.runtime.stages.messages import ProgressWanted
from levada.stores import MemoryStore

__all__ = ["replicated"]

KEYS = ErasureOptions(["1"])
Call = Callable[[Any], object]

WRONG_TABLES: dict[str, Call] = {
    "retry": lambda p: p.retry(7),
    "retry of a table": lambda p: p.retry(T),
    "retry of a text": lambda p: p.retry(""),
    "resync": lambda p: p.resync(7),
    "resync of a mapping": lambda p: p.resync([{"schema": "public"}]),
    "resync of another": lambda p: p.resync([public("other")]),
    "verify": lambda p: p.verify(7),
    "erase": lambda p: p.erase("public.t", KEYS),
}
WRONG_TYPES: dict[str, Call] = {
    "verify": lambda p: p.verify(T, 7),
    "verify until": lambda p: p.verify(T, None, 7),
    "erase": lambda p: p.erase(T, ["1"]),
    "erase until": lambda p: p.erase(T, KEYS, 7),
}
NEED_A_START: dict[str, Call] = {
    "verify": lambda p: p.verify(T),
    "erase": lambda p: p.erase(T, KEYS),
    "drop_cut": lambda p: p.drop_cut("a"),
}


def refusal(call: Call, pipeline: Pipeline) -> str:
    """Return the code of the error that a call raises."""
    with pytest.raises(NeedsOperator) as refused:
        call(pipeline)
    return refused.value.code


def test_arguments_of_other_types(replicated: Replicated) -> None:
    """Each request names what it was given, and the pipeline goes on."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    replicated.start()
    pipeline = replicated.pipeline
    assert pipeline is not None
    for name, call in WRONG_TABLES.items():
        assert refusal(call, pipeline) == "unknown_table", name
    for name, call in WRONG_TYPES.items():
        with pytest.raises(TypeError, match="must be"):
            call(pipeline)
        assert name
    seven: Any = 7
    assert refusal(lambda p: p.reconfigure(seven), pipeline) == "config_invalid"
    assert refusal(lambda p: p.request_cut(seven), pipeline) == "cut_name_invalid"
    replicated.db.execute("INSERT INTO t VALUES (1)")
    assert replicated.verify().equal
    with pytest.raises(NeedsOperator, match="not a PipelineConfig: 7"):
        Pipeline(seven, store=MemoryStore("shop"), destination=pipeline._destination)


def test_requests_before_the_first_start(rig: Rig) -> None:
    """Those that the store takes wait there for the start. The others say what they need. No method is left out."""
    rig.change(selects=Only("orders"))
    pipeline = Pipeline(rig.config, store=rig.store(), destination=rig.destination)
    orders = public("orders")
    assert (pipeline.retry(), pipeline.retry([orders])) == ((), ())
    assert (pipeline.resync(), pipeline.resync([orders])) == ((orders,), (orders,))
    for name, call in WRONG_TABLES.items():
        wanted = "pipeline_not_started" if name in NEED_A_START else "unknown_table"
        assert refusal(call, pipeline) == wanted, name
    for name, call in NEED_A_START.items():
        assert refusal(call, pipeline) == "pipeline_not_started", name
    assert refusal(lambda p: p.request_cut("a"), pipeline) == "cuts_unsupported", "of this destination"
    assert pipeline.cuts() == ()
    tried = {"retry", "resync", *NEED_A_START, "request_cut", "cuts"}
    assert {name for name in dir(PipelineRequests) if not name.startswith("_")} == tried | {"cleanup", "config"}
    rig.running = pipeline
    pipeline.start()
    rig.wait_caught_up()
    assert rig.destination.copies_of("orders") == 1, "the requested copy is the first"


def test_a_pipeline_that_ends_before_it_answers(rig: Rig) -> None:
    """The error says that it has ended, and not that it may still answer."""
    ended = iter((False, True))
    with pytest.raises(Transient) as refused:
        ask(Inbox(), rig.config, lambda: next(ended), ProgressWanted())
    assert refused.value.code == "engine_not_running"
