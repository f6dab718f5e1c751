"""The operator under load, on a real API server: its writes, its memory, and the delay of its reports.

The drivers are simulated: their pods are objects that no kubelet runs, and their ``/v1/progress`` comes from this
process, on one loopback address each. $KUBECONFIG names a cluster with the CRDs (``kubectl apply --server-side -f
crds``) that starts no pods: a control plane without a scheduler, because a scheduler reports that no node takes them.
The operator's writes are counted in the API server's audit log (``--audit-log``), or else by its own metric. Usage::

    python -m benchmarks.operator_load [--pipelines 50] [--tables 40] [--seconds 300] [--audit-log FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.measure import Meter, rss_bytes, table
from kubernetes import client, config

GROUP, VERSION = "levada.dev", "v1alpha1"
_PORT = 8080
_METRICS_PORT = 8099
_METRICS = f"http://127.0.0.1:{_METRICS_PORT}/metrics"
_STANDBY_PORT = 8098
_PATIENCE_S = 3600.0
_AGENT = "levada-benchmark"


class Drivers:
    """The progress of every pipeline, served at 127.78.0.<n>. Positions and rows move with the clock."""

    def __init__(self, pipelines: int, tables: int) -> None:
        self.names = [f"p{n:03d}" for n in range(pipelines)]
        self.tables = tables
        self.errored: set[tuple[int, int]] = set()
        self._started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                number = int(self.connection.getsockname()[0].rsplit(".", 1)[1]) - 1
                body = json.dumps(outer.document(number)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._servers = [ThreadingHTTPServer((self.address(n), _PORT), Handler) for n in range(pipelines)]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def address(self, number: int) -> str:
        return f"127.78.0.{number + 1}"

    def table_name(self, n: int) -> str:
        return f"table{n:03d}"

    def document(self, number: int) -> dict[str, Any]:
        moved = int(time.time() * 1000)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        position = f"{moved >> 32:X}/{moved & 0xFFFFFFFF:X}"
        return {
            "version": 1,
            "pipeline": self.names[number],
            "epoch": 1,
            "state": "Running",
            "startedAt": self._started_at,
            "at": now,
            "ready": True,
            "slot": {
                "name": f"levada_{self.names[number]}",
                "lagBytes": moved % 3_000_000,
                "retainedBytes": 16_000_000 + moved % 5_000_000,
                "walStatus": "reserved",
                "safeWalBytes": None,
                "active": True,
                "sampledAt": now,
            },
            "capture": {
                "connected": True,
                "receivedLsn": position,
                "stagedLsn": position,
                "acknowledgedLsn": position,
            },
            "tables": [self._table(number, n, moved, position) for n in range(self.tables)],
            "error": None,
        }

    def _table(self, number: int, n: int, moved: int, position: str) -> dict[str, Any]:
        errored = (number, n) in self.errored
        error = {
            "code": "unrepresentable_value",
            "reason": "a value has no place",
            "solution": "set spec.onUnrepresentable",
            "retryPolicy": "ManualRetry",
            "attempts": 1,
            "nextRetry": None,
        }
        return {
            "id": 16384 + n,
            "schema": "public",
            "name": self.table_name(n),
            "phase": "Errored" if errored else "Ready",
            "mode": "Upsert",
            "note": "",
            "copy": {"rows": 1_000_000 + moved // 1000 % 1000, "bytes": 1 << 30, "percent": 100.0, "secondsLeft": None},
            "appliedLsn": position,
            "lagSeconds": 1 + moved // 1000 % 8,
            "error": error if errored else None,
        }

    def stop(self) -> None:
        for server in self._servers:
            server.shutdown()


class Cluster:
    """The API server as the benchmark uses it."""

    def __init__(self, namespace: str) -> None:
        config.load_kube_config()
        self.namespace = namespace
        api = client.ApiClient()
        # The name distinguishes the benchmark's lines in the audit log from the operator's.
        api.user_agent = _AGENT
        self._core = client.CoreV1Api(api)
        self._apps = client.AppsV1Api(api)
        self.coordination = client.CoordinationV1Api(api)
        self._custom = client.CustomObjectsApi(api)
        self._core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=namespace)))

    def create_pipeline(self, name: str) -> None:
        spec = {
            "source": {"host": f"{name}-db", "database": "shop", "credentialsSecretRef": {"name": "cdc"}},
            "tables": {"include": [{"schema": "public", "name": "*"}]},
            "destination": {"iceberg": {"catalog": {"type": "Rest", "uri": "https://catalog"}, "namespace": name}},
        }
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Pipeline", "metadata": {"name": name}, "spec": spec}
        self._custom.create_namespaced_custom_object(GROUP, VERSION, self.namespace, "pipelines", body)

    def objects(self, plural: str) -> list[dict[str, Any]]:
        found: Any = self._custom.list_namespaced_custom_object(GROUP, VERSION, self.namespace, plural)
        items: list[dict[str, Any]] = found["items"]
        return items

    def stateful_sets(self) -> int:
        return len(self._apps.list_namespaced_stateful_set(self.namespace).items)

    def table_phase(self, name: str) -> str:
        body: Any = self._custom.get_namespaced_custom_object(GROUP, VERSION, self.namespace, "tablesyncs", name)
        return str(body["status"]["phase"])

    def run_pod(self, name: str, address: str) -> None:
        """Have the driver's pod there, ready at the address, as a StatefulSet's controller and a kubelet would."""
        pod = f"{name}-driver-0"
        labels = {"levada.dev/pipeline": name, "levada.dev/role": "driver"}
        spec = {"serviceAccountName": f"{name}-driver", "containers": [{"name": "driver", "image": "levada:load"}]}
        body: Any = {"metadata": {"name": pod, "labels": labels}, "spec": spec}
        try:
            self._core.create_namespaced_pod(self.namespace, body)
        except client.ApiException as error:
            if error.status != 409:  # a controller was there first
                raise
        conditions = [{"type": t, "status": "True"} for t in ("Ready", "PodScheduled")]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
        self._core.patch_namespaced_pod_status(pod, self.namespace, {"status": status})

    def close(self) -> None:
        for body in self.objects("pipelines"):
            name = body["metadata"]["name"]
            patch = {"metadata": {"finalizers": None}}
            self._custom.patch_namespaced_custom_object(GROUP, VERSION, self.namespace, "pipelines", name, patch)
        self._core.delete_namespace(self.namespace)


@contextmanager
def operator(namespace: str, log: Path, port: int = _METRICS_PORT) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {
        "LEVADA_NAMESPACES": namespace,
        "LEVADA_ADDRESS": "127.0.0.1",
        "LEVADA_PORT": str(port),
        "LEVADA_IMAGE": "levada:load",
        # As the chart has them.
        "MALLOC_ARENA_MAX": "2",
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    with log.open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", "levada_operator"], env=environment, stdout=out, stderr=out)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def metric(name: str) -> float:
    with urllib.request.urlopen(_METRICS, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def writes(audit_log: Path | None, since: datetime) -> np.ndarray[Any, Any]:
    """Return when the operator wrote in the audit log, in seconds after ``since``. Leases are left out."""
    if audit_log is None:
        return np.array([])
    found = []
    with audit_log.open() as lines:
        for line in lines:
            event = json.loads(line)
            if event["stage"] != "ResponseComplete" or event["verb"] in ("get", "list", "watch"):
                continue
            if event["user"]["username"].startswith("system:") or event.get("userAgent") == _AGENT:
                continue
            if event["objectRef"]["resource"] == "leases":
                continue
            at = datetime.fromisoformat(event["requestReceivedTimestamp"])
            if at >= since:
                found.append((at - since).total_seconds())
    return np.array(sorted(found))


def lease_holder(cluster: Cluster) -> str:
    try:
        lease = cluster.coordination.read_namespaced_lease("levada-operator", cluster.namespace)
    except client.ApiException:
        return ""
    return str(lease.spec.holder_identity or "")


def hand_over(cluster: Cluster, log: Path, audit_log: Path | None, how: signal.Signals) -> tuple[float, float]:
    """End a leader that has a standby. Return the seconds until the standby leads, and the longest without a write."""
    with operator(cluster.namespace, log) as leader:
        until(lambda: lease_holder(cluster) != "", 0.5)
        time.sleep(30)
        with operator(cluster.namespace, log, _STANDBY_PORT):
            time.sleep(30)
            first, since = lease_holder(cluster), datetime.now(UTC)
            leader.send_signal(how)
            seconds = until(lambda: lease_holder(cluster) not in ("", first), 0.1)
            leader.wait(60)
            time.sleep(30)
    return seconds, float(max(np.diff(np.append(0.0, writes(audit_log, since))), default=0.0))


def until(done: Callable[[], bool], every_s: float) -> float:
    """Wait until ``done`` returns True. Return the seconds that it took."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > _PATIENCE_S:
            raise TimeoutError("the operator did not get there")
        time.sleep(every_s)
    return time.monotonic() - began


