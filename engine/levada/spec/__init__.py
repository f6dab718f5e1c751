"""The manifest: Pipeline and TableSync as pydantic models. No module here does I/O.

The CRDs, the command line's parser and the reference page are all generated from these models.
"""

from levada.spec.manifests import Manifests, load_manifests, parse_manifest
from levada.spec.model import Change, changed_fields, with_hot_fields
from levada.spec.names import default_object_name, state_names
from levada.spec.pipeline import (
    CopyDriver,
    PipelineManifest,
    PipelineSpec,
    TableSyncManifest,
    TableSyncSpec,
)
from levada.spec.quantity import format_bytes, parse_bytes, parse_quantity
from levada.spec.running import DeletionAction, DriverMode
from levada.spec.schema import json_schema, structural
from levada.spec.source import OnLostSlot, PublicationManagement, Tables, TlsMode, selects

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
    "parse_bytes",
    "parse_manifest",
    "parse_quantity",
    "selects",
    "state_names",
    "structural",
    "with_hot_fields",
]
