"""The share of a namespace in the time of the watches."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

from tests.operator.samples import merge, pipeline

from levada_operator.app.credentials import Credentials
from levada_operator.app.object_watch import ObjectWatch
from levada_operator.app.watch_shares import WatchShares
from levada_operator.kube.items import Unread


def line(namespace: str, version: int, **changes: Any) -> bytes:
    """Return an event as the API server writes it."""
    body = merge(merge(pipeline(), changes), {"metadata": {"namespace": namespace, "resourceVersion": str(version)}})
    return json.dumps({"type": "MODIFIED", "object": body}, separators=(",", ":")).encode()


class Watched:
    """A watch of Pipelines at a time that the test sets, and what it did with each event."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.done: list[str] = []
        self.shares = WatchShares(lambda: self.now_s)
        nowhere = Credentials("http://127.0.0.1", ssl.create_default_context(), dict)
        self._watch = ObjectWatch(
            nowhere, "Pipeline", None, self._changed, self._unread, lambda: None, self._left_out, self.shares
        )

    async def _changed(self, kind: str, body: dict[str, Any]) -> None:
        self.done.append(f"{body['metadata']['namespace']} {body['metadata']['resourceVersion']}")

    def _unread(self, kind: str, unread: Unread) -> None:
        self.done.append(f"{unread.namespace} unread")

    def _left_out(self, kind: str, namespace: str) -> None:
        self.done.append(f"{namespace} left out")

    def take(self, *events: bytes) -> list[str]:
        """Let the watch take events, and return what it did."""
        self.done.clear()
        for event in events:
            asyncio.run(self._watch._take(event))
        return [*self.done]


def test_events_beyond_the_share_are_left_out() -> None:
    """Those of one namespace alone, until its share is free again. Others' are taken, whatever she writes into hers."""
    watched = Watched()
    watched.shares.charge("mallory", 0.5)
    said = {"metadata": {"labels": {"namespace": "bank"}}, "spec": {"namespace": "bank"}}
    events = line("mallory", 1, **said), line("bank", 2), line("mallory-2", 3)
    assert watched.take(*events) == ["mallory left out", "bank 2", "mallory-2 3"]
    watched.now_s = 3600
    assert watched.take(*events) == ["mallory 1", "bank 2", "mallory-2 3"]


def test_large_events_use_the_share() -> None:
    """Parsing is counted by the processor's time, also of an object that is not kept."""
    watched = Watched()
    watched.shares.charge("mallory", 0.333)
    large = line("mallory", 1, spec={"x": [0] * 150_000})
    assert any(watched.take(large) == ["mallory left out"] for _ in range(1000))
    watched = Watched()
    watched.shares.charge("mallory", 0.333)
    too_large = line(
        "mallory", 1, metadata={"annotations": {f"k{n}": "" for n in range(20_000)} | {"z": "x" * (1 << 20)}}
    )
    assert watched.take(too_large) == ["mallory unread"]
    assert any(watched.take(too_large) == ["mallory left out"] for _ in range(1000))
    assert watched.take(line("bank", 2)) == ["bank 2"]
