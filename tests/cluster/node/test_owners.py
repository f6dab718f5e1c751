"""Two Pipelines of one name in two namespaces, over one server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.cluster.api.pipelines import told
from tests.cluster.kubectl import PATIENCE, Kubectl, eventually
from tests.cluster.node.place import Place, secret
from tests.cluster.node.replica import REPLICA, equal, replica
from tests.operator.samples import merge


@pytest.fixture
def second(place: Place, cluster: Kubectl) -> Iterator[Kubectl]:
    """A second namespace, with the Secret of the first one's database."""
    name = f"{place.kubectl.namespace}-b"
    other = cluster.make_namespace(name)
    other.apply(secret())
    yield other
    other.remove_namespace()


def rows(place: Place) -> tuple[list[tuple[object, ...]], ...]:
    """Return what the first Pipeline has at the source: its owner, phases and slots."""
    with place.connect() as c:
        return tuple(
            c.execute(query).fetchall()
            for query in (
                "SELECT name, owner_uid, owner_name, slot FROM levada.pipelines",
                "SELECT pipeline, table_id, content->'history'->-1->>'phase' FROM levada.documents"
                " WHERE kind = 'phases' ORDER BY 2",
                "SELECT slot_name FROM pg_replication_slots WHERE NOT temporary",
            )
        )


def trouble(other: Kubectl) -> Callable[[], str]:
    """Return a function that returns the message of the second Pipeline's driver, once its check has failed."""

    def message() -> str:
        status = (other.get("pipeline", "shop") or {}).get("status") or {}
        found = (c for c in status.get("conditions", ()) if c["type"] == "DriverAvailable")
        return next((c["message"] for c in found if c["reason"] == "PreflightFailed"), "")

    return message


@pytest.mark.nightly
def test_same_name_in_two_namespaces(place: Place, second: Kubectl) -> None:
    """The second is refused with the UID of the first, whose name is another tenant's.

    Its deletion removes nothing, and the first one keeps its slot and streams.
    """
    place.execute(f"CREATE DATABASE {REPLICA}")
    place.apply(**replica())
    place.ready()
    before, first = rows(place), place.kubectl.namespace
    uid = place.kubectl.get("pipeline", "shop")["metadata"]["uid"]
    there = {"host": f"shop-db.{first}.svc"}
    second.apply(place.manifest(**merge(replica(), {"source": there, "destination": {"postgres": there}})))
    message = eventually(trouble(second))
    assert f"a Pipeline of another namespace (UID {uid})" in message
    assert f"this is Pipeline {second.namespace}/shop" in message
    assert "levada.dev/take-over-from=" in message
    second("delete", "pipeline", "shop", PATIENCE)
    abandoned = told(second, "CleanupAbandoned")
    refused = f"the state of pipeline shop in the store belongs to a Pipeline of another namespace (UID {uid})"
    assert f"nothing was removed: {refused}" in abandoned
    assert f"{first}/shop" not in message + abandoned
    assert rows(place) == before
    place.execute("UPDATE customers SET name = name || '#'")
    equal(place)
