"""One namespace as a user has it: a database, its password in a Secret, a lake on a volume, and the shop's Pipeline."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml
from tests.cluster.bringup.layout import HOST, PODS, Layout
from tests.cluster.kubectl import PATIENCE, Kubectl, eventually
from tests.cluster.node.comparison import differences
from tests.cluster.node.lake import read_table
from tests.operator.samples import merge

from levada.local.postgres import EmbeddedPostgres, temporary_postgres
from levada.spec import default_object_name

SHOP: Final = Path(__file__).parents[3] / "examples" / "shop"
# The tests use the example's traffic too.
sys.path.append(str(SHOP))

TABLES: Final = ("customers", "products", "orders", "order_items", "payments", "baskets")
ROLE: Final = "levada"
PASSWORD: Final = "only-a-test"
USER: Final = 185
"""The user of the image."""


@dataclass(frozen=True)
class Place:
    """A namespace, and what is around it. The Pipeline in it, if any, is called shop."""

    kubectl: Kubectl
    server: EmbeddedPostgres
    lake: Path

    # The source

    def connect(self) -> psycopg.Connection[Any]:
        """Return a connection of the superuser."""
        return psycopg.connect(self.server.uri("shop"), autocommit=True)

    def execute(self, *statements: str) -> None:
        """Run each statement in a transaction of its own."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    @property
    def slot_name(self) -> str:
        """The name of the Pipeline's slot, which has the namespace in it."""
        return default_object_name("shop", self.kubectl.namespace)

    def slot(self) -> dict[str, Any] | None:
        """Return what PostgreSQL says of the slot: active, and the bytes of lag."""
        with self.connect() as connection:
            row = connection.execute(
                "SELECT active, pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots"
                " WHERE slot_name = %s",
                [self.slot_name],
            ).fetchone()
        return None if row is None else {"active": row[0], "lag": int(row[1])}

    # The Pipeline

    def manifest(self, **changes: Any) -> dict[str, Any]:
        """Return the example's Pipeline with changes of its spec, by the YAML's names. None removes a field."""
        body: dict[str, Any] = yaml.safe_load((SHOP / "pipeline.yaml").read_text())
        return {**body, "spec": merge(body["spec"], changes)}

    def apply(self, **changes: Any) -> None:
        """Apply `manifest`."""
        self.kubectl.apply(self.manifest(**changes))

    def patch(self, **changes: Any) -> None:
        """Change fields of the Pipeline's spec."""
        self.kubectl.patch("pipeline", "shop", {"spec": changes})

    def ready(self) -> None:
        """Wait until the Pipeline is Ready, and knows of every table."""
        try:
            self.kubectl("wait", "--for=condition=Ready", "pipeline/shop", PATIENCE)
        except AssertionError:
            self.print_state()
            raise

    def fit(self) -> bool:
        """Return True if the Pipeline is Ready within a minute, and both sides are equal."""
        waiting = ("wait", "--for=condition=Ready", "pipeline/shop", "--timeout=60s")
        return not self.kubectl.run(*waiting, check=False).returncode and not self.differences()

    def status(self) -> dict[str, Any]:
        """Return the Pipeline's status, empty if there is none."""
        return dict((self.kubectl.get("pipeline", "shop") or {}).get("status") or {})

    def condition(self, kind: str) -> tuple[str, str]:
        """Return a condition's status and reason."""
        found = self.status().get("conditions", ())
        return next(((c["status"], c["reason"]) for c in found if c["type"] == kind), ("", ""))

    def message(self, kind: str) -> str:
        """Return a condition's message."""
        found = self.status().get("conditions", ())
        return next((str(c["message"]) for c in found if c["type"] == kind), "")

    def reaches(self, kind: str, status: str, reason: str) -> None:
        """Wait until a condition has that status and reason."""
        try:
            eventually(lambda: self.condition(kind) == (status, reason))
        except AssertionError:
            self.print_state()
            raise AssertionError(f"{kind} is {self.condition(kind)}, not {(status, reason)}") from None

    def events(self, reason: str) -> list[str]:
        """Return the messages of the Pipeline's Events of that reason, so far."""
        return [e["message"] for e in self.kubectl.get("events") if e["reason"] == reason]

    def told(self, reason: str, *words: str) -> str:
        """Wait for an Event of that reason with the words, and return its message. Events follow the status."""
        return eventually(lambda: [m for m in self.events(reason) if all(word in m for word in words)])[0]

    def driver(self) -> dict[str, Any]:
        """Return the driver's pod, empty if there is none."""
        return dict(self.kubectl.get("pod", "shop-driver-0") or {})

    def driver_uid(self) -> str:
        """Return which pod the driver's is, empty if there is none."""
        return str(self.driver().get("metadata", {}).get("uid", ""))

    def restarts(self) -> int:
        """Return how often the driver's container was started again in its pod."""
        return sum(c["restartCount"] for c in self.driver().get("status", {}).get("containerStatuses", ()))

    def kill_in_driver(self, program: str, signal: str = "KILL") -> None:
        """Send a signal to every process of the driver's container whose command line begins so."""
        # The shell that looks has the words in its own command line.
        found = '[ "$p" != "/proc/$$" ] && tr "\\0" " " < "$p/cmdline" | grep -q "^$0"'
        kill = f'for p in /proc/[0-9]*; do {found} && kill -s "$1" "${{p#/proc/}}"; done; true'
        self.in_driver("bash", "-c", kill, program, signal)

    def in_driver(self, *command: str) -> str:
        """Run a command in the driver's container."""
        return self.kubectl("exec", "shop-driver-0", "-c", "driver", "--", *command)

    # The lake

    def differences(self, namespace: str = "shop") -> list[str]:
        """Compare every table of the shop with the lake's in that namespace. Return nothing if they are equal."""
        found = []
        with psycopg.connect(self.server.uri("shop")) as connection:
            for table in TABLES:
                lake = read_table(self.lake, namespace, table)
                found += [
                    f"{table}: {d}" for d in (["not there"] if lake is None else differences(connection, table, lake))
                ]
        return found

    def equal(self) -> None:
        """Wait until there is no difference. Traffic must have stopped."""
        try:
            eventually(lambda: not self.differences())
        except AssertionError:
            self.print_state()
            raise AssertionError(self.differences()) from None

    def print_state(self) -> None:
        """Print what an error report would want to know."""
        for arguments in (
            ("get", "pods,jobs,pipelines,tablesyncs", "-o", "wide"),
            ("describe", "pipeline", "shop"),
            ("describe", "pod", "shop-driver-0"),
            ("logs", "shop-driver-0", "--all-containers", "--tail=60"),
            ("logs", "shop-driver-0", "--previous", "--tail=60"),
        ):
            done = self.kubectl.run(*arguments, check=False)
            print(f"$ kubectl {' '.join(arguments)}\n{done.stdout}{done.stderr}")


