"""Hints that several errors of OpenSearch share."""

from __future__ import annotations

from typing import Final

UNAVAILABLE: Final = "if this persists, check the cluster and its shards: GET /_cluster/health, GET /_cat/shards"
BUSY: Final = "if this persists, find the other process that writes to the indices of this pipeline, and stop it"
RESYNC: Final = "copy the table again: levada resync MANIFEST TABLE"
