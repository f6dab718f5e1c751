"""The ConfigMap with the accepted manifest, which the driver reads. The operator finds the last accepted spec in it."""

from __future__ import annotations

import base64
import binascii
import bz2
import re
from collections.abc import Container, Mapping
from typing import Any, Final

import yaml

from levada.errors import InvalidManifest
from levada.spec import (
    Change,
    Manifests,
    PipelineManifest,
    PipelineSpec,
    TableSyncManifest,
    TableSyncSpec,
    load_manifests,
    manifest_digest,
)
from levada.spec.model import CHANGE, Model
from levada.spec.running import Approval
from levada_operator.desired.owner import Owner, build_object
from levada_operator.desired.spark import build_executor_template, spark_properties
from levada_operator.memo import TextMemo
from levada_operator.names import ACCEPTED, MANIFEST_DIGEST, digest, manifest_name

MANIFEST_FILE: Final = "pipeline.yaml"
APPROVED_FILE: Final = "approved"
_APPROVAL: Final = re.compile("[0-9a-f]{16}")
EXECUTOR_FILE: Final = "executor.yaml"
SPARK_FILE: Final = "spark.properties"
MAX_BYTES: Final = 1_000_000
"""Limit of the manifest. A ConfigMap holds 1 MiB, its metadata included."""
MAX_VALUES: Final = 100_000
"""Limit of the values in a manifest, by an upper estimate. Each takes a kilobyte of memory while YAML is parsed."""
_BEGINNINGS: Final = ("\n", ",", "[", "{", "- ", "? ")
"""The characters of YAML of which each value needs one."""
MAX_RECORD: Final = 200_000
"""Limit of the record in an annotation. The annotations of an object hold 256 KiB."""
MAX_PIPELINE_RECORD: Final = 30_000
"""Limit of the record of the Pipeline alone, which is in another annotation of the same object."""


def build_manifest(owner: Owner) -> dict[str, Any]:
    """Return the ConfigMap. The kubelet updates the mounted file, so the driver reads a change without a restart."""
    text = manifest_text(owner.manifests)
    data = {MANIFEST_FILE: text}
    if owner.spec.approval is Approval.MANUAL and _APPROVAL.fullmatch(owner.approves):
        # The engine asks for the approval of a changed key of masks, because it alone reads that Secret.
        data[APPROVED_FILE] = owner.approves
    if (template := build_executor_template(owner)) is not None:
        data |= {SPARK_FILE: spark_properties(owner), EXECUTOR_FILE: _yaml(template)}
    body = build_object(owner, "ConfigMap", "v1", manifest_name(owner.name), "manifest", {"data": data})
    body["metadata"]["annotations"] = {MANIFEST_DIGEST: manifest_digest(text.encode())}
    return body


def manifest_text(manifests: Manifests) -> str:
    """Return a Pipeline and the TableSyncs with overrides as YAML documents."""
    overriding = sorted((t for t in manifests.table_syncs if has_overrides(t)), key=lambda t: t.metadata.name)
    documents = [_written(m) for m in (manifests.pipeline, *overriding)]
    return _yaml(*documents)


def _yaml(*documents: object, sort_keys: bool = False) -> str:
    # libyaml writes in a sixth of the time that Python needs, and every pass writes every manifest.
    return yaml.dump_all(documents, Dumper=yaml.CSafeDumper, sort_keys=sort_keys, allow_unicode=True)


def manifest_record(manifests: Manifests) -> dict[str, str]:
    """Return the annotation of the StatefulSet with the accepted manifest, or with its digest if it is too large.

    Without this record a ConfigMap that is deleted would let a change pass that waits for its approval.
    """
    text = manifest_text(manifests)
    record = _packed(text)
    return {ACCEPTED: record} if len(record) <= MAX_RECORD else {MANIFEST_DIGEST: manifest_digest(text.encode())}


def pipeline_record(pipeline: PipelineManifest) -> str:
    """Return a record of the Pipeline without TableSyncs, or an empty string if it is too large."""
    record = _packed(manifest_text(Manifests(pipeline)))
    return record if len(record) <= MAX_PIPELINE_RECORD else ""


def recorded_pipeline(record: str) -> PipelineManifest | None:
    """Return the Pipeline in a record, or None if it was changed by hand."""
    found = _unpacked(record, MAX_PIPELINE_RECORD)
    return None if found is None else found.pipeline


