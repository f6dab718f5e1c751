"""kopf's handlers. They update the cache and enqueue Pipelines.

The only state-changing handler is the one for deletion. There are no timers and no daemons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import kopf

from levada_operator.app.controller import Controller
from levada_operator.app.credentials import read_connection
from levada_operator.app.session import FencedSessions
from levada_operator.names import GROUP, VERSION
from levada_operator.observe.objects import pipeline_named, read_pipeline

_CLEANUP_AGAIN_S: Final = 3


def register(registry: kopf.OperatorRegistry, controller: Controller, leads: Callable[[], bool]) -> None:
    """Register the handlers of one operator. kopf writes only while ``leads`` returns True."""
    sessions = FencedSessions(leads)

    @kopf.on.login(registry=registry)
    async def login(*, settings: kopf.OperatorSettings, **_: Any) -> Any:
        info = read_connection(settings)
        return None if info is None else sessions.session(info)

    @kopf.on.startup(registry=registry)
    async def start(**_: Any) -> None:
        controller.start()

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await controller.stop()

    @kopf.on.event(GROUP, VERSION, "pipelines", registry=registry)
    async def pipeline_event(*, type: str, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - kopf's name
        await controller.event(type, _plain(body))

    def needs_cleanup(*, body: kopf.Body, **_: Any) -> bool:
        return _needs_cleanup(controller, body)

    @kopf.on.delete(GROUP, VERSION, "pipelines", registry=registry, when=needs_cleanup)
    async def delete(*, body: kopf.Body, **_: Any) -> None:
        plain = _plain(body)
        controller.object_changed(plain)
        if not await controller.released(pipeline_named(plain)):
            raise kopf.TemporaryError("the clean-up is under way", delay=_CLEANUP_AGAIN_S)


def _needs_cleanup(controller: Controller, body: kopf.Body) -> bool:
    """Return True if the Pipeline needs a finalizer: it has run, or no older Pipeline reads the same slot.

    The deletion policy does not matter. If it retains everything, the clean-up still releases the ownership.
    """
    pipeline = read_pipeline(_plain(body))
    return bool(pipeline.status.get("slot", {}).get("sampledAt")) or not controller.cache.conflicts(pipeline)


def _plain(body: kopf.Body) -> dict[str, Any]:
    return dict(body)
