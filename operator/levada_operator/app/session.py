"""kopf's connection to the API server, with the same fence as the operator's own writes."""

from __future__ import annotations

from collections.abc import Callable

import kopf
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, ClientSession, TCPConnector

from levada_operator.kube.fenced import refuse_unless

_READS = ("GET", "HEAD")


class FencedSessions:
    """Factory of kopf's sessions. Their writes (of finalizers) raise RequestFailed unless ``leads`` returns True."""

    def __init__(self, leads: Callable[[], bool]) -> None:
        self._leads = leads
        self._last: tuple[kopf.ConnectionInfo, kopf.AiohttpSession] | None = None

    def session(self, info: kopf.ConnectionInfo) -> kopf.AiohttpSession:
        """Return the session for these credentials. Call it within the event loop.

        The same credentials get the same session. kopf compares sessions to recognize credentials that were refused.
        """
        if self._last is None or self._last[0] != info:
            self._last = (info, self._new(info))
        return self._last[1]

    def _new(self, info: kopf.ConnectionInfo) -> kopf.AiohttpSession:
        session = ClientSession(
            connector=TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            proxy=info.proxy_url,
            trust_env=info.trust_env,
            middlewares=(self._fence,),
        )
        return kopf.AiohttpSession(
            server=info.server,
            default_namespace=info.default_namespace,
            priority=info.priority,
            expiration=info.expiration,
            aiohttp_session=session,
        )

    async def _fence(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        if request.method not in _READS:
            refuse_unless(self._leads())
        return await handler(request)
