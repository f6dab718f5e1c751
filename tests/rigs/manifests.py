"""Manifests that tests write."""

from __future__ import annotations

from typing import Any


def table_sync(table: str, schema: str = "public", **spec: Any) -> dict[str, Any]:
    """A TableSync of the pipeline."""
    return {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "TableSync",
        "metadata": {"name": f"{schema}-{table}"},
        "spec": {"pipelineRef": {"name": "shop"}, "table": {"schema": schema, "name": table}, **spec},
    }


def suspended(name: str) -> dict[str, Any]:
    """Return a TableSync that keeps the table's changes staged."""
    return {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "TableSync",
        "metadata": {"name": name},
        "spec": {"pipelineRef": {"name": "shop"}, "table": {"name": name}, "suspend": True},
    }
