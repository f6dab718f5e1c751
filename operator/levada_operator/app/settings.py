"""kopf's settings. The comments name the pitfall that each avoids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import kopf

from levada_operator.names import FINALIZER


class NoDiffBase(kopf.DiffBaseStorage):
    """Storage that keeps no last-handled state: no decision depends on a difference, and annotations are limited."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        """Return an empty essence, so that no two states differ."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Return an empty essence, so that every object counts as handled."""
        return kopf.BodyEssence()

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Store nothing."""


def settings(*, namespaced: bool) -> kopf.OperatorSettings:
    """Return kopf's settings. ``namespaced`` is True if the operator serves a list of namespaces."""
    out = kopf.OperatorSettings()
    # Peering is no lock: two peers that do not see each other both act. A Lease elects the leader before kopf starts.
    out.peering.standalone = True
    # The operator writes Events of a closed list. kopf would write an Event for each of its log lines.
    out.posting.enabled = False
    out.persistence.finalizer = FINALIZER
    out.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="operator.levada.dev")
    out.persistence.diffbase_storage = NoDiffBase()
    # Behind a load balancer a watch connection may break without notice.
    out.watching.server_timeout = 290
    out.watching.client_timeout = 310
    out.watching.connect_timeout = 10
    out.networking.request_timeout = 30
    out.queueing.worker_limit = 20
    # A worker is kept for so long after its object's last event. With 5 s, kopf's default, 20 workers take 4 objects a
    # second.
    out.queueing.idle_timeout = 0.2
    # kopf scans for new kinds and namespaces, which needs rights over the whole cluster.
    out.scanning.disabled = namespaced
    return out
