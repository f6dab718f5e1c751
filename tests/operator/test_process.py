"""The operator's process from end to end, with a stand-in for the API server and a driver that only reports."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import randrange
from typing import Any, TypeVar

import pytest
from tests.operator.apiserver import StandInApiServer
from tests.operator.samples import document, merge, pipeline, pod_body, table_document, table_sync
from tests.rigs.late import OPERATOR
from tests.rigs.waiting import LIMIT_S, until
from tests.servers.ports import ReservedPort, free_port

from levada_operator.desired.pod import HTTP_PORT

pytestmark = pytest.mark.usefixtures("own_process")

_T = TypeVar("_T")
ANOTHER_NAMESPACE = {"destination": {"iceberg": {"namespace": "another_{schema}"}}}
STATUS = "/apis/levada.dev/v1alpha1/namespaces/data/pipelines/shop/status"
SQL = "SELECT pg_drop_replication_slot('levada_data__shop')"


@pytest.fixture
def server() -> Iterator[StandInApiServer]:
    """A stand-in for an API server."""
    with StandInApiServer() as one:
        yield one


def listening(handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """Return a server at an address of its own: other test processes serve drivers at the same port."""
    for _ in range(100):
        try:
            return ThreadingHTTPServer((f"127.78.{randrange(1, 255)}.{randrange(1, 255)}", HTTP_PORT), handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise RuntimeError("no address of 127.78.0.0/16 is free")


@pytest.fixture
def driver() -> Iterator[str]:
    """The address of a driver that streams two tables."""
    import json

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(document(table_document(), table_document("events"))).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    told = listening(Handler)
    address = str(told.server_address[0])
    thread = threading.Thread(target=told.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield address
    told.shutdown()
    told.server_close()
    thread.join()


LEASE = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
         "metadata": {"namespace": "data", "name": "levada-operator"}}  # fmt: skip


@pytest.fixture
def spawn(server: StandInApiServer, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts a process of the operator."""
    environment = os.environ | {
        "LEVADA_NAMESPACES": "data",
        "LEVADA_ADDRESS": "127.0.0.1",
        "LEVADA_SWEEP_SECONDS": "0.5",
    }
    log, running = tmp_path / "operator.log", []

    def start(port: int = 0, token: str = "t", **more: str) -> subprocess.Popen[bytes]:
        kubeconfig = tmp_path / f"kubeconfig-{token}"
        kubeconfig.write_text(server.kubeconfig(token))
        with log.open("ab") as out:
            command = [sys.executable, "-m", OPERATOR]
            server.operator_port = port or free_port()
            env = environment | {"KUBECONFIG": str(kubeconfig), "LEVADA_PORT": str(server.operator_port)} | more
            running.append(subprocess.Popen(command, env=env, stdout=out, stderr=out))
        return running[-1]

    yield start
    # Before it ends: what is cut off by that may say so in a traceback.
    text = log.read_text()
    for process in running:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(LIMIT_S)
    print(log.read_text())
    assert "Traceback" not in text


@pytest.fixture
def operator(server: StandInApiServer, spawn: Callable[..., subprocess.Popen[bytes]]) -> Callable[[], None]:
    """Return a function that kills the former operator and starts a new one.

    The Lease is free then, so that the new one leads without waiting.
    """
    former: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        for process in former:
            process.kill()
            process.wait(LIMIT_S)
        server.objects.pop(("Lease", "data", "levada-operator"), None)
        server.put(LEASE)
        former[:] = [spawn()]

    return start


def writes(server: StandInApiServer, token: str = "t") -> list[tuple[str, str]]:
    """Return the writes to all but the Lease by the processes with that token."""
    found = [r for r in server.requests if r.method != "GET" and "/leases" not in r.path]
    return [(r.method, r.path) for r in found if r.token == token]


def sweeps(server: StandInApiServer) -> int:
    """Return how many sweeps have begun, in all processes."""
    return sum(r.path.endswith("/pods") for r in server.requests)


