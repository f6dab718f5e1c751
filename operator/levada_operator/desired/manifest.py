"""The accepted manifest in a ConfigMap: what the driver reads, and the operator's memory of what it accepted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import yaml

from levada.errors import InvalidManifest
from levada.spec import Change, Manifests, TableSyncManifest, TableSyncSpec, load_manifests
from levada.spec.model import CHANGE, Model
from levada_operator.desired.owner import Owner, build_object
from levada_operator.desired.spark import build_executor_template, spark_properties
from levada_operator.names import digest, manifest_name

MANIFEST_FILE: Final = "pipeline.yaml"
EXECUTOR_FILE: Final = "executor.yaml"
SPARK_FILE: Final = "spark.properties"
MAX_BYTES: Final = 1_000_000
"""What a ConfigMap holds, with room for its metadata."""


def build_manifest(owner: Owner) -> dict[str, Any]:
    """Return the ConfigMap; it is changed in place, and the driver's pod sees that without a restart."""
    data = {MANIFEST_FILE: manifest_text(owner.manifests)}
    if (template := build_executor_template(owner)) is not None:
        data |= {SPARK_FILE: spark_properties(owner), EXECUTOR_FILE: yaml.safe_dump(template, sort_keys=False)}
    return build_object(owner, "ConfigMap", "v1", manifest_name(owner.name), "manifest", {"data": data})


def manifest_text(manifests: Manifests) -> str:
    """Write a Pipeline and the TableSyncs that say something, as YAML documents."""
    overriding = sorted((t for t in manifests.table_syncs if has_overrides(t)), key=lambda t: t.metadata.name)
    documents = [_written(m) for m in (manifests.pipeline, *overriding)]
    return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True)


def read_manifest(body: Mapping[str, Any] | None) -> Manifests | None:
    """Return what a ConfigMap says was accepted, None if it says nothing that can be read."""
    text = ((body or {}).get("data") or {}).get(MANIFEST_FILE)
    return _read(text) if text else None


@lru_cache(maxsize=1000)
def _read(text: str) -> Manifests | None:
    try:
        return load_manifests(text)
    except InvalidManifest:
        # Of a newer operator, or touched by hand: the objects decide anew.
        return None


def has_overrides(table_sync: TableSyncManifest) -> bool:
    """Tell whether a TableSync differs from none at all; thousands that do not would fill the ConfigMap."""
    spec = table_sync.spec
    none = TableSyncSpec(pipelineRef=spec.pipeline_ref, table=spec.table)  # type: ignore[call-arg]  # the rest is default
    return spec != none


def restart_digest(manifests: Manifests) -> str:
    """Return the digest of all of the Pipeline's spec that a running driver does not take up."""
    spec = manifests.pipeline.spec
    return digest(yaml.safe_dump(_restart_fields(spec, spec.model_dump(mode="json", by_alias=True)), sort_keys=True))


def _restart_fields(model: Model, dumped: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value, written = getattr(model, name), dumped[field.alias or name]
        assert isinstance(field.json_schema_extra, dict)
        if isinstance(value, Model):
            kept[field.alias or name] = _restart_fields(value, written)
        elif field.json_schema_extra[CHANGE] != Change.HOT:
            kept[field.alias or name] = written
    return {k: v for k, v in kept.items() if v != {}}


def _written(model: Model) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
