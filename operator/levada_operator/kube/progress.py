"""Requests for a driver's progress."""

from __future__ import annotations

import http.client
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_TIMEOUT_S: Final = 5
_MAX_BYTES: Final = 64 << 20
_log = logging.getLogger(__name__)


def fetch_progress(address: str, port: int, token_file: Path | None = None) -> Mapping[str, Any] | None:
    """Return the response of ``GET /v1/progress``, or None if there is no valid one in time. Blocks.

    The token file is read for each request, since its Secret may change.
    """
    connection = http.client.HTTPConnection(address, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/v1/progress", headers={"Accept": "application/json"} | _authorization(token_file))
        response = connection.getresponse()
        if response.status == http.HTTPStatus.UNAUTHORIZED:
            _log.warning(
                "the driver at %s refuses the operator's token: both Secrets must have the same value", address
            )
        if response.status != http.HTTPStatus.OK:
            return None
        document = json.loads(response.read(_MAX_BYTES))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    finally:
        connection.close()
    return document if isinstance(document, dict) else None


def _authorization(token_file: Path | None) -> dict[str, str]:
    try:
        return {"Authorization": f"Bearer {token_file.read_text().strip()}"} if token_file is not None else {}
    except OSError as error:
        _log.warning("cannot read the token for drivers: %s", error)
        return {}
