"""The manifest: Pipeline and TableSync as pydantic models. No module here does I/O.

The CRDs, the command line's parser and the reference page are all generated from these models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.lazy import lazy_exports, lazy_names

if TYPE_CHECKING:
    from levada.spec.manifests import Manifests, load_manifests, manifest_digest, parse_manifest
    from levada.spec.model import Change, changed_fields, with_hot_fields
    from levada.spec.names import default_object_name, state_names
    from levada.spec.pipeline import PipelineManifest, PipelineSpec
    from levada.spec.quantity import format_bytes, parse_bytes, parse_quantity
    from levada.spec.running import DeletionAction, DriverMode
    from levada.spec.schema import json_schema, structural
    from levada.spec.source import OnLostSlot, PublicationManagement, Tables, TlsMode, selects
    from levada.spec.table_sync import CopyDriver, TableSyncManifest, TableSyncSpec

__all__ = [
    "Change",
    "CopyDriver",
    "DeletionAction",
    "DriverMode",
    "Manifests",
    "OnLostSlot",
    "PipelineManifest",
    "PipelineSpec",
    "PublicationManagement",
    "TableSyncManifest",
    "TableSyncSpec",
    "Tables",
    "TlsMode",
    "changed_fields",
    "default_object_name",
    "format_bytes",
    "json_schema",
    "load_manifests",
    "manifest_digest",
    "parse_bytes",
    "parse_manifest",
    "parse_quantity",
    "selects",
    "state_names",
    "structural",
    "with_hot_fields",
]

_LAZY_EXPORTS = {
    "Change": "levada.spec.model",
    "CopyDriver": "levada.spec.table_sync",
    "DeletionAction": "levada.spec.running",
    "DriverMode": "levada.spec.running",
    "Manifests": "levada.spec.manifests",
    "OnLostSlot": "levada.spec.source",
    "PipelineManifest": "levada.spec.pipeline",
    "PipelineSpec": "levada.spec.pipeline",
    "PublicationManagement": "levada.spec.source",
    "TableSyncManifest": "levada.spec.table_sync",
    "TableSyncSpec": "levada.spec.table_sync",
    "Tables": "levada.spec.source",
    "TlsMode": "levada.spec.source",
    "changed_fields": "levada.spec.model",
    "default_object_name": "levada.spec.names",
    "format_bytes": "levada.spec.quantity",
    "json_schema": "levada.spec.schema",
    "load_manifests": "levada.spec.manifests",
    "manifest_digest": "levada.spec.manifests",
    "parse_bytes": "levada.spec.quantity",
    "parse_manifest": "levada.spec.manifests",
    "parse_quantity": "levada.spec.quantity",
    "selects": "levada.spec.source",
    "state_names": "levada.spec.names",
    "structural": "levada.spec.schema",
    "with_hot_fields": "levada.spec.model",
}

__getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS), lazy_names(__name__, _LAZY_EXPORTS)
