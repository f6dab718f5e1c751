"""The bearer token that a driver requires for `/v1/progress` and `/metrics`."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token in a file. It is read for each request, so a changed Secret needs no restart."""

    file: Path

    def admits(self, authorization: str) -> bool:
        """Return True if the value of a request's ``Authorization`` header carries the token.

        An empty or unreadable token file admits no request.
        """
        scheme, _, given = authorization.partition(" ")
        token = self.read()
        same = hmac.compare_digest(given.strip().encode(), token.encode())
        return bool(token) and scheme.lower() == "bearer" and same

    def read(self) -> str:
        """Return the token, or an empty string if the file cannot be read."""
        try:
            return self.file.read_text().strip()
        except (OSError, ValueError):
            return ""
