"""The operator's own port: `/livez`, `/readyz`, `/metrics`."""

from __future__ import annotations

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from levada_operator.act.metrics import REGISTRY
from levada_operator.app.shell import Shell


class Probes:
    """A server; `start` and `stop` within one event loop."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        app = web.Application()
        app.add_routes(
            [web.get("/livez", self._live), web.get("/readyz", self._live), web.get("/metrics", self._metrics)]
        )
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> None:
        """Answer from now on; raise OSError if the port is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, self._shell.config.address, self._shell.config.port).start()

    async def stop(self) -> None:
        """Answer no more."""
        await self._runner.cleanup()

    async def _live(self, request: web.Request) -> web.Response:
        trouble = self._shell.watchdog.trouble()
        return web.Response(status=503 if trouble else 200, text=f"{trouble or 'ok'}\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})
