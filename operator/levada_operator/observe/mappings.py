"""Mappings in objects as the API server sends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mapping_in(body: Any, *path: str) -> Mapping[str, Any]:
    """Return a mapping in an object, an empty one in its place if there is something else. A spec may be invalid."""
    for name in path:
        body = body.get(name) if isinstance(body, Mapping) else None
    return body if isinstance(body, Mapping) else {}
