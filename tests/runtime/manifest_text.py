"""Manifests as a user writes them."""

from __future__ import annotations

from typing import Any

import yaml

from levada.spec import Manifests, load_manifests


def manifest_text(pipeline: str, *table_syncs: dict[str, Any], **spec: Any) -> str:
    """Return a Pipeline of every table of schema public with these differences, and these TableSyncs of it."""
    manifest = {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": pipeline},
        "spec": {
            "source": {"host": "db", "database": "shop"},
            "tables": {"include": [{"schema": "public"}]},
            "destination": {"iceberg": {"catalog": {"type": "Hadoop", "warehouse": "file:///wh"}}},
            **spec,
        },
    }
    syncs = [
        {
            "apiVersion": "levada.dev/v1alpha1",
            "kind": "TableSync",
            "metadata": {"name": f"sync-{i}"},
            "spec": {"pipelineRef": {"name": pipeline}, **sync},
        }
        for i, sync in enumerate(table_syncs)
    ]
    return yaml.safe_dump_all([manifest, *syncs])


def manifests(*table_syncs: dict[str, Any], source: dict[str, Any] | None = None, **spec: Any) -> Manifests:
    """Return a Pipeline with these differences, and these TableSyncs."""
    tables = {"include": [{"schema": "public", "name": "*"}], "exclude": [{"schema": "public", "name": "tmp_*"}]}
    given = {"source": {"host": "db", "database": "shop", **(source or {})}, "tables": tables, **spec}
    return load_manifests(manifest_text("shop-eu", *table_syncs, **given))
