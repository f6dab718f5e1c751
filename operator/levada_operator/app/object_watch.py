"""Watches of the Pipelines and of the TableSyncs.

kopf is not used for it. It reads all objects of a kind in one list, and keeps a task for each object that changed, so
that one tenant's objects would fill the memory, or delay those of all others.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector

from levada_operator.act.metrics import FAULTS
from levada_operator.app.credentials import Credentials
from levada_operator.app.watch_shares import WatchShares
from levada_operator.kube.interface import RESOURCES
from levada_operator.kube.items import MAX_OBJECT, Unread, identify, parse_object

_log = logging.getLogger(__name__)

_SERVER_ENDS_S: Final = 60
"""Time after which the API server ends a watch. A connection that broke without notice is thus found soon."""
_CLIENT_ENDS_S: Final = 75.0
_CONNECT_S: Final = 10.0
_PAUSE_S: Final = 5.0
_BETWEEN_S: Final = 1.0
"""The pause after a watch that ended well. A proxy may end each at once, and a version may always have expired."""
_GONE: Final = 410
_BUFFER: Final = 1 << 20
"""Bytes that are read ahead. With fewer, an object of a megabyte takes many turns of the event loop."""

_ABOUT_OBJECTS: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})
_EVENT: Final = re.compile(rb'\{"type":\s*"([A-Z]+)",\s*"object":\s*')
_MAX_LINE: Final = MAX_OBJECT + (1 << 12)

Changed = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Takes ADDED, MODIFIED or DELETED, and the object."""


class ObjectWatch:
    """Reports the objects of a kind in a namespace, or in all, as they are and as they change.

    ``changed`` is called with each event, ``unread`` with what is known of an object that is too large or too deep,
    ``left_out`` with the kind and the namespace of an event beyond the namespace's share, and ``missed`` when deletions
    may have been missed. After an interruption the watch continues where it was.
    """

    def __init__(
        self,
        credentials: Credentials,
        kind: str,
        namespace: str | None,
        changed: Changed,
        unread: Callable[[str, Unread], None],
        missed: Callable[[], None],
        left_out: Callable[[str, str], None],
        shares: WatchShares,
    ) -> None:
        resource = RESOURCES[kind]
        where = f"/namespaces/{namespace}" if namespace else ""
        self._credentials = credentials
        self._kind = kind
        self._url = f"{credentials.server}{resource.prefix}{where}/{resource.plural}"
        self._changed = changed
        self._unread = unread
        self._missed = missed
        self._left_out = left_out
        self._shares = shares
        # The API server begins with an event for each object that there is.
        self._version = "0"

    async def run(self) -> None:
        """Watch until the task is cancelled."""
        timeout = ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_CLIENT_ENDS_S)
        connector = TCPConnector(ssl=self._credentials.context)
        async with ClientSession(connector=connector, timeout=timeout, read_bufsize=_BUFFER) as session:
            while True:
                try:
                    await self._follow(session)
                    await asyncio.sleep(_BETWEEN_S)
                except (ClientError, TimeoutError, ValueError) as error:
                    _log.warning("the watch of %ss is interrupted: %s: %s", self._kind, type(error).__name__, error)
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
            async for line in _lines(response):
                if not await self._take(line):
                    return

    async def _take(self, line: bytes) -> bool:
        """Take an event. Return False if the watch must begin again."""
        head = _EVENT.match(line)
        if head is None:
            raise ValueError("the API server sent no event")
        kind, text = head[1].decode(), line[head.end() : -1]
        if kind in _ABOUT_OBJECTS and (namespace := self._shares.beyond(line)):
            self._left_out(self._kind, namespace)
            return True
        begun_s = time.thread_time()
        body = parse_object(text) if len(line) <= _MAX_LINE else f"it has more than {MAX_OBJECT >> 10} KiB"
        if isinstance(body, str):
            unread = identify(text, body)
            self._shares.charge(unread.namespace, time.thread_time() - begun_s)
            self._unread(self._kind, unread)
            return True
        self._shares.charge(str((body.get("metadata") or {}).get("namespace", "")), time.thread_time() - begun_s)
        if kind == "ERROR":
            if body.get("code") != _GONE:
                raise ValueError(body.get("message", "the API server reports no reason"))
            self._restart()
            return False
        if kind != "BOOKMARK":
            try:
                await self._changed(kind, body)
            except Exception:
                FAULTS.labels(str(body["metadata"].get("namespace", ""))).inc()
                _log.exception("an event of a %s cannot be taken", self._kind)
        self._version = str(body["metadata"]["resourceVersion"])
        return True

    def _restart(self) -> None:
        self._version = "0"
        self._missed()


async def _lines(response: ClientResponse) -> AsyncIterator[bytes]:
    """Yield the lines, without their ends. Of one that is too long, a little more than `_MAX_LINE` is kept."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (_begin(rest, chunk),)
        for line in lines:
            if line.strip():
                yield line.strip()


def _begin(rest: bytes, chunk: bytes) -> bytes:
    return rest if len(rest) > _MAX_LINE else rest + chunk