def phases(cluster: Cluster, plural: str) -> list[str]:
    return [(b.get("status") or {}).get("phase", "") for b in cluster.objects(plural)]


def change_latencies(cluster: Cluster, drivers: Drivers, rounds: int) -> list[float]:
    """Have one table after the other fail, and measure until its TableSync says so."""
    names = {(b["spec"]["pipelineRef"]["name"], b["spec"]["table"]["name"]): b["metadata"]["name"]
             for b in cluster.objects("tablesyncs")}  # fmt: skip
    found = []
    for turn in range(rounds):
        number, n = turn % len(drivers.names), turn % drivers.tables
        name = names[drivers.names[number], drivers.table_name(n)]
        drivers.errored.add((number, n))
        found.append(until(lambda name=name: cluster.table_phase(name) == "Errored", 0.25))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipelines", type=int, default=50)
    parser.add_argument("--tables", type=int, default=40, help="of each Pipeline")
    parser.add_argument("--seconds", type=float, default=300, help="of the steady part")
    parser.add_argument("--rounds", type=int, default=30, help="of the measurement from a change to status")
    parser.add_argument("--audit-log", type=Path)
    options = parser.parse_args()
    namespace, log = f"levada-load-{uuid.uuid4().hex[:6]}", Path(f"operator-load-{os.getpid()}.log")
    drivers = Drivers(options.pipelines, options.tables)
    cluster = Cluster(namespace)
    rows: list[tuple[object, ...]] = []
    began = datetime.now(UTC)

    def note(what: str, seconds: float, count: float, since: datetime, usage: Meter, rss: int) -> None:
        at = writes(options.audit_log, since)
        # The busiest ten seconds show whether the budget of five a second holds, its burst included.
        busiest = max((np.searchsorted(at, t + 10) - i for i, t in enumerate(at)), default=0) / 10 if len(at) else "-"
        audited = len(at) if options.audit_log else "-"
        rows.append((what, seconds, int(count), audited, count / seconds, busiest, usage.usage.cpu / seconds * 100,
                     round(rss / 1e6)))  # fmt: skip

    try:
        with operator(namespace, log) as process:
            applied = time.monotonic()
            for name in drivers.names:
                cluster.create_pipeline(name)
            # Without a Lease the first start waits for the time of one.
            until(lambda: lease_holder(cluster) != "", 0.5)
            print(f"the operator leads {time.monotonic() - applied:.0f} s after the first apply", flush=True)
            with Meter(process.pid) as meter:
                until(lambda: cluster.stateful_sets() == options.pipelines, 1)
                for number, name in enumerate(drivers.names):
                    cluster.run_pod(name, drivers.address(number))
                ready = until(lambda: phases(cluster, "pipelines").count("Streaming") == options.pipelines, 1)
                print(f"every Pipeline streams, as kubectl tells it, {ready:.0f} s after its pod is ready", flush=True)
                tables = options.pipelines * options.tables
                until(lambda: phases(cluster, "tablesyncs").count("Ready") == tables, 5)
                told = time.monotonic() - applied
                print(f"every table has its status {told:.0f} s after the first apply", flush=True)
            total = metric("levada_operator_writes_total")
            note("from nothing to all told", meter.usage.wall, total, began, meter, rss_bytes(process.pid))
            since, before = datetime.now(UTC), metric("levada_operator_writes_total")
            with Meter(process.pid) as meter:
                time.sleep(options.seconds)
            note("steady, all figures moving", meter.usage.wall, metric("levada_operator_writes_total") - before, since,
                 meter, rss_bytes(process.pid))  # fmt: skip
            latencies = change_latencies(cluster, drivers, options.rounds)
        since = datetime.now(UTC)
        with operator(namespace, log) as process, Meter(process.pid) as meter:
            time.sleep(60)
            count, rss = metric("levada_operator_writes_total"), rss_bytes(process.pid)
        note("a minute from a restart", 60.0, count, since, meter, rss)
        for how in (signal.SIGTERM, signal.SIGKILL):
            seconds, silent = hand_over(cluster, log, options.audit_log, how)
            print(f"{how.name} of the leader: the standby leads after {seconds:.1f} s, {silent:.1f} s without a write")
    finally:
        cluster.close()
        drivers.stop()
    print(table(("part", "seconds", "writes", "audited", "a second", "busiest 10 s", "CPU %", "RSS MB"), rows))
    p50, p95 = np.percentile(latencies, [50, 95])
    print(f"from a change of a table to its status, {options.rounds} times: p50 {p50:.1f} s, p95 {p95:.1f} s")


if __name__ == "__main__":
    main()
