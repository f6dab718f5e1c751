"""The operator's process from end to end, against a stand-in for the API server and a driver that only tells."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.operator.apiserver import StandInApiServer
from tests.operator.samples import document, pipeline, pod_body, table_document, table_sync

from levada_operator.desired.pod import HTTP_PORT

_T = TypeVar("_T")
SQL = "SELECT pg_drop_replication_slot('levada_shop')"


def eventually(check: Callable[[], _T], seconds: float = 60.0) -> _T:
    """Return the first true answer."""
    deadline = time.monotonic() + seconds
    while not (answer := check()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {answer!r}"
        time.sleep(0.1)
    return answer


@pytest.fixture
def server() -> Iterator[StandInApiServer]:
    """A stand-in for an API server."""
    with StandInApiServer() as one:
        yield one


@pytest.fixture
def driver() -> Iterator[str]:
    """The address of a driver that streams two tables."""
    import json

    address = f"127.78.{os.getpid() % 250}.{threading.get_native_id() % 250 + 1}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(document(table_document(), table_document("events"))).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    told = ThreadingHTTPServer((address, HTTP_PORT), Handler)
    thread = threading.Thread(target=told.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield address
    told.shutdown()
    told.server_close()
    thread.join()


@pytest.fixture
def operator(server: StandInApiServer, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """What starts the operator, anew if it runs."""
    (tmp_path / "kubeconfig").write_text(server.kubeconfig())
    environment = os.environ | {
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "LEVADA_NAMESPACES": "data",
        "LEVADA_ADDRESS": "127.0.0.1",
        "LEVADA_PORT": "0",
        "LEVADA_SWEEP_SECONDS": "0.5",
    }
    log, running = tmp_path / "operator.log", []

    def start() -> None:
        for process in running:
            process.kill()
            process.wait(30)
        with log.open("ab") as out:
            running[:] = [
                subprocess.Popen([sys.executable, "-m", "levada_operator"], env=environment, stdout=out, stderr=out)
            ]

    yield start
    # Before it ends: a watch of kopf's that is cut off by that may say so in a traceback.
    text = log.read_text()
    for process in running:
        process.terminate()
        process.wait(30)
    print(log.read_text())
    assert "Traceback" not in text


def phase(server: StandInApiServer) -> str:
    """Return the Pipeline's phase."""
    return str((server.get("Pipeline", "shop") or {}).get("status", {}).get("phase", ""))


def bring_up(server: StandInApiServer, driver: str, **changes: Any) -> None:
    """Make a Pipeline, and its driver's pod as a kubelet would."""
    body = pipeline(**changes)
    body["metadata"] = {"name": "shop", "namespace": "data", **body["metadata"].get("annotations", {})}
    server.put(body)
    eventually(lambda: server.get("StatefulSet", "shop-driver"))
    server.put(pod_body(podIP=driver))
    eventually(lambda: phase(server) == "Streaming")


def _with_finalizer(server: StandInApiServer) -> dict[str, Any]:
    one = server.get("Pipeline", "shop") or {"metadata": {}}
    return one if one["metadata"].get("finalizers") else {}


def events(server: StandInApiServer, reason: str) -> list[str]:
    """Return the messages of the Events of that reason."""
    return [b["message"] for (kind, _, _), b in server.objects.items() if kind == "Event" and b["reason"] == reason]


def test_from_pipeline_to_streaming(server: StandInApiServer, driver: str, operator: Callable[[], None]) -> None:
    """A Pipeline gets its objects, its TableSyncs and their status; kopf leaves a finalizer and no annotation."""
    operator()
    bring_up(server, driver)
    for name in ("orders", "events"):
        eventually(lambda name=name: (server.get("TableSync", f"shop-public-{name}") or {}).get("status"))  # type: ignore[misc]  # bound on purpose
        tsync = server.get("TableSync", f"shop-public-{name}") or {}
        assert tsync["status"]["phase"] == "Ready"
        assert "finalizers" not in tsync["metadata"]
    one = eventually(lambda: _with_finalizer(server))
    assert one["metadata"]["finalizers"] == ["levada.dev/cleanup"]
    assert not one["metadata"].get("annotations")
    assert not any("secrets" in path for _, path, _ in server.requests)


