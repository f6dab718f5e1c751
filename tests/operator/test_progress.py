"""The operator's reading of the drivers' answers."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from tests.operator.decisions import conditions, statuses
from tests.operator.samples import (
    DEFAULTS,
    NOON,
    at,
    document,
    error_document,
    merge,
    owned_body,
    pipeline,
    pod,
    pod_body,
    progress,
    running,
    table_document,
)

from levada.status import TablePhase
from levada_operator.app.fetch import Answer
from levada_operator.app.progress_reader import ProgressReader, read_answer
from levada_operator.app.queue import KeyedQueue
from levada_operator.app.sweeper import Sweeper
from levada_operator.app.update_turns import UpdateTurns
from levada_operator.app.watchdog import Watchdog
from levada_operator.decide.phase import TableSyncPhase
from levada_operator.decide.reconcile import Memos, reconcile
from levada_operator.decide.slot import slot_sample
from levada_operator.kube.interface import Cluster, Listing
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.objects import PipelineKey
from levada_operator.observe.observed import Observed
from levada_operator.observe.progress import ProgressReport

SHOP = PipelineKey("data", "shop")


class OnePipeline:
    """An API server with one Pipeline and its driver's pod."""

    def list_objects(self, kind: str, *_: str | None, metadata: bool = False) -> Listing:
        """Return the objects of a kind."""
        known = {
            "Pipeline": merge(pipeline(), {"metadata": {"resourceVersion": "1"}}),
            "StatefulSet": owned_body("StatefulSet", "shop-driver"),
            "Pod": pod_body(),
        }
        return Listing([known[kind]] if kind in known else [])


class Answers:
    """Sweeps, each with another answer of the driver."""

    def __init__(self) -> None:
        self._cache = ClusterCache(DEFAULTS)
        self._answer: Mapping[str, Any] | None = None
        self._executor = ThreadPoolExecutor(1)
        self._sweeper = Sweeper(
            cast(Cluster, OnePipeline()),
            self._cache,
            KeyedQueue(),
            UpdateTurns(self._cache, timedelta(minutes=5)),
            Watchdog(time.monotonic),
            self._executor,
            namespaces=(),
            progress=ProgressReader(self._cache, self._fetch, self._executor),
            detect_storage=False,
        )

    async def _fetch(self, namespace: str, address: str, port: int) -> Answer:
        return Answer(json.dumps(self._answer).encode())

    def after(self, answer: Mapping[str, Any] | None, seconds: float = 0.0) -> Observed:
        """Return what is observed after a sweep in which the driver answers so."""
        self._answer = answer
        asyncio.run(self._sweeper.sweep({}, at(seconds)))
        observed = self._cache.observe(SHOP, at(seconds))
        assert observed is not None
        return observed


