"""The manifest: Pipeline and TableSync as pydantic models. No I/O but for reading a YAML text handed in.

The models are the one source of the manifests' form: of the CRDs, of what the command line reads, of the reference.
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
from levada.spec.running import DriverMode, Remains
from levada.spec.schema import json_schema, structural
from levada.spec.source import OnLostSlot, PublicationManagement, Tables, TlsMode, selects

__all__ = [
    "Change",
    "CopyDriver",
    "DriverMode",
    "Manifests",
    "OnLostSlot",
    "PipelineManifest",
    "PipelineSpec",
    "PublicationManagement",
    "Remains",
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
