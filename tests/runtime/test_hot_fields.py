"""Every field of the manifests whose change is Hot is taken up by a running engine, or is the operator's alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import pytest
from tests.runtime.manifest_text import manifests

from levada.runtime.config import PipelineConfig
from levada.runtime.config_ref import FIXED, require_same
from levada.runtime.host.assembly import pipeline_config
from levada.spec import Change, PipelineSpec, TableSyncSpec
from levada.spec.model import CHANGE, Model
from levada.values import QualifiedTable

NOT_THE_ENGINES = {
    "suspend": "`levada run` ends: see test_suspend of the scenarios",
    "approval": "read with each changed manifest: see test_following",
    "approvalAbove": "read with each changed manifest: see the faults' test_approval",
    "rollback": "of the operator alone",
    "health.lagProbeSeconds": "of the operator's Jobs",
    "deletionPolicy.slot": "read by `levada cleanup`",
    "deletionPolicy.state": "read by `levada cleanup`",
    "deletionPolicy.publication": "read by `levada cleanup`",
    "deletionPolicy.destinationTables": "read by `levada cleanup`",
    "deletionPolicy.cleanupTimeoutSeconds": "of the operator's Job",
    "staging.volumeClaim.size": "the operator asks the volume's claim for more",
    "table.custom.options": "needs another package: see test_table_settings",
    "table.copy.driver": "the operator makes the other driver",
    "table.copy.resources.requests": "of the operator's Job",
    "table.copy.resources.limits": "of the operator's Job",
    "table.copy.executors": "of the operator's Job",
}
"""Hot fields that a running engine has nothing to take up of, and who does."""

CHANGED: dict[str, dict[str, Any]] = {
    "tables.include": {"tables": {"include": [{"schema": "other"}]}},
    "tables.include[].schema": {"tables": {"include": [{"schema": "other"}]}},
    "tables.include[].name": {"tables": {"include": [{"schema": "public", "name": "orders"}]}},
    "tables.include[].where": {"tables": {"include": [{"schema": "public", "name": "orders", "where": "id > 7"}]}},
    "tables.exclude": {"tables": {"include": [{"schema": "public"}], "exclude": [{"schema": "s"}]}},
    "tables.exclude[].schema": {"tables": {"include": [{"schema": "public"}], "exclude": [{"schema": "s"}]}},
    "tables.exclude[].name": {"tables": {"include": [{"schema": "public"}], "exclude": [{"schema": "s", "name": "x"}]}},
    "tables.onUnstreamable": {"tables": {"include": [{"schema": "public"}], "onUnstreamable": "Hold"}},
    "tables.keyless": {"tables": {"include": [{"schema": "public"}], "keyless": "Append"}},
    "tables.onPartitionGone": {"tables": {"include": [{"schema": "public"}], "onPartitionGone": "Keep"}},
    "copy.maxConcurrentTables": {"copy": {"maxConcurrentTables": 7}},
    "copy.mode": {"copy": {"mode": "None"}},
    "copy.exceptFor": {"copy": {"exceptFor": [{"schema": "other"}]}},
    "copy.exceptFor[].schema": {"copy": {"exceptFor": [{"schema": "other"}]}},
    "copy.exceptFor[].name": {"copy": {"exceptFor": [{"schema": "public", "name": "orders"}]}},
    "copy.connectionsPerTable": {"copy": {"connectionsPerTable": 7}},
    "batch.maxFillMs": {"batch": {"maxFillMs": 7}},
    "batch.maxBytes": {"batch": {"maxBytes": "7Mi"}},
    "freshnessSeconds": {"freshnessSeconds": 7},
    "retries.maxAttempts": {"retries": {"maxAttempts": 7}},
    "retries.delaySeconds": {"retries": {"delaySeconds": 7}},
    "retries.maxDelaySeconds": {"retries": {"maxDelaySeconds": 777}},
    "health.progressDeadlineSeconds": {"health": {"progressDeadlineSeconds": 77}},
    **{
        f"guard.{measure}.{policy}": {"guard": {measure: {policy: limit}}}
        for measure, limit in {
            "retainedWal": "1Gi",
            "retainedWalPercent": 7,
            "staged": "1Gi",
            "stagingFree": "1Gi",
        }.items()
        for policy in ("warn", "pauseCopies", "parkSlowest", "releaseSlot")
        if policy != "releaseSlot" or measure.startswith("retained")
    },
    "cuts.everySeconds": {"cuts": {"everySeconds": 7}},
    "cuts.keep": {"cuts": {"everySeconds": 60, "keep": 7}},
    "verify.everyHours": {"verify": {"everyHours": 7}},
    "verify.samplePercent": {"verify": {"samplePercent": 7}},
    "verify.beforeSwap": {"verify": {"beforeSwap": True}},
    "verify.continuous.everyHours": {"verify": {"continuous": {"everyHours": 7}}},
    "verify.continuous.maxSourceLoadPercent": {"verify": {"continuous": {"maxSourceLoadPercent": 7}}},
    "table.suspend": {"table": {"suspend": True}},
    "table.onUnstreamable": {"table": {"onUnstreamable": "Hold"}},
    "table.onPartitionGone": {"table": {"onPartitionGone": "Keep"}},
    "table.verify.everyHours": {"table": {"verify": {"everyHours": 7}}},
    "table.verify.samplePercent": {"table": {"verify": {"samplePercent": 7}}},
    "table.verify.beforeSwap": {"table": {"verify": {"beforeSwap": True}}},
    "table.verify.continuous.everyHours": {"table": {"verify": {"continuous": {"everyHours": 7}}}},
    "table.keyless": {"table": {"keyless": "Append"}},
    "table.copy.mode": {"table": {"copy": {"mode": "None"}}},
    "table.copy.where": {"table": {"copy": {"where": "id > 7"}}},
    "table.verifyNonce": {"table": {"verifyNonce": 7}},
    "table.retryNonce": {"table": {"retryNonce": 7}},
    "table.iceberg.partitionBy": {"table": {"iceberg": {"partitionBy": ["day(at)"]}}},
    "table.iceberg.sortBy": {"table": {"iceberg": {"sortBy": ["at desc"]}}},
}
"""A change of each of the others."""


def hot_fields(model: type[Model], path: str = "") -> Iterator[str]:
    """Yield the path of every field below a model whose change is Hot, those of nested objects included."""
    for name, field in model.model_fields.items():
        where = f"{path}{field.alias or name}"
        below = list(models(field.annotation))
        assert isinstance(field.json_schema_extra, dict)
        hot = field.json_schema_extra[CHANGE] == Change.HOT
        many = get_origin(field.annotation) is tuple
        if hot and (many or not below):
            yield where
        for part in below:
            yield from hot_fields(part, f"{where}[]." if many else f"{where}.")


def models(annotation: Any) -> Iterator[type[Model]]:
    """Yield the models in a type."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        yield annotation
    elif get_origin(annotation) in (tuple, UnionType) or get_args(annotation):
        for part in get_args(annotation):
            yield from models(part)


