"""The page on GitOps: Argo CD's health script, run by an interpreter of Lua, agrees with kstatus at each moment."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lupa import LuaRuntime
from tests.operator.kstatus import kstatus
from tests.operator.samples import (
    at,
    error_document,
    observed,
    pipeline,
    pod,
    progress,
    running,
    table_document,
    table_sync,
    waiting,
    written,
)

from levada_operator.decide.reconcile import reconcile
from levada_operator.observe.observed import Observed

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "gitops.md"
SCRIPT = re.search(r"```lua\n(.*?)```", PAGE.read_text(), re.DOTALL)
ARGO = {"Current": "Healthy", "InProgress": "Progressing", "Failed": "Degraded", "Terminating": "Progressing"}
SUSPENDED = pipeline(spec={"suspend": True})

CASES: dict[str, tuple[Observed, str]] = {
    "streams": (running(), "Healthy"),
    "copies": (running(report=progress(table_document(phase="DataSync"))), "Progressing"),
    "new": (observed(), "Progressing"),
    "a driver that does not answer": (running(report=progress(fetched=-61)), "Progressing"),
    "invalid": (running(body=pipeline(spec={"store": {}})), "Degraded"),
    "never accepted": (observed(pipeline(spec={"store": {}})), "Degraded"),
    "image": (running(report=None, pods=(pod(**waiting("driver", "ImagePullBackOff", "no")),)), "Progressing"),
    "draining": (running(body=SUSPENDED), "Suspended"),
    "suspended": (running(body=SUSPENDED, pods=()), "Suspended"),
    "changed": (running(body=pipeline(spec={"freshnessSeconds": 9})), "Progressing"),
    "deleted": (running(body=pipeline(metadata={"deletionTimestamp": written(at(-5))})), "Progressing"),
}


def health(body: dict[str, Any]) -> tuple[str, str]:
    """Return the status and the message that the script of the page has for an object."""
    assert SCRIPT is not None
    lua = LuaRuntime(unpack_returned_tuples=True)
    script = lua.eval("function(obj) " + SCRIPT[1] + " end")
    found = script(lua.table_from(body, recursive=True))
    return found.status, found.message


@pytest.mark.parametrize("name", CASES)
def test_argo_cd_reads_what_kstatus_does(name: str) -> None:
    """The script has the status of kstatus, and another one for a suspended Pipeline."""
    seen, expected = CASES[name]
    (status,) = (w.status for w in reconcile(seen).statuses if w.key.kind == "Pipeline")
    metadata = {"deletionTimestamp": written(at(-5))} if seen.pipeline.deleting_since else {}
    body = pipeline(status=status, metadata=metadata)
    found, message = health(body)
    assert found == expected
    assert message
    assert expected == "Suspended" or found == ARGO[kstatus(body)]


def test_spec_that_the_operator_has_not_seen_is_progressing() -> None:
    """Neither an object without a status nor one with the status of an earlier generation is healthy."""
    (status,) = (w.status for w in reconcile(running()).statuses if w.key.kind == "Pipeline")
    for body in (
        pipeline(),
        pipeline(status={"observedGeneration": -1}),
        pipeline(status=status, metadata={"generation": 2}),
    ):
        assert health(body)[0] == "Progressing"


def test_table_syncs_have_the_same_script() -> None:
    """A TableSync is healthy while it streams, suspended on request, and degraded if only a person can help."""
    errored = progress(table_document(phase="Errored", error=error_document()))
    for body, seen, expected in (
        (table_sync(), running(), "Healthy"),
        (table_sync(suspend=True), running(table_sync(suspend=True)), "Suspended"),
        (table_sync(), running(report=errored), "Degraded"),
        (table_sync(), replace(running(), report=None), "Progressing"),
    ):
        (status,) = (w.status for w in reconcile(seen).statuses if w.key.kind == "TableSync")
        assert health({**body, "status": status})[0] == expected
