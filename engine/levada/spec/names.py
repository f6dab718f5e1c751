"""What may be a name, and what a wrong one is told."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

from pydantic import Field

from levada.values import MAX_PIPELINE_NAME, source_object_name

_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_OPTIONAL_SUBDOMAIN: Final = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"
_SLOT: Final = r"^[a-z0-9_]*$"
_LAKE: Final = r"[^{}./\\#?%\x00-\x1f\x7f]"
_CATALOG_NAMESPACE: Final = rf"^({_LAKE}|\{{schema\}})+(\.({_LAKE}|\{{schema\}})+)*$"
_LAKE_TABLE: Final = rf"^{_LAKE}*$"
# A name or IPv4 address, an IPv6 address, or the folder of a Unix socket. The empty one is reported by its length.
_HOST: Final = r"^([^\s/@?#:]*|[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(%\w+)?|/\S*)$"
_STAGING_URI: Final = r"^(|/.*|file:/.*|(s3|s3a|gs|abfs|abfss)://.+)$"

FORMS: Final = {
    _LABEL: "must have only a-z, 0-9 and -, and begin and end with a letter or digit",
    _SUBDOMAIN: "must have only a-z, 0-9, - and ., and begin and end with a letter or digit",
    _OPTIONAL_SUBDOMAIN: "must have only a-z, 0-9, - and ., and begin and end with a letter or digit",
    _SLOT: "must have only a-z, 0-9 and _, as PostgreSQL's slot names do",
    _CATALOG_NAMESPACE: "may have {schema} for the source's schema and dots between levels,"
    " and none of { } / \\ # ? % nor control characters",
    _HOST: "must be a host name or an address, without scheme, user, port and path",
    _STAGING_URI: "must be a folder's s3://, gs://, abfs:// or file:// URI, or a path",
    _LAKE_TABLE: "must have none of { } . / \\ # ? % nor control characters",
}
"""What each pattern asks for, in words."""

STATE_PARTS: Final = 8
"""Over how many ConfigMaps, beside the first, the store of kind configMap spreads its tables."""

PipelineName = Annotated[str, Field(pattern=_LABEL, min_length=1, max_length=MAX_PIPELINE_NAME)]
ObjectName = Annotated[str, Field(pattern=_SUBDOMAIN, min_length=1, max_length=253)]
OptionalObjectName = Annotated[str, Field(pattern=_OPTIONAL_SUBDOMAIN, max_length=253)]
SlotName = Annotated[str, Field(pattern=_SLOT, max_length=63)]
Identifier = Annotated[str, Field(min_length=1, max_length=63)]
"""A PostgreSQL identifier, unquoted and as it is spelled in the catalog."""
CatalogNamespace = Annotated[str, Field(pattern=_CATALOG_NAMESPACE, max_length=255)]
Host = Annotated[str, Field(pattern=_HOST, min_length=1, max_length=253)]
StagingUri = Annotated[str, Field(pattern=_STAGING_URI, max_length=2048)]
LakeTable = Annotated[str, Field(pattern=_LAKE_TABLE, max_length=255)]
"""A table's name in the lake, empty for the source's."""


MAX_SLOT_NAME: Final = 63
"""PostgreSQL's limit for names, in bytes."""


def default_object_name(pipeline: str, namespace: str = "") -> str:
    """Return the name of the slot and the publication of a pipeline whose manifest names none.

    No two pipelines have the same one. A name that would be too long or ambiguous is cut and ends with a digest.
    """
    plain = source_object_name(pipeline, namespace)
    if len(plain) <= MAX_SLOT_NAME and "--" not in namespace + "/" + pipeline:
        return plain
    digest = hashlib.sha256(f"{namespace}/{pipeline}".encode()).hexdigest()[:10]
    return f"{plain[: MAX_SLOT_NAME - 11]}_{digest}"


def state_names(pipeline: str) -> tuple[str, ...]:
    """Name the ConfigMaps of a pipeline's store of kind configMap: the one with its epoch first, then the parts."""
    head = f"{pipeline}-state"
    return (head, *(f"{head}-{part}" for part in range(STATE_PARTS)))
