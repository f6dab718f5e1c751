"""Requests for a driver's progress. The driver's image is its namespace's, so its answer may be anything.

No HTTP library reads it. Each takes chunks of one byte, or interim responses, as long as they arrive, within the event
loop that all namespaces share. A driver of Levada answers with neither.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

_TIMEOUT_S: Final = 5.0
"""The time limit of a whole answer."""
MAX_BYTES: Final = 8 << 20
_MAX_HEAD: Final = 1 << 14
"""Bytes of an answer's status and headers together."""
_PIECE: Final = 1 << 18
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |$)")


@dataclass(frozen=True, slots=True)
class Answer:
    """A driver's answer. ``refused`` is why there is none that can be read, if that is known."""

    data: bytes = b""
    refused: str = ""


class DriverClient:
    """Fetches ``GET /v1/progress`` of drivers. Each connection is used once: the next time, the address may be another
    pod's.

    ``tokens`` is a folder with a file for each namespace: the token that its drivers require. It is read for each
    request, since its Secret may change. A namespace's token is sent to its own drivers alone.
    """

    def __init__(self, tokens: Path | None = None, timeout_s: float = _TIMEOUT_S) -> None:
        self._tokens = tokens
        self._timeout_s = timeout_s

    async def fetch(self, namespace: str, address: str, port: int) -> Answer:
        """Return the answer, an empty one if there is none in time."""
        try:
            request = self._request(namespace, address, port)
            async with asyncio.timeout(self._timeout_s):
                reader, writer = await asyncio.open_connection(address, port, limit=_MAX_HEAD)
                try:
                    writer.write(request)
                    return await _read(namespace, reader)
                finally:
                    # Whatever else it sends is not read.
                    writer.transport.abort()
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError):
            return Answer()

    def _request(self, namespace: str, address: str, port: int) -> bytes:
        host = f"[{address}]" if ":" in address else address
        lines = ["GET /v1/progress HTTP/1.1", f"Host: {host}:{port}", "Accept: application/json"]
        lines += ["Accept-Encoding: identity", "Connection: close"]
        if (token := self._token(namespace)) and not token.isprintable():
            raise ValueError("the token has line breaks")
        lines += [f"Authorization: Bearer {token}"] if token else []
        return "\r\n".join([*lines, "", ""]).encode()

    def _token(self, namespace: str) -> str:
        if self._tokens is None or not namespace:
            return ""
        try:
            return (self._tokens / namespace).read_text().strip()
        except OSError:
            # A namespace without a token has drivers that require none.
            return ""


async def _read(namespace: str, reader: asyncio.StreamReader) -> Answer:
    """Read an answer to its end, or as far as it can be used."""
    status, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    found = _STATUS.match(status)
    if found is not None and int(found[1]) == HTTPStatus.UNAUTHORIZED:
        return Answer(
            refused=f"it refuses the operator's token: key {namespace} of the Secret in the chart's driverToken must"
            " have the same value as spec.driver.tokenSecretRef"
        )
    if found is None or int(found[1]) != HTTPStatus.OK:
        return Answer()
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if b"transfer-encoding" in headers or headers.get(b"content-encoding", b"identity") != b"identity":
        return Answer(refused="its answer is compressed or in chunks, as a proxy before it may send it")
    size = int(headers[b"content-length"]) if b"content-length" in headers else None
    if size is not None and size > MAX_BYTES:
        return Answer(refused=_TOO_LARGE)
    data = bytearray()
    while size is None or len(data) < size:
        piece = await reader.read(_PIECE)
        data += piece
        if len(data) > MAX_BYTES:
            return Answer(refused=_TOO_LARGE)
        if not piece:
            break
    # Without a length, the end of the connection is that of the answer.
    return Answer() if size is not None and len(data) < size else Answer(bytes(data[:size]))


_TOO_LARGE: Final = f"its answer has more than {MAX_BYTES >> 20} MiB"
