"""The operator's main function: a standby while another process leads, then the leader."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import signal
import sys
import time
import uuid
from functools import partial
from typing import Any, Final

import kopf

from levada.errors import LevadaError
from levada.logs import configure
from levada_operator.act.elector import Callbacks, Elector
from levada_operator.app.config import Config, read_config
from levada_operator.app.controller import Controller
from levada_operator.app.credentials import read_connection, read_credentials
from levada_operator.app.fetch import DriverClient
from levada_operator.app.object_watch import ObjectWatch
from levada_operator.app.probes import Probes
from levada_operator.kube.client import ApiServer
from levada_operator.kube.fenced import FencedCluster

_log = logging.getLogger(__name__)

_FAILED: Final = 1
_SWITCH_S: Final = 0.0005
"""The longest time for which a thread that parses a large object keeps the event loop waiting. Python's is 0.005."""


def main() -> None:
    """Run the operator with the settings in the environment. Exit with code 1 if it cannot start."""
    as_json = os.environ.get("LEVADA_LOG_FORMAT") == "json"
    configure(as_json=as_json, debug=bool(os.environ.get("LEVADA_DEBUG")))
    # kopf logs its own start and end.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # urllib3 logs each attempt to connect. A request that gets no answer is reported by its caller.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    sys.setswitchinterval(_SWITCH_S)
    try:
        asyncio.run(operate(read_config(os.environ)))
    except LevadaError as error:
        if as_json:
            _log.error(error.message, extra={"code": error.code, "hint": error.hint})
        else:
            sys.stderr.write(f"error: {error}\n")
        sys.exit(_FAILED)


async def operate(config: Config) -> None:
    """Run the operator in this event loop until SIGTERM or SIGINT. Nothing is written before it leads."""
    loop, stop, elected = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    callbacks = Callbacks(lambda: loop.call_soon_threadsafe(elected.set), _end)
    credentials = read_credentials()
    leases = ApiServer(credentials.server, credentials.context, credentials.headers, config.timings.renew_s / 2)
    elector = Elector(leases, config.lease, _identity(), config.timings, time.monotonic, callbacks)
    controllers: list[Controller] = []
    probes = Probes(config.address, config.port, lambda: next((s.watchdog.unhealthy_reason() for s in controllers), ""))
    await probes.start()
    elector.start()
    try:
        if await _first(elected, stop) is elected:
            requests = ApiServer(credentials.server, credentials.context, credentials.headers)
            cluster = FencedCluster(requests, lambda: elector.leads)
            drivers = DriverClient(config.driver_tokens)
            controllers.append(Controller(config, cluster, drivers.fetch, partial(ObjectWatch, credentials)))
            await _lead(controllers[0], stop)
    finally:
        # The Lease is released after the last write, so that two leaders never write at the same time.
        await asyncio.to_thread(elector.stop)
        await probes.stop()


async def _lead(controller: Controller, stop: asyncio.Event) -> None:
    """Let kopf run the controller until ``stop``. It watches nothing, see `levada_operator.app.object_watch`."""
    registry, options = kopf.OperatorRegistry(), kopf.OperatorSettings()
    # A Lease elects the leader before kopf starts. The operator writes Events of a closed list, not one for a log line.
    options.peering.standalone, options.posting.enabled, options.scanning.disabled = True, False, True

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo | None:
        return read_connection()

    @kopf.on.startup(registry=registry)
    async def start(**_: Any) -> None:
        controller.start()

    @kopf.on.cleanup(registry=registry)
    async def end(**_: Any) -> None:
        await controller.stop()

    serving = asyncio.create_task(kopf.operator(registry=registry, settings=options, clusterwide=True))
    # kopf has its own handlers of SIGTERM and SIGINT, so this is for a signal before they are there. Given a stop flag,
    # kopf would wait 5 s at its end for its own task that waits for the flag.
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not serving.done():
        serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def _first(*events: asyncio.Event) -> asyncio.Event:
    """Wait until one of the events is set, and return it."""
    waits = {asyncio.create_task(event.wait()): event for event in events}
    done, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    return waits[next(iter(done))]


def _identity() -> str:
    # A restarted container has a new identity: it does not know which writes of the previous process are under way.
    return f"{platform.node()}_{uuid.uuid4().hex[:8]}"


def _end(reason: str) -> None:
    """Exit without clean-up. The next leader observes what is half done."""
    _log.error("%s; this process ends", reason)
    os._exit(_FAILED)
