"""A watch of the TableSyncs.

kopf keeps a task for each object that changed, for seconds, and limits their number. Thousands of TableSyncs would wait
for minutes in its queues, in which each is a whole object.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector

from levada_operator.app.credentials import Credentials
from levada_operator.kube.interface import RESOURCES

_log = logging.getLogger(__name__)

_SERVER_ENDS_S: Final = 60
"""Time after which the API server ends a watch. A connection that broke without notice is thus found soon."""
_CLIENT_ENDS_S: Final = 75.0
_CONNECT_S: Final = 10.0
_PAUSE_S: Final = 5.0
_GONE: Final = 410

Changed = Callable[[str, dict[str, Any]], Awaitable[None]]


class TableWatch:
    """Reports the TableSyncs of a namespace, or of all, as they are and as they change.

    ``changed`` is called with ADDED, MODIFIED or DELETED and the object, and ``missed`` when deletions may have been
    missed. After an interruption the watch continues where it was.
    """

    def __init__(
        self, credentials: Credentials, namespace: str | None, changed: Changed, missed: Callable[[], None]
    ) -> None:
        resource = RESOURCES["TableSync"]
        where = f"/namespaces/{namespace}" if namespace else ""
        self._credentials = credentials
        self._url = f"{credentials.server}{resource.prefix}{where}/{resource.plural}"
        self._changed = changed
        self._missed = missed
        # The API server begins with an event for each object that there is.
        self._version = "0"

    async def run(self) -> None:
        """Watch until the task is cancelled."""
        timeout = ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_CLIENT_ENDS_S)
        connector = TCPConnector(ssl=self._credentials.context)
        async with ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                try:
                    await self._follow(session)
                except (ClientError, TimeoutError, ValueError) as error:
                    _log.warning("the watch of TableSyncs is interrupted: %s: %s", type(error).__name__, error)
                    await asyncio.sleep(_PAUSE_S)

    async def _follow(self, session: ClientSession) -> None:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(_SERVER_ENDS_S),
        }
        async with session.get(self._url, params=query, headers=self._credentials.headers()) as response:
            if response.status == _GONE:
                self._restart()
                return
            response.raise_for_status()
            async for event in _events(response):
                kind, body = event["type"], event["object"]
                if kind == "ERROR":
                    if body.get("code") != _GONE:
                        raise ValueError(body.get("message", "the API server reports no reason"))
                    self._restart()
                    return
                if kind != "BOOKMARK":
                    await self._changed(kind, body)
                self._version = str(body["metadata"]["resourceVersion"])

    def _restart(self) -> None:
        self._version = "0"
        self._missed()


async def _events(response: ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the events, one for each line."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield json.loads(line)
