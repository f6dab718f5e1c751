"""The documents of an index."""

from __future__ import annotations

from typing import Any

from opensearchpy import OpenSearch
from opensearchpy.helpers import scan
from tests.rigs.waiting import LIMIT_S


def documents(url: str, alias: str) -> list[dict[str, Any]]:
    """Return all documents behind an alias, as OpenSearch's client reads them."""
    client = OpenSearch([url], timeout=LIMIT_S)
    client.indices.refresh(index=alias)
    found = [d["_source"] for d in scan(client, index=alias, size=5000)]
    client.close()
    return found
