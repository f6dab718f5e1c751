"""A namespace with a Pipeline in mode Cluster. Its lake and its staging area are in an object store."""

from __future__ import annotations

import json
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from tests.cluster.bringup.layout import CGROUP, HOST, PODS
from tests.cluster.kubectl import LIMIT_S, Kubectl, eventually
from tests.cluster.node.place import PASSWORD, ROLE, secret
from tests.operator.samples import merge
from tests.servers.s3 import ObjectStore, object_store

from levada.local.postgres import EmbeddedPostgres, temporary_postgres

DRIVER: Final = "shop-driver-0"
_PORT: Final = 8080
_CPUACCT: Final = Path("/sys/fs/cgroup/cpuacct")


@dataclass(frozen=True)
class ExecutorPlace:
    """A namespace, its database, and its object store. The Pipeline in it is called shop."""

    kubectl: Kubectl
    server: EmbeddedPostgres
    store: ObjectStore

    def execute(self, *statements: str) -> None:
        """Run each statement in a transaction of its own at the source. A DO block may have its own transactions."""
        with psycopg.connect(self.server.uri("shop"), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def apply(self, **changes: Any) -> None:
        """Apply the Pipeline with changes of its spec. None removes a field."""
        catalog = {
            "type": "Jdbc",
            "uri": f"jdbc:postgresql://{HOST}:{self.server.port}/catalog",
            "warehouse": "s3://lake/warehouse",
            "properties": self.store.place,
        }
        spec: dict[str, Any] = {
            "source": {
                "host": HOST,
                "port": self.server.port,
                "database": "shop",
                "credentialsSecretRef": {"name": "shop-cdc"},
                "tls": {"mode": "Disable"},
            },
            "tables": {"include": [{"schema": "public", "name": "*"}]},
            "destination": {
                "iceberg": {
                    "catalog": catalog,
                    "credentialsSecretRef": {"name": "lake"},
                    "namespace": "shop",
                    # What is measured and killed are batches.
                    "maintenance": {"compactEverySeconds": 0},
                }
            },
            "staging": {"uri": "s3://lake/staging"},
            "freshnessSeconds": 2,
        }
        self.kubectl.apply(
            {
                "apiVersion": "levada.dev/v1alpha1",
                "kind": "Pipeline",
                "metadata": {"name": "shop"},
                "spec": merge(spec, changes),
            }
        )

    def suspend(self, tables: set[str], value: bool = True) -> None:
        """Suspend or resume the tables."""
        for sync in self.kubectl.get("tablesyncs"):
            if sync["spec"]["table"]["name"] in tables:
                self.kubectl.patch("tablesync", sync["metadata"]["name"], {"spec": {"suspend": value}})

    def pod(self) -> dict[str, Any]:
        """Return the driver's pod, empty if there is none."""
        return dict(self.kubectl.get("pod", DRIVER) or {})

    def executors(self) -> list[dict[str, Any]]:
        """Return the pods of executors that run, oldest first."""
        pods = self.kubectl.get("pods", labels="levada.dev/role=executor")
        pods.sort(key=lambda pod: pod["metadata"]["creationTimestamp"])
        return [p for p in pods if p["status"]["phase"] == "Running" and "deletionTimestamp" not in p["metadata"]]

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds of the driver's pod and of each executor's, by their uids."""
        return {p["metadata"]["uid"]: _cpu_seconds(p["metadata"]["uid"]) for p in (self.pod(), *self.executors()) if p}

    def idle(self) -> bool:
        """Return True if no pod used 0.15 seconds of CPU in the last two. The driver's pulse uses less."""
        before = self.cpu_seconds()
        time.sleep(2)
        return all(now - before.get(uid, 0.0) < 0.15 for uid, now in self.cpu_seconds().items())

    def progress(self) -> dict[str, Any]:
        """Return the driver's progress document, empty if it does not answer."""
        address = self.pod().get("status", {}).get("podIP")
        try:
            url = f"http://{address}:{_PORT}/v1/progress"
            with urllib.request.urlopen(url, timeout=10) as answer:  # paced: the next look asks again
                return dict(json.load(answer))
        except OSError:
            return {}

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the tables of the progress document by their names."""
        return {t["name"]: t for t in self.progress().get("tables", ())}

    def pending(self, table: str) -> int | None:
        """Return the number of staged changes of a table that are not applied, or None if it is not known now."""
        found = self.tables().get(table)
        return None if found is None else int(found["pendingRows"])

    def stage(self, limit_s: float = LIMIT_S) -> None:
        """Wait until every change that the source has now is staged."""
        with psycopg.connect(self.server.uri("shop"), autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            staged = "SELECT bool_or(active AND confirmed_flush_lsn >= %s) FROM pg_replication_slots"
            try:
                eventually(lambda: (connection.execute(staged, row).fetchone() or (False,))[0], limit_s)
            except AssertionError:
                self.print_state()
                raise

    def log(self) -> str:
        """Return the log of the driver's container."""
        return self.kubectl.run("logs", DRIVER, "-c", "driver", "--tail=-1", check=False).stdout

    def verify(self) -> str:
        """Return what ``levada verify`` prints. Raise AssertionError unless all tables are equal."""
        return self.kubectl("exec", DRIVER, "-c", "driver", "--", "levada", "verify")

    def ready(self, limit_s: float = LIMIT_S) -> None:
        """Wait until the Pipeline is Ready."""
        self.kubectl("wait", "--for=condition=Ready", "pipeline/shop", f"--timeout={limit_s:.0f}s")

    def print_state(self) -> None:
        """Print what an error report would want to know."""
        for arguments in (
            ("get", "pods,pipelines,tablesyncs", "-o", "wide"),
            ("describe", "pipeline", "shop"),
            ("describe", "pods"),
            ("logs", DRIVER, "--all-containers", "--tail=100"),
            ("logs", DRIVER, "--previous", "--tail=60"),
        ):
            done = self.kubectl.run(*arguments, check=False)
            print(f"$ kubectl {' '.join(arguments)}\n{done.stdout}{done.stderr}")


def _cpu_seconds(uid: str) -> float:
    """Return the CPU seconds of a pod by its cgroup, of version 1 or 2."""
    root = _CPUACCT if _CPUACCT.exists() else _CPUACCT.parent
    folder = next(iter((root / CGROUP).rglob(f"pod{uid}")), None)
    if folder is None:
        return 0.0
    if (folder / "cpuacct.usage").exists():
        return int((folder / "cpuacct.usage").read_text()) / 1e9
    return int((folder / "cpu.stat").read_text().split()[1]) / 1e6


@contextmanager
def executor_place(cluster: Kubectl) -> Iterator[ExecutorPlace]:
    """Make a namespace with an empty database and an empty object store, and remove all of it."""
    name = f"executors-{uuid.uuid4().hex[:6]}"
    with (
        tempfile.TemporaryDirectory(prefix="levada-objects-") as folder,
        object_store(Path(folder), address=HOST) as store,
        temporary_postgres(address=HOST, network=PODS) as server,
    ):
        with psycopg.connect(server.uri(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
            connection.execute("CREATE DATABASE catalog")
            connection.execute(f"CREATE ROLE {ROLE} SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
        keys = {**store.keys, "jdbc.user": ROLE, "jdbc.password": PASSWORD}
        lake = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "lake"}, "stringData": keys}
        one = ExecutorPlace(cluster.make_namespace(name), server, store)
        try:
            one.kubectl.apply(secret(), lake)
            yield one
        finally:
            one.kubectl.remove_namespace()
