"""A driver whose namespace is being deleted executes the deletionPolicy, because no Job can."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.command_line import kept, manifest
from tests.rigs.database import Database

from levada.runtime.host.namespace_end import Namespace, clean_up_with_namespace
from levada.spec import load_manifests
from levada.stores.phases import Ready

__all__ = ["manifest"]


@dataclass
class Cluster:
    """An API server that has one namespace, and what it was asked to write."""

    port: int = 0
    status: int = 200
    metadata: dict[str, Any] = field(default_factory=dict)
    written: dict[str, Any] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Such an API server, on loopback."""
    one = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/api/v1/namespaces/data"
            self.answer({"metadata": one.metadata})

        def do_PATCH(self) -> None:
            one.written[self.path] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer({})

        def answer(self, body: dict[str, Any]) -> None:
            one.tokens.add(self.headers["Authorization"])
            self.send_response(one.status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    one.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield one
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("metadata", "status", "removed"),
    [
        ({"deletionTimestamp": "2026-01-31T12:00:00Z"}, 200, True),
        ({}, 200, False),
        ({"deletionTimestamp": "2026-01-31T12:00:00Z"}, 403, False),
    ],
    ids=["deleted", "another cause", "no right"],
)
def test_slot_goes_with_the_namespace(
    metadata: dict[str, Any], status: int, removed: bool, cluster: Cluster, manifest: Path, db: Database, tmp_path: Path
) -> None:
    """The slot is dropped, and the Pipeline's status has it. A driver that ends for another cause drops nothing."""
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"levada_{db.name}")
    kept(db, "orders", Ready())
    cluster.metadata, cluster.status = metadata, status
    (tmp_path / "token").write_text("sesame\n")
    manifests = load_manifests(manifest.read_text())
    namespace = Namespace(f"http://127.0.0.1:{cluster.port}", "data", tmp_path)
    secrets, work_dir = manifest.parent / "secrets", tmp_path / "work"
    clean_up_with_namespace(namespace, manifests, secrets=secrets, work_dir=work_dir)
    slots = db.query("SELECT count(*) FROM pg_replication_slots WHERE database = %s", db.name)
    assert slots == [(0 if removed else 1,)]
    assert cluster.tokens == {"Bearer sesame"}
    if not removed:
        assert not cluster.written
        return
    ((path, body),) = cluster.written.items()
    name = manifests.pipeline.metadata.name
    assert path == f"/apis/levada.dev/v1alpha1/namespaces/data/pipelines/{name}/status"
    assert f"slot levada_{db.name}: dropped" in body["status"]["cleanup"]