HOT = [*hot_fields(PipelineSpec), *hot_fields(TableSyncSpec, "table.")]


def config(folder: Path, change: dict[str, Any]) -> PipelineConfig:
    """Return the engine's configuration under a change of the manifest."""
    spec = {"tables": {"include": [{"schema": "public"}]}, **change}
    said = {"table": {"name": "orders"}, **spec.pop("table", {})}
    return pipeline_config(manifests(said, **spec), work_dir=folder)


def test_every_hot_field_has_its_place() -> None:
    """A field that is made Hot must be taken up by the engine, or be named with who does it."""
    assert set(HOT) == CHANGED.keys() | NOT_THE_ENGINES.keys()


@pytest.mark.parametrize("field", CHANGED)
def test_it_reaches_what_a_running_engine_reads(field: str, tmp_path: Path) -> None:
    """A change of the field is a change of the configuration, in a part that a running pipeline can change.

    The readers of the configuration read the new one: see test_changes, and test_nothing_keeps_a_configuration in it.
    """
    before, after = config(tmp_path, {}), config(tmp_path, CHANGED[field])
    assert before != after
    require_same(before, after)


def test_equal_manifests_are_equal_configurations(tmp_path: Path) -> None:
    """So that a difference is a change."""
    assert config(tmp_path, {}) == config(tmp_path, {})
    assert config(tmp_path, {}).table(QualifiedTable("public", "orders")) is not None
    assert set(FIXED) <= set(PipelineConfig.__slots__)