GARBAGE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "starting": {"state": "Starting"},
    "another server": {"status": "ok", "slot": []},
    "a table without a name": document({"schema": "public", "phase": "Ready"}),
    "a position": document(table_document(appliedLsn="over there")),
    "a number": document(table_document(lagSeconds="soon")),
    "tables are a text": document() | {"tables": "orders"},
    "another version": document() | {"version": 2},
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_of_a_driver_is_no_answer(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The sweep goes on, the last progress stays with its time, and the log says once what is wrong."""
    caplog.set_level(logging.WARNING, logger="levada_operator")
    answers = Answers()
    answers.after(document())
    for seconds in (10, 20):
        observed = answers.after(GARBAGE[name], seconds)
        assert observed.report is not None
        assert observed.report.fetched_at == NOON
        assert "[progress_" in observed.unreadable
    assert caplog.text.count("cannot read the progress of the driver of data/shop") == 1
    assert "over there" not in caplog.text
    observed = answers.after(document(), 30)
    assert observed.report is not None
    assert observed.report.fetched_at == at(30)
    assert observed.unreadable == ""


ODD: tuple[Any, ...] = (
    None, True, -1, 2**63, 10**300, 1e308, float("inf"), "", "x" * 5000, "\x00", "\ud800", [], {}, [None], [{}],
    {"a": 1}, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "0/FFFFFFFFFF",
)  # fmt: skip


def _below(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each field of a document."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from _below(value[key], (*path, key))


def test_whatever_a_driver_answers_is_decided() -> None:
    """Its image is the tenant's. Each field may have any value: the status is written, and it is JSON in UTF-8."""
    whole = document(table_document(), table_document("events"))
    for number, path in enumerate(_below(whole)):
        for odd in ODD[number % 8 :: 8]:
            answer = deepcopy(whole)
            at_path: Any = answer
            for key in path[:-1]:
                at_path = at_path[key]
            at_path[path[-1]] = odd
            report = read_answer(json.dumps(answer).encode(), NOON)
            if not isinstance(report, ProgressReport):
                continue
            for write in reconcile(replace(running(), report=report), Memos()).statuses:
                json.dumps(write.status, allow_nan=False, ensure_ascii=False).encode()


def test_an_unreadable_driver_has_no_ready_table() -> None:
    """A driver of a newer version runs on. Its tables are Stale, and the Pipeline's condition says why."""
    unreadable = Answers().after(document() | {"version": 2}).unreadable
    seen = running(report=progress(fetched=-61), unreadable=unreadable)
    condition = conditions(seen)["Replicating"]
    assert condition.reason == "ProgressStale"
    assert "version 2, and this program reads version 1 only [progress_version]" in condition.message
    assert "same version of Levada" in condition.message
    _, table = statuses(seen)
    assert table["phase"] == "Stale"


def test_fields_and_values_of_a_newer_driver_are_no_error() -> None:
    """A table in a phase that only the driver knows is Pending, and the rest counts."""
    newer = document(table_document(phase="Resting", added=1), added=[1], slot={"added": {}})
    observed = Answers().after(newer)
    assert observed.progress is not None
    assert observed.progress.tables[0].phase == "Resting"
    _, table = statuses(running(report=observed.report))
    assert table["phase"] == "Pending"


def test_a_damaged_sample_of_the_slot_is_no_missing_slot() -> None:
    """The text of a Job's pod may be cut. Then nothing is known of the slot."""
    state = {"name": "lag", "state": {"terminated": {"exitCode": 0, "message": '{"lagBytes": "much"}'}}}
    probe = pod("lag", "shop-lag-1-x", phase="Succeeded", containerStatuses=[state])
    sample = slot_sample(running(report=None, pods=(probe,)))
    assert sample is not None
    assert sample.report is None
    assert "[progress_unreadable]" in sample.failure
    deep = {**state, "state": {"terminated": {"exitCode": 0, "message": "[" * 4096}}}
    nested = pod("lag", "shop-lag-1-x", phase="Succeeded", containerStatuses=[deep])
    assert slot_sample(running(report=None, pods=(nested,))) is None


def test_the_status_has_each_phase_of_the_engine() -> None:
    """The phases of the CRD are those of the engine, and four of the operator's own."""
    assert {p.value for p in TableSyncPhase} - set(TablePhase) == {"Pending", "Stale", "Suspended", "Removed"}
    assert set(TablePhase) <= {p.value for p in TableSyncPhase}


def test_solutions_are_commands_that_run_where_kubectl_does() -> None:
    """The manifest is a file in the driver's pod. A driver that does not report it leaves the solution as it is."""
    error = error_document(solution="resolve the cause, then: levada retry MANIFEST public.orders")
    words = {"arguments": "/etc/levada/pipeline.yaml", "prefix": "kubectl -n data exec shop-driver-0 -c driver --"}
    parked = table_document(phase="Errored", error=error)
    _, table = statuses(running(report=Answers().after(document(parked, manifest=words)).report))
    assert table["error"]["solution"] == (
        "resolve the cause, then: kubectl -n data exec shop-driver-0 -c driver --"
        " levada retry /etc/levada/pipeline.yaml public.orders"
    )
    _, table = statuses(running(report=Answers().after(document(parked)).report))
    assert table["error"]["solution"] == error["solution"]
