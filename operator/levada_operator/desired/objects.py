"""All objects that a running or suspended Pipeline owns, except TableSyncs and Jobs."""

from __future__ import annotations

from typing import Any

from levada_operator.desired.access import (
    build_copy_policy,
    build_executor_policy,
    build_network_policy,
    build_role,
    build_service_accounts,
    build_state,
)
from levada_operator.desired.driver import build_service, build_staging_claim, build_stateful_set
from levada_operator.desired.manifest import build_manifest
from levada_operator.desired.owner import Owner


def build_objects(owner: Owner, *, running: bool) -> list[dict[str, Any]]:
    """Return the objects in the order to apply them. One that is refused holds back those after it.

    The StatefulSet is last, because its pod needs the others. One that stops the pod needs none, and is first.
    """
    claim = build_staging_claim(owner)
    executors = [policy for policy in (build_executor_policy(owner), build_copy_policy(owner)) if policy is not None]
    stateful_set = build_stateful_set(owner, running=running)
    return [
        *([] if running else [stateful_set]),
        build_manifest(owner),
        *build_service_accounts(owner),
        *build_role(owner),
        *build_state(owner),
        *([] if claim is None else [claim]),
        build_network_policy(owner),
        *executors,
        build_service(owner),
        *([stateful_set] if running else []),
    ]
