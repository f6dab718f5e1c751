"""The HTTP server of the operator's `/livez`, `/readyz` and `/metrics`.

It uses aiohttp, which kopf requires, in kopf's event loop. If the loop is blocked, the probes fail.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from levada.errors import NeedsOperator
from levada_operator.act.metrics import REGISTRY
from levada_operator.app.config import EACH_ADDRESS


class Probes:
    """An HTTP server. Call `start` and `stop` within one event loop.

    ``address`` may be `EACH_ADDRESS`. ``unhealthy_reason`` returns why this process should be restarted, or an empty
    string. A standby is live and ready.
    """

    def __init__(self, address: str, port: int, unhealthy_reason: Callable[[], str]) -> None:
        self._address = address
        self._port = port
        self._unhealthy_reason = unhealthy_reason
        app = web.Application()
        app.add_routes(
            [web.get("/livez", self._live), web.get("/readyz", self._live), web.get("/metrics", self._metrics)]
        )
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> None:
        """Start serving. Raise NeedsOperator ``port_taken`` if the address cannot be bound."""
        await self._runner.setup()
        try:
            # None: each address. With "::", asyncio binds those of IPv6 alone.
            address = None if self._address == EACH_ADDRESS else self._address
            await web.TCPSite(self._runner, address, self._port).start()
        except OSError as error:
            raise NeedsOperator(
                "port_taken",
                f"the operator cannot serve probes at {self._address}:{self._port}: {error.strerror or error}",
                hint="set LEVADA_PORT to another port",
            ) from error

    async def stop(self) -> None:
        """Stop serving."""
        await self._runner.cleanup()

    async def _live(self, request: web.Request) -> web.Response:
        reason = self._unhealthy_reason()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})