def settle(server: StandInApiServer) -> None:
    """Wait until the last operator has swept four times and has nothing to write."""

    def settled() -> bool:
        written, swept = len(writes(server)), sweeps(server)
        until(lambda: sweeps(server) >= swept + 4)
        until(lambda: "levada_operator_queued_pipelines 0.0" in asked(server.operator_port, "/metrics"))
        return len(writes(server)) == written

    until(settled)


def holder(server: StandInApiServer) -> str:
    """Return who holds the Lease."""
    return str((server.get("Lease", "levada-operator") or {}).get("spec", {}).get("holderIdentity", ""))


def asked(port: int, path: str) -> str:
    """Return what an operator answers at its own port, empty if it does not."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def phase(server: StandInApiServer) -> str:
    """Return the Pipeline's phase."""
    return str((server.get("Pipeline", "shop") or {}).get("status", {}).get("phase", ""))


def table_phase(server: StandInApiServer, table: str) -> str:
    """Return the phase of a table."""
    return str((server.get("TableSync", f"shop-public-{table}") or {}).get("status", {}).get("phase", ""))


def bring_up(server: StandInApiServer, driver: str, **changes: Any) -> None:
    """Make a Pipeline, and its driver's pod as a kubelet would."""
    body = pipeline(**changes)
    body["metadata"] = {"name": "shop", "namespace": "data", **body["metadata"].get("annotations", {})}
    server.put(body)
    until(lambda: server.get("StatefulSet", "shop-driver"))
    owners = [{"kind": "StatefulSet", "uid": "uid-StatefulSet-shop-driver"}]
    server.put(merge(pod_body(podIP=driver), {"metadata": {"ownerReferences": owners}}))
    until(lambda: phase(server) == "Streaming")


def _ready(server: StandInApiServer) -> str:
    conditions = (server.get("Pipeline", "shop") or {}).get("status", {}).get("conditions", ())
    return next((str(c["status"]) for c in conditions if c["type"] == "Ready"), "")


def _with_finalizer(server: StandInApiServer) -> dict[str, Any]:
    one = server.get("Pipeline", "shop") or {"metadata": {}}
    return one if one["metadata"].get("finalizers") else {}


def events(server: StandInApiServer, reason: str) -> list[str]:
    """Return the messages of the Events of that reason."""
    return [b["message"] for (kind, _, _), b in server.all() if kind == "Event" and b["reason"] == reason]


def test_from_pipeline_to_streaming(server: StandInApiServer, driver: str, operator: Callable[[], None]) -> None:
    """A Pipeline gets its objects, its TableSyncs and their status, and of metadata a finalizer alone."""
    operator()
    bring_up(server, driver)
    for name in ("orders", "events"):
        until(lambda name=name: table_phase(server, name) == "Ready")  # type: ignore[misc]  # bound on purpose
        tsync = server.get("TableSync", f"shop-public-{name}") or {}
        assert "finalizers" not in tsync["metadata"]
    one = until(lambda: _with_finalizer(server))
    assert one["metadata"]["finalizers"] == ["levada.dev/cleanup"]
    assert not one["metadata"].get("annotations")
    assert not any("secrets" in r.path for r in server.requests)


