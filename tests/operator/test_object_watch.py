"""The watch of TableSyncs, against a server whose connections end as those of an API server do."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

import pytest
from aiohttp import web
from tests.operator.samples import merge, table_sync
from tests.rigs.waiting import LIMIT_S

from levada_operator.app.credentials import Credentials
from levada_operator.app.object_watch import ObjectWatch
from levada_operator.app.watch_shares import WatchShares
from levada_operator.kube.items import Unread

Lines = list[dict[str, Any]]


def event(kind: str, version: int, **changes: Any) -> dict[str, Any]:
    """Return an event about a TableSync."""
    return {"type": kind, "object": merge(table_sync(**changes), {"metadata": {"resourceVersion": str(version)}})}


def bookmark(version: int) -> dict[str, Any]:
    """Return an event that only says how far the watch is."""
    return {"type": "BOOKMARK", "object": {"kind": "TableSync", "metadata": {"resourceVersion": str(version)}}}


def watched(*connections: Lines | int) -> tuple[list[str], list[tuple[str, str]], int]:
    """Serve connections with those lines or that status, in order, until there are no more.

    Return the resource versions that were asked for, the reported events, and how often deletions may have been missed.
    """
    asked: list[str] = []
    reported: list[tuple[str, str]] = []
    missed: list[None] = []
    left = list(connections)
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.query["resourceVersion"])
        assert request.path == "/apis/levada.dev/v1alpha1/namespaces/data/tablesyncs"
        assert (request.query["watch"], request.headers["Authorization"]) == ("true", "Bearer t")
        if not left:
            over.set()
            return web.Response(status=500)
        script = left.pop(0)
        if isinstance(script, int):
            return web.Response(status=script)
        response = web.StreamResponse()
        await response.prepare(request)
        text = b"".join(json.dumps(line).encode() + b"\n" for line in script)
        # Chunks end anywhere.
        for start in range(0, len(text), 700):
            await response.write(text[start : start + 700])
            await asyncio.sleep(0)
        return response

    async def changed(kind: str, body: dict[str, Any]) -> None:
        reported.append((kind, body["metadata"]["name"]))

    def unread(kind: str, what: Unread) -> None:
        reported.append((f"unread {kind}", f"{what.namespace}/{what.name}"))

    def left_out(kind: str, namespace: str) -> None:
        reported.append((f"left out {kind}", namespace))

    async def script() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]  # it has begun
        found = Credentials(
            f"http://127.0.0.1:{port}", ssl.create_default_context(), lambda: {"Authorization": "Bearer t"}
        )
        task = asyncio.create_task(
            ObjectWatch(
                found,
                "TableSync",
                "data",
                changed,
                unread,
                lambda: missed.append(None),
                left_out,
                WatchShares(lambda: 0.0),
            ).run()
        )
        await asyncio.wait_for(over.wait(), LIMIT_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.cleanup()

    asyncio.run(script())
    return asked, reported, len(missed)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the watch, none of which takes time."""
    begun: list[float] = []
    sleep = asyncio.sleep

    async def recorded(seconds: float) -> None:
        if seconds:
            begun.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", recorded)
    return begun


@pytest.mark.parametrize("ended", [[], 410, [{"type": "ERROR", "object": {"code": 410}}]])
def test_watch_that_ends_at_once(pauses: list[float], ended: Lines | int) -> None:
    """There is a pause before each further one, so that no API server is asked without end."""
    asked, _, _ = watched(ended, ended, ended)
    assert len(asked) == 4
    assert len(pauses) >= 3


def test_watch_continues_where_it_ended() -> None:
    """The first watch begins with every object. The next one begins after the last event or bookmark."""
    asked, reported, missed = watched(
        [event("ADDED", 5), event("ADDED", 7, name="events")],
        [event("MODIFIED", 9), bookmark(12)],
        [event("DELETED", 14)],
    )
    assert asked == ["0", "7", "12", "14"]
    assert reported == [
        ("ADDED", "shop-public-orders"),
        ("ADDED", "shop-public-events"),
        ("MODIFIED", "shop-public-orders"),
        ("DELETED", "shop-public-orders"),
    ]
    assert missed == 0


def test_expired_version_begins_again() -> None:
    """An API server that has forgotten the version is asked for every object, and deletions may have been missed."""
    expired = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
    asked, reported, missed = watched([event("ADDED", 5)], [expired], [event("ADDED", 20)], 410)
    assert asked == ["0", "5", "0", "20", "0"]
    assert reported == [("ADDED", "shop-public-orders")] * 2
    assert missed == 2
