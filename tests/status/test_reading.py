"""Documents of another process, which may be of another version or no documents at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.runtime import samples

from levada.errors import NeedsOperator
from levada.runtime.tables.resync_steps import Step
from levada.status import (
    PipelineState,
    Progress,
    ResyncStep,
    RetryPolicy,
    SlotProgress,
    TablePhase,
    read_progress,
    read_slot,
)
from levada.stores.phases import TableReplicationPhase
from levada.values import Lsn, TableId, TableMode

GOLDEN = Path(__file__).parent / "golden"
DOCUMENTS = sorted(file.name for file in GOLDEN.iterdir())


def full() -> dict[str, Any]:
    """Return a document in which every field has a value."""
    document: dict[str, Any] = json.loads((GOLDEN / "full.json").read_text())
    return document


def added(value: Any) -> Any:
    """Return the document with another field in each of its objects."""
    if isinstance(value, dict):
        return {key: added(item) for key, item in value.items()} | {"addedLater": [1]}
    return [added(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_survives_reading_and_writing(name: str) -> None:
    """A reader gets every field, and writes the same bytes again."""
    document = json.loads((GOLDEN / name).read_text())
    assert json.dumps(read_progress(document).to_json()) == json.dumps(document)


def test_values_are_typed() -> None:
    """Positions, times and closed lists of values are values of their types."""
    progress = read_progress(full())
    table, copied, parked = progress.tables
    assert progress.state is PipelineState.RUNNING
    assert progress.capture.received_lsn == Lsn(0x1_0000_00FF)
    assert isinstance(table.id, TableId)
    assert table.mode is TableMode.CHANGELOG
    assert table.resync is not None
    assert table.resync.step is ResyncStep.COPYING
    assert table.job_since == samples.seconds(-5)
    assert copied.phase is TablePhase.DATA_SYNC
    assert parked.error is not None
    assert parked.error.retry_policy is RetryPolicy.MANUAL_RETRY


def test_fields_of_a_newer_engine_are_ignored() -> None:
    """A newer engine may add fields and values without a new version of the document."""
    document = added({k: v for k, v in full().items() if k != "tablesByPhase"})
    assert read_progress(document) == read_progress(full())
    document["tables"][0]["phase"] = "Resting"
    newer = read_progress(document)
    assert newer.tables[0].phase == "Resting"
    assert newer.tables_by_phase == {"Resting": 1, "DataSync": 1, "Errored": 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lagSeconds", float("nan")),
        ("lagSeconds", float("inf")),
        ("retryNonce", 10**400),
        ("pendingRows", -(2**63) - 1),
        ("lastCommitAt", "0001-01-01T00:00:00+14:00"),
        ("lastCommitAt", "9999-12-31T23:59:59-14:00"),
    ],
)
def test_a_value_that_no_status_can_hold_is_refused(field: str, value: object) -> None:
    """A reader can compute with each number and each time, and write it into a Kubernetes object."""
    document = full()
    document["tables"][0][field] = value
    with pytest.raises(NeedsOperator) as refused:
        read_progress(document)
    assert refused.value.code == "progress_unreadable"


def test_missing_fields_and_nulls_are_unknown() -> None:
    """An older engine lacks fields. The rest of its document counts."""
    table = {"id": 5, "schema": "public", "name": "orders", "phase": "Ready", "retryNonce": None, "note": None}
    plain = {"pipeline": "shop", "state": "Running", "startedAt": "2026-01-31T12:00:00Z", "at": "2026-01-31T12:00:00Z"}
    progress = read_progress({**plain, "slot": {"name": "s"}, "capture": None, "tables": [table]})
    assert progress.slot == SlotProgress("s")
    assert not progress.capture.connected
    assert progress.tables[0].retry_nonce == 0
    assert progress.ready


def test_derived_fields_are_not_believed() -> None:
    """A document cannot be ready if one of its tables is not."""
    document = full() | {"ready": True, "tablesByPhase": {"Ready": 3}}
    progress = read_progress(document)
    assert not progress.ready
    assert progress.tables_by_phase["Errored"] == 1


@pytest.mark.parametrize("version", [0, 2, "1", 1.5, [1], "two"])
def test_another_version_is_an_error_that_names_it(version: Any) -> None:
    """The meaning of its fields is unknown, so none of them counts."""
    with pytest.raises(NeedsOperator, match="reads version 1") as raised:
        read_progress(full() | {"version": version})
    assert raised.value.code == "progress_version"
    assert repr(version) in raised.value.message


GARBAGE: dict[str, Callable[[], Any]] = {
    "null": lambda: None,
    "a list": list,
    "a text": lambda: "Running",
    "an empty object": dict,
    "starting": lambda: {"state": "Starting"},
    "tables are a number": lambda: full() | {"tables": 5},
    "a table without a name": lambda: full() | {"tables": [{"id": 1, "schema": "public", "phase": "Ready"}]},
    "a table is a text": lambda: full() | {"tables": ["orders"]},
    "a position": lambda: full() | {"capture": {"receivedLsn": 5}},
    "no position": lambda: full() | {"capture": {"receivedLsn": "over there"}},
    "a number": lambda: full() | {"epoch": "three"},
    "a time without its zone": lambda: full() | {"at": "2026-01-31T12:00:00"},
    "an error": lambda: full() | {"error": "broken"},
    "a huge id": lambda: full() | {"epoch": float("nan")},
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_one_error(name: str) -> None:
    """Whatever a server answers, the caller has one error to expect. It names the field and none of the values."""
    with pytest.raises(NeedsOperator) as raised:
        read_progress(GARBAGE[name]())
    assert raised.value.code == "progress_unreadable"
    assert "over there" not in raised.value.message


def test_a_sample_of_the_slot_is_read_alone() -> None:
    """``levada lag -o json`` prints it without the rest of the document."""
    sample = samples.slot()
    assert read_slot(sample.to_json()) == sample
    for garbage in (None, [], {"lagBytes": 5}, {"name": "s", "lagBytes": "much"}):
        with pytest.raises(NeedsOperator, match="not a progress document"):
            read_slot(garbage)


def test_the_document_has_the_names_that_the_engine_uses() -> None:
    """Each phase of a table and each step of a resync is a value of the document's lists."""
    assert {kind.name for kind in get_args(TableReplicationPhase)} == set(TablePhase)
    shown = set(Step) - {Step.NO_COPY, Step.ABANDONED}
    assert {step.value for step in shown} == set(ResyncStep) - {ResyncStep.GIVEN_UP}


def test_ready_is_derived_when_a_part_is_replaced() -> None:
    """A failed pipeline is not ready, whatever it was before."""
    running: Progress = samples.progress()
    assert running.ready
    assert not replace(running, state=PipelineState.FAILED).ready
    assert not replace(running, tables=(samples.table(phase="Errored"),)).ready
