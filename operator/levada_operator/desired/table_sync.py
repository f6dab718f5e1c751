"""The TableSync of a table that has none, and the patch that adopts a user's TableSync."""

from __future__ import annotations

from typing import Any

from levada_operator.desired.owner import Owner, build_object, build_owner_reference
from levada_operator.names import API_VERSION, PIPELINE_LABEL, table_sync_name


def build_table_sync(owner: Owner, schema: str, table: str) -> dict[str, Any]:
    """Return a TableSync with the references to its Pipeline and table. The API server adds the defaults."""
    spec = {"pipelineRef": {"name": owner.name}, "table": {"schema": schema, "name": table}}
    name = table_sync_name(owner.name, schema, table)
    return build_object(owner, "TableSync", API_VERSION, name, "table", {"spec": spec})


def build_adoption_patch(owner: Owner, name: str) -> dict[str, Any]:
    """Return a patch with the label and the owner of a TableSync. Its spec stays the user's."""
    metadata = {
        "name": name,
        "namespace": owner.namespace,
        "labels": {PIPELINE_LABEL: owner.name},
        "ownerReferences": [build_owner_reference(owner)],
    }
    return {"apiVersion": API_VERSION, "kind": "TableSync", "metadata": metadata}
