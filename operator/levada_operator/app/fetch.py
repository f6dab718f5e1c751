"""Requests for a driver's progress. The driver's image is its namespace's, so its answer may be anything."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

_TIMEOUT_S: Final = 5.0
"""The time limit of a whole answer."""
MAX_BYTES: Final = 8 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """A driver's answer. ``refused`` is why there is none that can be read, if that is known."""

    data: bytes = b""
    refused: str = ""


class DriverClient:
    """Fetches ``GET /v1/progress`` of drivers. Use it within one event loop.

    ``tokens`` is a folder with a file for each namespace: the token that its drivers require. It is read for each
    request, since its Secret may change. A namespace's token is sent to its own drivers alone.
    """

    def __init__(self, tokens: Path | None = None, timeout_s: float = _TIMEOUT_S) -> None:
        self._tokens = tokens
        self._timeout = ClientTimeout(total=timeout_s)
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def fetch(self, namespace: str, address: str, port: int) -> Answer:
        """Return the answer, an empty one if there is none in time."""
        if self._session is None:
            # Each connection is used once: a driver's address may be another pod's next time.
            self._session = ClientSession(
                connector=TCPConnector(limit=0, force_close=True), timeout=self._timeout, auto_decompress=False
            )
        host = f"[{address}]" if ":" in address else address
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"} | self._authorization(namespace)
        try:
            async with self._session.get(
                f"http://{host}:{port}/v1/progress", headers=headers, allow_redirects=False
            ) as response:
                if response.status == HTTPStatus.UNAUTHORIZED:
                    return Answer(
                        refused=f"it refuses the operator's token: key {namespace} of the Secret in the chart's"
                        " driverToken must have the same value as spec.driver.tokenSecretRef"
                    )
                if (
                    response.status != HTTPStatus.OK
                    or response.headers.get("Content-Encoding", "identity") != "identity"
                ):
                    return Answer()
                data = bytearray()
                async for chunk in response.content.iter_any():
                    data += chunk
                    if len(data) > MAX_BYTES:
                        return Answer(refused=f"its answer has more than {MAX_BYTES >> 20} MiB")
                return Answer(bytes(data))
        except (ClientError, TimeoutError, OSError, ValueError):
            return Answer()

    def _authorization(self, namespace: str) -> dict[str, str]:
        if self._tokens is None or not namespace:
            return {}
        try:
            token = (self._tokens / namespace).read_text().strip()
        except OSError:
            # A namespace without a token has drivers that require none.
            return {}
        return {"Authorization": f"Bearer {token}"}
