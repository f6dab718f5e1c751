"""Ask a driver for its progress."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final

_TIMEOUT_S: Final = 5
_MAX_BYTES: Final = 64 << 20


def fetch_progress(address: str, port: int) -> Mapping[str, Any] | None:
    """Return the document of ``GET /v1/progress``, None if there is no right answer in time. Blocks."""
    connection = http.client.HTTPConnection(address, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/v1/progress", headers={"Accept": "application/json"})
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            return None
        document = json.loads(response.read(_MAX_BYTES))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return document if isinstance(document, dict) else None
