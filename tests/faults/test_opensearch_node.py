"""An OpenSearch node that is away, restarted or refuses writes, under ``levada run``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.documents import documents
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.servers.opensearch import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node of this test, not started."""
    (tmp_path / "node").mkdir()
    made = Node(tmp_path / "node")
    try:
        yield made
    finally:
        made.kill()


def into(engine: Engine, node: Node) -> None:
    """Let the engine write to the node."""
    engine.spec = {"destination": {"opensearch": {"urls": [node.url], "replicas": 0}}}
    engine.spec["retries"] = {"maxAttempts": 100, "delaySeconds": 1, "maxDelaySeconds": 1}
    engine.write_manifest()


def test_a_run_begins_before_the_node(engine: Engine, node: Node, db: Database) -> None:
    """A first run waits for a node that is not there yet, and then for one that answers 503 as it starts."""
    db.execute("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item SELECT generate_series(1, 100)")
    into(engine, node)
    engine.start()
    engine.wait_log("the destination cannot be opened yet")
    node.start()
    engine.wait_caught_up()
    assert len(documents(node.url, "public.item")) == 100
    assert engine.stop() == 0
