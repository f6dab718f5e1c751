"""The patterns of names in a manifest, each with its error message."""

from __future__ import annotations

import hashlib
import re
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
# A host name or IPv4 address, an IPv6 address, or the folder of a Unix socket. min_length rejects the empty string.
_HOST: Final = r"^([^\s/@?#:]*|[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(%\w+)?|/\S*)$"
_STAGING_URI: Final = r"^(|/.*|file:/.*|(s3|s3a|gs|abfs|abfss)://.+)$"

_DECIMAL: Final = r"Decimal\(([1-9]|[12][0-9]|3[0-8]), ?([0-9]|[12][0-9]|3[0-8])\)"
_STORED_TYPE: Final = rf"^(Text|Uuid|Range|Multirange|Map|Wkb|List(\([2-6]\))?|{_DECIMAL})$"

FORMS: Final = {
    _LABEL: "must consist of a-z, 0-9 and -, and begin and end with a letter or digit",
    _SUBDOMAIN: "must consist of a-z, 0-9, - and ., and begin and end with a letter or digit",
    _OPTIONAL_SUBDOMAIN: "must consist of a-z, 0-9, - and ., and begin and end with a letter or digit",
    _SLOT: "must consist of a-z, 0-9 and _, like every slot name of PostgreSQL",
    _CATALOG_NAMESPACE: "may contain {schema} for the source's schema and dots between levels,"
    " but none of { } / \\ # ? % and no control characters",
    _HOST: "must be a host name or an address, without scheme, user, port or path",
    _STAGING_URI: "must be a full path, such as /var/lake/staging, or a folder's URI: s3://, gs://, abfs:// or file://",
    _STORED_TYPE: "must be Text, Uuid, Range, Multirange, Map, Wkb, List, List(n) with 2 to 6 dimensions, or"
    " Decimal(p, s) with 1 to 38 digits, s of them after the point",
    _LAKE_TABLE: "must contain none of { } . / \\ # ? % and no control characters",
}
"""The error message for each pattern."""

STATE_PARTS: Final = 8
"""The number of ConfigMaps over which the store of kind configMap distributes its tables. The ConfigMap with the epoch
is not counted.
"""


def pipeline_name_problem(name: str) -> str | None:
    """Return what a pipeline's name must be, None if this one is valid."""
    if re.fullmatch(_LABEL, name) and len(name) <= MAX_PIPELINE_NAME:
        return None
    return f"{FORMS[_LABEL]}, and have at most {MAX_PIPELINE_NAME} characters"


PipelineName = Annotated[str, Field(pattern=_LABEL, min_length=1, max_length=MAX_PIPELINE_NAME)]
ObjectName = Annotated[str, Field(pattern=_SUBDOMAIN, min_length=1, max_length=253)]
OptionalObjectName = Annotated[str, Field(pattern=_OPTIONAL_SUBDOMAIN, max_length=253)]
SlotName = Annotated[str, Field(pattern=_SLOT, max_length=63)]
Identifier = Annotated[str, Field(min_length=1, max_length=63)]
"""A PostgreSQL identifier, unquoted, as the catalog spells it."""
StoredType = Annotated[str, Field(pattern=_STORED_TYPE, max_length=15)]
"""The type in which a column is stored, see `levada.schema.stored_types`."""
CatalogNamespace = Annotated[str, Field(pattern=_CATALOG_NAMESPACE, max_length=255)]
Host = Annotated[str, Field(pattern=_HOST, min_length=1, max_length=253)]
StagingUri = Annotated[str, Field(pattern=_STAGING_URI, max_length=2048)]
LakeTable = Annotated[str, Field(pattern=_LAKE_TABLE, max_length=255)]
"""A table's name at the destination. Empty: the source's name."""


MAX_SLOT_NAME: Final = 63
"""PostgreSQL's limit for the length of names, in bytes."""


def default_object_name(pipeline: str, namespace: str = "") -> str:
    """Return the default name of a pipeline's slot and publication.

    Different pipelines have different names. A name that would be too long or ambiguous is cut and ends with a digest.
    """
    plain = source_object_name(pipeline, namespace)
    if len(plain) <= MAX_SLOT_NAME and "--" not in namespace + "/" + pipeline:
        return plain
    digest = hashlib.sha256(f"{namespace}/{pipeline}".encode()).hexdigest()[:10]
    return f"{plain[: MAX_SLOT_NAME - 11]}_{digest}"


def state_names(pipeline: str) -> tuple[str, ...]:
    """Return the names of the ConfigMaps of a pipeline's store: first the one with the epoch, then those with
    tables.
    """
    head = f"{pipeline}-state"
    return (head, *(f"{head}-{part}" for part in range(STATE_PARTS)))


_LONGEST: Final = 63
_APPEND: Final = "_append"


def append_name(publication: str) -> str:
    """Return the name of the second publication. A name that would be too long is cut and ends with a digest."""
    name = f"{publication}{_APPEND}"
    if len(name.encode()) <= _LONGEST:
        return name
    digest = hashlib.sha256(publication.encode()).hexdigest()[:8]
    kept = publication.encode()[: _LONGEST - len(_APPEND) - len(digest) - 1].decode(errors="ignore")
    return f"{kept}_{digest}{_APPEND}"