@contextmanager
def new_place(layout: Layout, cluster: Kubectl, *, scale: float = 0.02, name: str = "") -> Iterator[Place]:
    """Make a namespace with a shop of that scale (1: about 250,000 rows), and remove it, its volume and its server."""
    name = name or f"shop-{uuid.uuid4().hex[:6]}"
    lake = layout.volumes / name
    lake.mkdir(parents=True)
    os.chown(lake, USER, USER)
    with temporary_postgres(address=HOST, network=PODS) as server:
        one = Place(cluster.make_namespace(name), server, lake)
        _open_shop(server, scale)
        try:
            one.kubectl.apply(*_objects(name, server.port, lake))
            yield one
        finally:
            one.kubectl.remove_namespace()
            cluster.delete("persistentvolume", name)
            shutil.rmtree(lake)


def _open_shop(server: EmbeddedPostgres, scale: float) -> None:
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE shop")
        connection.execute(f"CREATE ROLE {ROLE} SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
    with psycopg.connect(server.uri("shop"), autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute((SHOP / "schema.sql").read_bytes())
        connection.execute((SHOP / "rows.sql").read_bytes(), {"scale": scale})


def _objects(namespace: str, port: int, lake: Path) -> list[dict[str, Any]]:
    """Return the Secret, the database's Service and the lake's claim."""
    size = {"storage": "10Gi"}
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    return [
        secret(),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shop-db"},
         "spec": {"ports": [{"name": "postgres", "port": 5432, "targetPort": port}]}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
         "metadata": {"name": "shop-db", "labels": {"kubernetes.io/service-name": "shop-db"}},
         "ports": [{"name": "postgres", "port": port}], "endpoints": [{"addresses": [HOST]}]},
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": namespace},
         "spec": {**claim, "capacity": size, "persistentVolumeReclaimPolicy": "Retain",
                  "hostPath": {"path": str(lake), "type": "Directory"},
                  "claimRef": {"namespace": namespace, "name": "shop-lake"}}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shop-lake"},
         "spec": {**claim, "resources": {"requests": size}, "volumeName": namespace}},
    ]  # fmt: skip


def secret(password: str = PASSWORD, name: str = "shop-cdc") -> dict[str, Any]:
    """Return the Secret with which the driver logs in."""
    data = {"username": ROLE, "password": password}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
