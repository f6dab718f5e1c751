"""The waits of `levada cut` for the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.runtime import samples

from levada.cli.cuts import await_drop, await_end
from levada.cli.signals import StopSignals
from levada.errors import Transient
from levada.runtime.host.cuts_client import CutsClient
from levada.runtime.host.engine_api import EngineApi
from levada.runtime.report.cuts_api import CutsApi
from levada.runtime.report.http import ProgressServer
from levada.status import CutPhase, CutProgress

NOON = CutProgress(name="noon", phase=CutPhase.PENDING)


class Listed:
    """The lists of an engine, one for each request. None: its pipeline does not run. The last one is repeated."""

    def __init__(self, *lists: tuple[CutProgress, ...] | None) -> None:
        self._lists = list(lists)

    def __call__(self) -> tuple[CutProgress, ...]:
        found = self._lists.pop(0) if len(self._lists) > 1 else self._lists[0]
        if found is None:
            raise Transient("engine_not_running", "it starts")
        return found

    def client(self, server: ProgressServer) -> CutsClient:
        return CutsClient(EngineApi(server.address, {}))


def serving(listed: Listed) -> ProgressServer:
    """Return the port of an engine with these lists."""
    return ProgressServer(samples.progress, cuts=CutsApi(listed, lambda name, partial: None, lambda name: None))


def test_a_wait_outlasts_a_restart_of_the_pipeline() -> None:
    """While the pipeline starts again, as with a new Secret, neither a cut nor a drop is taken for ended."""
    done = replace(NOON, phase=CutPhase.COMPLETE)
    listed = Listed(None, (NOON,), None, (done,))
    with serving(listed) as server:
        assert await_end(listed.client(server), "noon", StopSignals()).phase is CutPhase.COMPLETE
    listed = Listed((replace(NOON, phase=CutPhase.DROPPING),), None, ())
    with serving(listed) as server:
        assert await_drop(listed.client(server), "noon", StopSignals())


def test_a_new_cut_of_the_name_ends_the_wait_for_the_drop() -> None:
    """The cut is dropped if another one has its name."""
    listed = Listed((replace(NOON, phase=CutPhase.DROPPING),), (NOON,))
    with serving(listed) as server:
        assert await_drop(listed.client(server), "noon", StopSignals())


def test_a_wait_ends_with_the_pipeline() -> None:
    """A pipeline that does not run again, and a cut that is gone, are errors with a code."""
    for listed, code in [(Listed((NOON,), None), "engine_not_running"), (Listed((NOON,), ()), "cut_lost")]:
        with serving(listed) as server, pytest.raises(Transient) as caught:
            await_end(listed.client(server), "noon", StopSignals(), most_silence_s=0.1)
        assert (caught.value.code, bool(caught.value.hint)) == (code, True)
