"""kopf's settings: each against a known pitfall."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import kopf

from levada_operator.names import FINALIZER


class NoDiffBase(kopf.DiffBaseStorage):
    """Keeps no copy of what was last seen: nothing here is decided from a difference, and annotations are small."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        """Return nothing, so that no two states differ."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Return the same nothing: every object counts as seen."""
        return kopf.BodyEssence()

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Write nothing."""


def settings(*, namespaced: bool) -> kopf.OperatorSettings:
    """Return the settings."""
    out = kopf.OperatorSettings()
    # Peering is no lock: two peers that do not see each other both act. A Lease elects the leader before kopf begins.
    out.peering.standalone = True
    # Events are our own, of a closed list; kopf's log lines are none.
    out.posting.enabled = False
    out.persistence.finalizer = FINALIZER
    out.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="operator.levada.dev")
    out.persistence.diffbase_storage = NoDiffBase()
    # Behind a load balancer a watch may end without a word.
    out.watching.server_timeout = 290
    out.watching.client_timeout = 310
    out.watching.connect_timeout = 10
    out.networking.request_timeout = 30
    out.queueing.worker_limit = 20
    # Without the right to look at all of the cluster, kopf is not to look for new kinds and namespaces.
    out.scanning.disabled = namespaced
    return out
