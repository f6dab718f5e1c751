"""A deletion always ends, whatever is down, and says what it had to leave."""

from __future__ import annotations

import pytest
from tests.cluster.kubectl import PATIENCE, Kubectl, eventually
from tests.cluster.node.place import Place
from tests.cluster.node.replica import REPLICA, replica


@pytest.mark.nightly
def test_deletion_ends_without_the_source(place: Place) -> None:
    """PostgreSQL is down: the Pipeline goes when time is over, and an Event names the slot and the SQL."""
    place.execute(f"CREATE DATABASE {REPLICA}")
    place.apply(**replica(), deletionPolicy={"cleanupTimeoutSeconds": 30})
    place.ready()
    place.server.stop("immediate")
    place.kubectl("delete", "pipeline", "shop", PATIENCE)
    assert place.told("CleanupAbandoned", f"SELECT pg_drop_replication_slot('{place.slot_name}')")


def test_namespace_goes(place: Place, cluster: Kubectl) -> None:
    """A namespace with a running Pipeline can be deleted. Its driver drops the slot, and nothing is left over."""
    place.execute(f"CREATE DATABASE {REPLICA}")
    place.apply(**replica())
    place.ready()
    assert place.slot() is not None
    name = place.kubectl.namespace
    cluster("delete", "namespace", name, PATIENCE)
    assert place.slot() is None

    def reasons() -> set[str]:
        found = Kubectl("default").get("events", fields=f"involvedObject.name={name}")
        return {e["reason"] for e in found if e["source"]["component"] == "levada-operator"}

    eventually(lambda: "CleanupFinished" in reasons())
    assert not {"CleanupAbandoned", "RefusedByCluster"} & reasons()


@pytest.mark.nightly
def test_namespace_goes_without_a_driver(place: Place, cluster: Kubectl) -> None:
    """The slot of a suspended Pipeline stays, and the Event at the namespace has the SQL."""
    place.execute(f"CREATE DATABASE {REPLICA}")
    place.apply(**replica())
    place.ready()
    place.patch(suspend=True)
    place.reaches("Suspended", "True", "Drained")
    name = place.kubectl.namespace
    cluster("delete", "namespace", name, PATIENCE)
    assert place.slot() is not None
    chosen, statement = f"involvedObject.name={name}", f"pg_drop_replication_slot('{place.slot_name}')"
    eventually(lambda: any(statement in e["message"] for e in Kubectl("default").get("events", fields=chosen)))