def test_change_that_arrives_with_an_answer_waits_for_no_sweep(
    server: StandInApiServer, spawn: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """A user's change may be in the answer to a write of status before the watch has it. It is reconciled then."""
    server.put(LEASE)
    spawn(LEVADA_SWEEP_SECONDS="3600")
    until(lambda: holder(server))
    server.watch_late_s = 1.0
    # After some writes the next pass follows anyway, but not after each of them.
    server.meanwhile = {generation: {"spec": {"freshnessSeconds": 70 + generation}} for generation in range(1, 7)}
    server.put({**pipeline(), "metadata": {"name": "shop", "namespace": "data"}})

    def manifest() -> str:
        return str((server.get("ConfigMap", "shop-manifest") or {}).get("data"))

    until(lambda: "freshnessSeconds: 76" in manifest())


@pytest.mark.nightly
def test_a_users_table_sync_is_in_the_first_manifest(
    server: StandInApiServer, driver: str, operator: Callable[[], None]
) -> None:
    """Objects that are older than the operator are read before anything is written."""
    server.put(table_sync("events", ours=False, owned=False, suspend=True))
    operator()
    bring_up(server, driver)
    text = (server.get("ConfigMap", "shop-manifest") or {})["data"]["pipeline.yaml"]
    assert "suspend: true" in text
    # TableSyncs are written after the Pipeline's status.
    until(lambda: (server.get("TableSync", "shop-public-events") or {})["metadata"].get("ownerReferences"))


def test_killed_operator_comes_back_to_the_same(
    server: StandInApiServer, driver: str, operator: Callable[[], None]
) -> None:
    """Killed and started again, the operator writes no object at all."""
    operator()
    bring_up(server, driver)
    until(lambda: (server.get("TableSync", "shop-public-events") or {}).get("status"))
    until(lambda: (server.get("TableSync", "shop-public-orders") or {}).get("status"))
    until(lambda: _with_finalizer(server))
    settle(server)
    apart = ("Event", "Lease")
    before = {k: b["metadata"]["resourceVersion"] for k, b in server.all() if k[0] not in apart}
    server.requests.clear()
    operator()
    until(lambda: sweeps(server) >= 4)
    assert {k: b["metadata"]["resourceVersion"] for k, b in server.all() if k[0] not in apart} == before
    assert writes(server) == []


def test_operator_that_starts_while_lists_take_long(
    server: StandInApiServer, driver: str, operator: Callable[[], None]
) -> None:
    """It leaves a running Pipeline as it is. A change that waits for its approval would be a new one's first spec."""
    operator()
    bring_up(server, driver, spec={"approval": "Manual"})
    settle(server)
    server.put(merge(server.get("Pipeline", "shop") or {}, {"spec": ANOTHER_NAMESPACE}))
    until(lambda: events(server, "ApprovalRequired"))
    settle(server)
    before = server.get("ConfigMap", "shop-manifest"), server.get("StatefulSet", "shop-driver")
    server.held = {"TableSync"}
    server.requests.clear()
    operator()
    until(lambda: [text for text in events(server, "ObjectsUnread") if "left as it is" in text])
    server.held = set()
    settle(server)
    assert (server.get("ConfigMap", "shop-manifest"), server.get("StatefulSet", "shop-driver")) == before
    assert {path for _, path in writes(server) if "/events/" not in path} <= {STATUS}


def _mirrored(body: dict[str, Any]) -> None:
    """Replace the registry of a StatefulSet's images, as policies of clusters do."""
    if body["kind"] == "StatefulSet":
        for container in body["spec"]["template"]["spec"]["containers"]:
            container["image"] = "mirror.example/" + container["image"]


def test_webhook_that_changes_what_is_applied(
    server: StandInApiServer, driver: str, operator: Callable[[], None]
) -> None:
    """The Pipeline is Ready, and its objects are not written again. A change by hand is undone."""
    server.webhook = _mirrored
    operator()
    bring_up(server, driver)
    settle(server)
    until(lambda: _ready(server) == "True")
    assert events(server, "DriverUpdated") == []  # paced: all is written by then
    stored = until(lambda: server.get("StatefulSet", "shop-driver"))
    assert stored["spec"]["template"]["spec"]["containers"][0]["image"].startswith("mirror.example/")
    server.put(merge(stored, {"spec": {"serviceName": "another"}}))
    until(lambda: (server.get("StatefulSet", "shop-driver") or {})["spec"] == stored["spec"])


def _relabelled(body: dict[str, Any]) -> None:
    """Change a label and an annotation of every object, and add others, as policies of clusters do."""
    metadata = body["metadata"]
    metadata["labels"] = metadata.get("labels", {}) | {"app.kubernetes.io/managed-by": "policy", "team": "data"}
    metadata["annotations"] = metadata.get("annotations", {}) | {"levada.dev/applied": "", "policy": "yes"}


@pytest.mark.nightly
def test_webhook_that_changes_labels_and_annotations(
    server: StandInApiServer, driver: str, operator: Callable[[], None]
) -> None:
    """The Pipeline is Ready, and no object is written again, of whatever kind. A change by hand is undone."""
    server.webhook = _relabelled
    operator()
    bring_up(server, driver, spec={"store": {"configMap": {}}})
    settle(server)
    until(lambda: _ready(server) == "True")
    stored = until(lambda: server.get("ConfigMap", "shop-manifest"))
    assert stored["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "policy"
    server.put(merge(stored, {"metadata": {"labels": {"levada.dev/role": "another"}}}))
    until(
        lambda: (server.get("ConfigMap", "shop-manifest") or {})["metadata"]["labels"] == stored["metadata"]["labels"]
    )


@pytest.mark.nightly
def test_claim_that_outlived_its_pipeline(server: StandInApiServer, driver: str, operator: Callable[[], None]) -> None:
    """The next Pipeline of the name stages on it, also where the operator has listed the namespace before."""
    operator()
    bring_up(server, driver)
    settle(server)
    size = {"resources": {"requests": {"storage": "50Gi"}}}
    labels = {"levada.dev/pipeline": "bank", "levada.dev/role": "staging"}
    server.put({"kind": "PersistentVolumeClaim", "spec": size,
                "metadata": {"name": "bank-staging", "namespace": "data", "labels": labels}})  # fmt: skip
    server.put(merge(pipeline(), {"metadata": {"name": "bank", "uid": "uid-bank"}}))
    manifest = until(lambda: server.get("ConfigMap", "bank-manifest"))
    assert "size: 53687091200" in manifest["data"]["pipeline.yaml"]
    settle(server)
    claim = server.get("PersistentVolumeClaim", "bank-staging") or {}
    assert claim["spec"]["resources"]["requests"]["storage"] == "50Gi"


def test_deletion_runs_the_cleanup(server: StandInApiServer, driver: str, operator: Callable[[], None]) -> None:
    """The driver stops, the clean-up runs, the Pipeline is released. The next operator continues after a kill."""
    operator()
    bring_up(server, driver)
    until(lambda: _with_finalizer(server))
    server.delete("Pipeline", "shop")
    until(lambda: (server.get("StatefulSet", "shop-driver") or {})["spec"]["replicas"] == 0)
    assert server.get("Job", "shop-cleanup") is None
    server.delete("Pod", "shop-driver-0")
    until(lambda: server.get("Job", "shop-cleanup"))
    operator()
    job = server.get("Job", "shop-cleanup") or {}
    server.put({**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})
    until(lambda: server.get("Pipeline", "shop") is None)
    assert len(until(lambda: events(server, "CleanupFinished"))) == 1


@pytest.mark.nightly
def test_deletion_while_the_operator_is_away(
    server: StandInApiServer, driver: str, operator: Callable[[], None]
) -> None:
    """An operator that comes back to a Pipeline that is being deleted stops the driver first, and cleans up then."""
    operator()
    bring_up(server, driver)
    until(lambda: _with_finalizer(server))
    operator()
    server.delete("Pipeline", "shop")
    until(lambda: (server.get("StatefulSet", "shop-driver") or {})["spec"]["replicas"] == 0)
    assert server.get("Job", "shop-cleanup") is None
    assert server.get("Pipeline", "shop") is not None
    server.delete("Pod", "shop-driver-0")
    until(lambda: server.get("Job", "shop-cleanup"))


@pytest.mark.nightly
def test_deletion_ends_in_a_namespace_that_goes(
    server: StandInApiServer, driver: str, operator: Callable[[], None]
) -> None:
    """No Job can be created there. The Pipeline is released, and an Event reports the rest."""
    operator()
    bring_up(server, driver)
    until(lambda: _with_finalizer(server))
    server.delete("Pod", "shop-driver-0")
    server.refused = {"Job"}
    server.delete("Pipeline", "shop")
    until(lambda: server.get("Pipeline", "shop") is None)
    (told,) = until(lambda: events(server, "CleanupAbandoned"))
    assert SQL in told


@pytest.mark.nightly
def test_policy_of_retaining_all_releases_what_stays(
    server: StandInApiServer, driver: str, operator: Callable[[], None]
) -> None:
    """Nothing is removed, and a clean-up Job still makes it free for another Pipeline."""
    operator()
    bring_up(server, driver, spec={"deletionPolicy": {"slot": "Retain", "state": "Retain"}})
    until(lambda: _with_finalizer(server))
    server.delete("Pod", "shop-driver-0")
    server.delete("Pipeline", "shop")
    until(lambda: server.get("Job", "shop-cleanup"))


@pytest.mark.nightly
def test_busy_api_server_is_asked_again(server: StandInApiServer, driver: str, operator: Callable[[], None]) -> None:
    """Without the state of the cluster nothing is decided. It continues when the API server has room again."""
    server.busy = {"Pod"}
    body = pipeline()
    body["metadata"] = {"name": "shop", "namespace": "data"}
    server.put(body)
    operator()
    until(lambda: sweeps(server) >= 3)
    assert server.get("StatefulSet", "shop-driver") is None
    server.busy = set()
    bring_up(server, driver)


def test_standby_writes_nothing_until_the_leader_has_ended(
    server: StandInApiServer, driver: str, spawn: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Of two operators one leads. The other is live and ready, and follows when the leader ends on SIGTERM."""
    server.put(LEASE)
    one = spawn()
    first = until(lambda: holder(server))
    reserved = ReservedPort.of(range(18100, 18200))
    port = reserved.number
    two = spawn(port)
    until(lambda: asked(port, "/readyz") == "ok\n" and asked(port, "/livez") == "ok\n")
    until(lambda: "levada_operator_leader 0.0" in asked(port, "/metrics"))
    bring_up(server, driver)
    assert holder(server) == first
    # What the standby would write for a new Pipeline, it would have written by now: the leader has.
    assert "levada_operator_writes_total{" not in asked(port, "/metrics")
    one.terminate()
    assert one.wait(LIMIT_S) == 0
    until(lambda: holder(server) not in ("", first))
    assert two.poll() is None
    until(lambda: _with_finalizer(server))
    server.put({"kind": "Pipeline", "metadata": {"namespace": "data", "name": "shop"}, "spec": {"suspend": True}})
    until(lambda: (server.get("StatefulSet", "shop-driver") or {})["spec"]["replicas"] == 0)


def test_leader_that_stood_still_ends_without_a_write(
    server: StandInApiServer, driver: str, spawn: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """A leader that was stopped for longer than its Lease finds another one when it wakes, writes nothing, and ends."""
    server.put(LEASE)
    # Long enough for a busy machine to renew it.
    lease = {"LEVADA_LEASE_SECONDS": "15"}
    one = spawn(**lease)
    first = until(lambda: holder(server))
    bring_up(server, driver)
    # No process can take back a write that it had begun to send when it was stopped.
    settle(server)
    one.send_signal(signal.SIGSTOP)
    before = len(writes(server))
    spawn(token="second", **lease)
    until(lambda: holder(server) not in ("", first))
    second = holder(server)
    server.put({"kind": "Pipeline", "metadata": {"namespace": "data", "name": "shop"}, "spec": {"suspend": True}})
    until(lambda: (server.get("StatefulSet", "shop-driver") or {})["spec"]["replicas"] == 0)
    one.send_signal(signal.SIGCONT)
    assert one.wait(LIMIT_S) != 0
    assert holder(server) == second
    assert writes(server)[before:] == []
    assert writes(server, "second")
