"""Connections that go silent under a running engine."""

from __future__ import annotations

import urllib.error
import urllib.request

from tests.rigs.engine import Engine
from tests.rigs.waiting import LIMIT_S
from tests.servers.stalling_proxy import stalling_proxy


def ready(engine: Engine) -> int:
    """Return the status of /readyz."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{engine.port}/readyz", timeout=LIMIT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_stalled_connections_are_opened_again(engine: Engine) -> None:
    """Every open connection stalls for ever: the engine is not ready, connects again, and the lake is equal."""
    engine.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 100)")
    with stalling_proxy(engine.db.server.port) as proxy:
        engine.write_manifest()
        manifest = engine.manifest.read_text().replace(f"port: {engine.db.server.port}", f"port: {proxy.port}")
        engine.manifest.write_text(manifest)
        engine.start()
        engine.wait_caught_up()
        engine.wait_for(lambda _: ready(engine) == 200)
        proxy.stall(new=False)
        engine.db.execute("INSERT INTO t SELECT generate_series(101, 200)")
        engine.wait_for(lambda p: not p["capture"]["connected"])
        assert ready(engine) == 503
        engine.wait_caught_up()
        assert "source_silent" in engine.log
        engine.assert_equal("t")
        assert engine.stop() == 0
