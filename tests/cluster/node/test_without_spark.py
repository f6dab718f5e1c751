"""A Pipeline whose destination does not use Spark: a small pod without a JVM, which copies, streams and is replaced."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg
from tests.cluster.kubectl import PATIENCE, eventually
from tests.cluster.node.place import SHOP, TABLES, Place
from traffic import Traffic  # type: ignore[import-not-found]

from levada_operator.desired.resources import WITHOUT_SPARK

assert SHOP  # the example's folder is on the path by its import

REPLICA: Final = "replica"
COLUMNS: Final = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"


def replica() -> dict[str, Any]:
    """Return the changes by which the shop is replicated into another database, with the pods' defaults."""
    target = {
        "host": "shop-db",
        "database": REPLICA,
        "credentialsSecretRef": {"name": "shop-cdc"},
        "tls": {"mode": "Disable"},
    }
    return {"destination": {"iceberg": None, "postgres": target}, "staging": None, "driver": None}


def rows(uri: str, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
    """Return a table's rows as PostgreSQL prints them."""
    listed = ", ".join(f'"{column}"::text' for column in columns)
    with psycopg.connect(uri) as connection:
        return sorted(connection.execute(f"SELECT {listed} FROM {table}".encode()).fetchall(), key=repr)


def differences(place: Place) -> list[str]:
    """Return the tables that differ from the replica's."""
    found = []
    with place.connect() as connection:
        columns = {t: sorted(c for (c,) in connection.execute(COLUMNS, [t]).fetchall()) for t in TABLES}
    for table in TABLES:
        source, target = place.server.uri("shop"), place.server.uri(REPLICA)
        try:
            equal = rows(source, table, columns[table]) == rows(target, table, columns[table])
        except psycopg.errors.UndefinedTable:
            equal = False
        found += [] if equal else [table]
    return found


def equal(place: Place) -> None:
    """Wait until nothing differs. Traffic must have stopped."""
    try:
        eventually(lambda: not differences(place))
    except AssertionError:
        place.print_state()
        raise


def test_postgresql_from_apply_to_nothing_left(place: Place) -> None:
    """Ready and equal under writers, after a deleted pod, a killed engine and a pause too. No JVM, no rights."""
    place.execute(f"CREATE DATABASE {REPLICA}")
    kubectl = place.kubectl
    traffic = Traffic(place.server.uri("shop")).start()
    place.apply(**replica())
    place.ready()
    (driver,) = (c for c in place.driver()["spec"]["containers"] if c["name"] == "driver")
    assert driver["resources"] == {"requests": WITHOUT_SPARK, "limits": {"memory": WITHOUT_SPARK["memory"]}}
    assert "java" not in place.in_driver("bash", "-c", "cat /proc/[0-9]*/comm")
    assert kubectl.get("roles,rolebindings", labels="levada.dev/pipeline") == []
    traffic.stop()
    equal(place)

    traffic = Traffic(place.server.uri("shop"), seed=8).start()
    uid = place.driver_uid()
    kubectl("delete", "pod", "shop-driver-0", "--force", "--grace-period=0")
    eventually(lambda: place.driver_uid() not in ("", uid))
    # Of the Pipeline, the status may still be that of the former pod.
    kubectl("wait", "--for=condition=Ready", "pod/shop-driver-0", PATIENCE)
    restarts = place.restarts()
    place.kill_in_driver(".*/bin/levada run")
    eventually(lambda: place.restarts() > restarts)
    place.ready()
    traffic.stop()
    equal(place)

    place.patch(suspend=True)
    place.reaches("Suspended", "True", "Drained")
    place.execute("UPDATE customers SET name = name || '#'")
    place.patch(suspend=False)
    place.ready()
    equal(place)

    # The rows may be equal before the operator has seen that the killed engine runs again.
    line = r"shop +True +Streaming +6/6 +\S+ +\S+"
    eventually(lambda: re.fullmatch(line, kubectl("get", "pipelines").splitlines()[1].strip()))
    eventually(lambda: kubectl("get", "tablesyncs").count(" Ready ") == len(TABLES))

    kubectl("delete", "pipeline", "shop", PATIENCE)
    assert place.slot() is None
    assert place.events("CleanupFinished")
    remains = "pods,jobs,statefulsets,configmaps,services,networkpolicies,serviceaccounts,tablesyncs"
    eventually(lambda: kubectl.get(remains, labels="levada.dev/pipeline") == [])
    assert differences(place) == [], "the tables at the destination stay"