def accepted_manifest(config_map: Mapping[str, Any] | None, stateful_set: Mapping[str, Any] | None) -> Manifests | None:
    """Return the last accepted manifests: those of the ConfigMap, unless it was deleted or changed by hand."""
    if (text := _intact(config_map)) is not None:
        return _read(text)
    recorded = _unpacked(_annotation(stateful_set, ACCEPTED))
    if recorded is not None or lost_manifest(config_map, stateful_set):
        return recorded
    return read_manifest(config_map)


def lost_manifest(config_map: Mapping[str, Any] | None, stateful_set: Mapping[str, Any] | None) -> str:
    """Return the digest of the last accepted manifests if only that is left of them, else an empty string."""
    if _intact(config_map) is not None or _unpacked(_annotation(stateful_set, ACCEPTED)) is not None:
        return ""
    return _annotation(stateful_set, MANIFEST_DIGEST)


def _intact(config_map: Mapping[str, Any] | None) -> str | None:
    text = ((config_map or {}).get("data") or {}).get(MANIFEST_FILE, "")
    return text if text and _annotation(config_map, MANIFEST_DIGEST) in ("", manifest_digest(text.encode())) else None


def _annotation(body: Mapping[str, Any] | None, name: str) -> str:
    return str((((body or {}).get("metadata") or {}).get("annotations") or {}).get(name, ""))


def _packed(text: str) -> str:
    return base64.b64encode(bz2.compress(text.encode())).decode()


def _unpacked(record: str, limit: int = MAX_RECORD) -> Manifests | None:
    """Return the manifests in a record, or None if it was changed by hand."""
    if not record or len(record) > limit:
        return None
    try:
        # A kilobyte may unpack to gigabytes.
        unpacker = bz2.BZ2Decompressor()
        text = unpacker.decompress(base64.b64decode(record), MAX_BYTES + 1)
        return _read(text.decode()) if unpacker.eof and len(text) <= MAX_BYTES else None
    except (binascii.Error, OSError, ValueError):
        return None


def read_manifest(body: Mapping[str, Any] | None) -> Manifests | None:
    """Return the manifests in a ConfigMap, or None if it has none or they are invalid."""
    text = ((body or {}).get("data") or {}).get(MANIFEST_FILE)
    return _read(text) if text else None


def is_valid(manifests: Manifests) -> bool:
    """Return True if the manifests keep the rules and the limit of size, by reading them again."""
    return _read(manifest_text(manifests)) is not None


_TEXTS: Final = TextMemo[Manifests | None](3 << 20)


def is_too_large(text: str) -> bool:
    """Return True if a manifest has more than `MAX_BYTES` characters or `MAX_VALUES` values."""
    return len(text) > MAX_BYTES or sum(map(text.count, _BEGINNINGS)) > MAX_VALUES


def _read(text: str) -> Manifests | None:
    if is_too_large(text):
        return None
    return _TEXTS.get(text, lambda: _loaded(text))


def _loaded(text: str) -> Manifests | None:
    try:
        return load_manifests(text, plugins=False)
    except (InvalidManifest, RecursionError):
        # A newer operator or a user wrote it. The specs are then accepted as if for the first time.
        return None


def has_overrides(table_sync: TableSyncManifest) -> bool:
    """Return True if a TableSync differs from the defaults. Thousands of default ones would not fit in a ConfigMap."""
    spec = table_sync.spec
    none = TableSyncSpec(pipelineRef=spec.pipeline_ref, table=spec.table)  # type: ignore[call-arg]  # the rest is default
    return spec != none


def restart_digest(manifests: Manifests) -> str:
    """Return the digest of the Pipeline's fields whose changes need a restart of the driver.

    Sections that are not set are no part of it. So an operator that knows more sections restarts no driver for them.
    """
    spec = manifests.pipeline.spec
    return digest(_yaml(_restart_fields(spec, spec.model_dump(mode="json", by_alias=True)), sort_keys=True))


def restart_fields_digest(spec: PipelineSpec) -> str:
    """Return the digest of the fields whose changes restart the driver and copy nothing."""
    dumped = spec.model_dump(mode="json", by_alias=True)
    return digest(_yaml(_restart_fields(spec, dumped, (Change.RESTART,)), sort_keys=True))


def _restart_fields(
    model: Model, dumped: dict[str, Any], of: Container[str] = frozenset(Change) - {Change.HOT}
) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value, written = getattr(model, name), dumped[field.alias or name]
        assert isinstance(field.json_schema_extra, dict)
        if isinstance(value, Model):
            kept[field.alias or name] = _restart_fields(value, written, of)
        elif field.json_schema_extra[CHANGE] in of:
            kept[field.alias or name] = written
    return {k: v for k, v in kept.items() if v is not None and v != {}}


def _written(model: Model) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
