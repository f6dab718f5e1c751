"""kopf's own requests: a process that no longer leads reads and does not write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import kopf
import pytest
from tests.operator.apiserver import StandInApiServer
from tests.operator.samples import pipeline

from levada_operator.app.session import FencedSessions
from levada_operator.kube.interface import RequestFailed

PIPELINE = "/apis/levada.dev/v1alpha1/namespaces/data/pipelines/shop"


@pytest.fixture
def server() -> Iterator[StandInApiServer]:
    """A stand-in for an API server with a Pipeline."""
    with StandInApiServer() as one:
        one.put(pipeline())
        yield one


def test_superseded_leader_patches_no_finalizer(server: StandInApiServer) -> None:
    """The fence is asked before each of kopf's writes. Reads pass."""
    leads, finalizers = [True], {"metadata": {"finalizers": ["levada.dev/cleanup"]}}

    async def script() -> None:
        found = FencedSessions(lambda: leads[0]).session(kopf.ConnectionInfo(server=f"http://127.0.0.1:{server.port}"))
        merge = {"Content-Type": "application/merge-patch+json"}
        async with found.aiohttp_session as session:
            async with session.patch(found.server + PIPELINE, json=finalizers, headers=merge) as answer:
                assert answer.status == 200
            leads[0] = False
            async with session.get(found.server + PIPELINE) as answer:
                assert (await answer.json())["metadata"]["finalizers"] == ["levada.dev/cleanup"]
            with pytest.raises(RequestFailed):
                await session.patch(found.server + PIPELINE, json={"metadata": {"finalizers": []}}, headers=merge)

    asyncio.run(script())
    assert [r.method for r in server.requests].count("PATCH") == 1


def test_refused_credentials_are_known_again() -> None:
    """The same credentials have the same session, so that kopf does not try refused ones without end."""

    async def script() -> None:
        sessions = FencedSessions(lambda: True)
        one, two = (kopf.ConnectionInfo(server="http://127.0.0.1", token=t) for t in ("a", "b"))
        first = sessions.session(one)
        assert sessions.session(kopf.ConnectionInfo(server="http://127.0.0.1", token="a")) == first
        other = sessions.session(two)
        assert other != first
        for made in (first, other):
            await made.aiohttp_session.close()

    asyncio.run(script())
