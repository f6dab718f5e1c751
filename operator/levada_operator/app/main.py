"""Run the operator until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import kopf

from levada_operator.app.config import Config, read_config
from levada_operator.app.handlers import register
from levada_operator.app.probes import Probes
from levada_operator.app.settings import settings
from levada_operator.app.shell import Shell
from levada_operator.kube.client import ApiServer
from levada_operator.kube.progress import fetch_progress


def main() -> None:
    """Run with the settings of the environment."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # kopf tells of each retry of a clean-up as an error, and of every object it passes over.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("kopf.objects").setLevel(logging.CRITICAL)
    asyncio.run(operate(read_config(os.environ)))


async def operate(config: Config) -> None:
    """Run one operator in this event loop, until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    shell = Shell(config, ApiServer.connect(), fetch_progress)
    probes = Probes(shell)
    registry = kopf.OperatorRegistry()
    register(registry, shell)
    await probes.start()
    try:
        await kopf.operator(
            registry=registry,
            settings=settings(namespaced=bool(config.namespaces)),
            clusterwide=not config.namespaces,
            namespaces=config.namespaces,
            stop_flag=stop,
        )
    finally:
        await probes.stop()