def test_a_users_table_sync_is_in_the_first_manifest(
    server: StandInApiServer, driver: str, operator: Callable[[], None]
) -> None:
    """What was there before the operator is seen before anything is written."""
    server.put(table_sync("events", ours=False, owned=False, suspend=True))
    operator()
    bring_up(server, driver)
    text = (server.get("ConfigMap", "shop-manifest") or {})["data"]["pipeline.yaml"]
    assert "suspend: true" in text
    assert (server.get("TableSync", "shop-public-events") or {})["metadata"]["ownerReferences"]


def test_killed_operator_comes_back_to_the_same(
    server: StandInApiServer, driver: str, operator: Callable[[], None]
) -> None:
    """Killed and started again, the operator writes no object at all."""
    operator()
    bring_up(server, driver)
    eventually(lambda: (server.get("TableSync", "shop-public-events") or {}).get("status"))
    eventually(lambda: (server.get("TableSync", "shop-public-orders") or {}).get("status"))
    before = {k: b["metadata"]["resourceVersion"] for k, b in server.objects.items() if k[0] != "Event"}
    server.requests.clear()
    operator()
    eventually(lambda: sum(path.endswith("/pods") for _, path, _ in server.requests) >= 4)
    assert {k: b["metadata"]["resourceVersion"] for k, b in server.objects.items() if k[0] != "Event"} == before
    assert [(m, p) for m, p, _ in server.requests if m != "GET"] == []


def test_deletion_runs_the_cleanup(server: StandInApiServer, driver: str, operator: Callable[[], None]) -> None:
    """Stop, clean up, let go; killed in the middle, the next operator goes on."""
    operator()
    bring_up(server, driver)
    eventually(lambda: _with_finalizer(server))
    server.delete("Pipeline", "shop")
    eventually(lambda: (server.get("StatefulSet", "shop-driver") or {})["spec"]["replicas"] == 0)
    assert server.get("Job", "shop-cleanup") is None
    server.delete("Pod", "shop-driver-0")
    eventually(lambda: server.get("Job", "shop-cleanup"))
    operator()
    job = server.get("Job", "shop-cleanup") or {}
    server.put({**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})
    eventually(lambda: server.get("Pipeline", "shop") is None)
    assert len(events(server, "CleanupFinished")) == 1


def test_deletion_while_the_operator_is_away(
    server: StandInApiServer, driver: str, operator: Callable[[], None]
) -> None:
    """An operator that comes back to a Pipeline that is being deleted stops the driver first, and cleans up then."""
    operator()
    bring_up(server, driver)
    eventually(lambda: _with_finalizer(server))
    operator()
    server.delete("Pipeline", "shop")
    eventually(lambda: (server.get("StatefulSet", "shop-driver") or {})["spec"]["replicas"] == 0)
    assert server.get("Job", "shop-cleanup") is None
    assert server.get("Pipeline", "shop") is not None
    server.delete("Pod", "shop-driver-0")
    eventually(lambda: server.get("Job", "shop-cleanup"))


def test_deletion_ends_in_a_namespace_that_goes(
    server: StandInApiServer, driver: str, operator: Callable[[], None]
) -> None:
    """No Job can be made there; the Pipeline goes, and what is left is told."""
    operator()
    bring_up(server, driver)
    eventually(lambda: _with_finalizer(server))
    server.delete("Pod", "shop-driver-0")
    server.refused = {"Job"}
    server.delete("Pipeline", "shop")
    eventually(lambda: server.get("Pipeline", "shop") is None)
    (told,) = events(server, "CleanupAbandoned")
    assert SQL in told


def test_policy_of_retaining_all_needs_no_finalizer(
    server: StandInApiServer, driver: str, operator: Callable[[], None]
) -> None:
    """Where nothing is to be removed, deletion waits for nobody."""
    operator()
    bring_up(server, driver, spec={"deletionPolicy": {"slot": "Retain", "state": "Retain"}})
    assert not (server.get("Pipeline", "shop") or {})["metadata"].get("finalizers")
