"""Access of the driver and the executors: ServiceAccounts, a Role, NetworkPolicies, and the state's ConfigMaps."""

from __future__ import annotations

from typing import Any

from levada.spec import DeletionAction, DriverMode, state_names
from levada_operator.desired.owner import Owner, build_object
from levada_operator.desired.pod import HTTP_PORT, cleans_up
from levada_operator.desired.spark import BLOCK_PORT, DRIVER_PORT, EXECUTOR_ROLE
from levada_operator.names import (
    COPY_ROLE,
    DRIVER_CONTAINER,
    GROUP,
    PIPELINE_LABEL,
    ROLE_LABEL,
    STATE_ROLE,
    copies_name,
    driver_name,
    executor_name,
)

_RBAC = "rbac.authorization.k8s.io/v1"


def build_service_accounts(owner: Owner) -> list[dict[str, Any]]:
    """Return the ServiceAccounts of driver and executors, or none if the user names one. Executors have no rights.

    Both have the manifest's annotations, since both access the lake with the cloud role that these name.
    """
    if owner.spec.driver.service_account.name:
        return []
    names = [(driver_name(owner.name), DRIVER_CONTAINER)]
    if owner.spec.driver.mode is DriverMode.CLUSTER:
        names.append((executor_name(owner.name), EXECUTOR_ROLE))
    # Pods that need a token set automountServiceAccountToken themselves.
    content = {"automountServiceAccountToken": False}
    accounts = [build_object(owner, "ServiceAccount", "v1", name, role, content) for name, role in names]
    for account in accounts:
        if annotations := owner.spec.driver.service_account.annotations:
            account["metadata"]["annotations"] = dict(annotations)
    return accounts


def build_role(owner: Owner) -> list[dict[str, Any]]:
    """Return the driver's Role and RoleBinding, or nothing if the driver makes no requests to the API server."""
    rules: list[dict[str, Any]] = []
    if cleans_up(owner):
        # The driver cleans up if its namespace is being deleted, and reports it to the operator.
        rules.append({"apiGroups": [""], "resources": ["namespaces"], "resourceNames": [owner.namespace],
                      "verbs": ["get"]})  # fmt: skip
        rules.append({"apiGroups": [GROUP], "resources": ["pipelines/status"], "resourceNames": [owner.name],
                      "verbs": ["patch"]})  # fmt: skip
    if owner.spec.driver.mode is DriverMode.CLUSTER:
        verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "watch"]
        rules.append({"apiGroups": [""], "resources": ["pods"], "verbs": verbs})
    if owner.spec.store.config_map is not None:
        # RBAC cannot limit create to names, so the operator creates the ConfigMaps.
        own = {"resourceNames": list(state_names(owner.name)), "verbs": ["get", "patch"]}
        rules.append({"apiGroups": [""], "resources": ["configmaps"], **own})
    if not rules:
        return []
    name = driver_name(owner.name)
    binding = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": owner.account, "namespace": owner.namespace}],
    }
    return [
        build_object(owner, "Role", _RBAC, name, DRIVER_CONTAINER, {"rules": rules}),
        build_object(owner, "RoleBinding", _RBAC, name, DRIVER_CONTAINER, binding),
    ]


def build_state(owner: Owner) -> list[dict[str, Any]]:
    """Return the ConfigMaps of the ConfigMap store, or none for other stores. The driver alone writes their content."""
    if owner.spec.store.config_map is None:
        return []
    stays = owner.spec.deletion_policy.state is DeletionAction.RETAIN
    return [
        build_object(owner, "ConfigMap", "v1", name, STATE_ROLE, {}, owned=not stays)
        for name in state_names(owner.name)
    ]


def build_network_policy(owner: Owner) -> dict[str, Any]:
    """Return the NetworkPolicy that lets in the operator, the collector of metrics and the driver's executors.

    Egress is not limited, because Kubernetes does not know the addresses of the source and the destination.
    """
    defaults = owner.defaults
    namespaces = {defaults.operator_namespace, defaults.metrics_namespace} - {""}
    ingress: list[dict[str, Any]] = [
        {
            "from": [
                {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
                for name in sorted(namespaces)
            ],
            "ports": [{"protocol": "TCP", "port": HTTP_PORT}],
        }
    ]
    if owner.spec.driver.mode is DriverMode.CLUSTER:
        ingress.append(_from_executors(owner))
    spec = {
        "podSelector": {"matchLabels": {PIPELINE_LABEL: owner.name, ROLE_LABEL: DRIVER_CONTAINER}},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return build_object(
        owner, "NetworkPolicy", "networking.k8s.io/v1", driver_name(owner.name), DRIVER_CONTAINER, {"spec": spec}
    )


def build_copy_policy(owner: Owner) -> dict[str, Any] | None:
    """Return the NetworkPolicy that lets in the executors of dedicated copies, or None if there are no executors."""
    if owner.spec.driver.mode is not DriverMode.CLUSTER:
        return None
    spec = {
        "podSelector": {"matchLabels": {PIPELINE_LABEL: owner.name, ROLE_LABEL: COPY_ROLE}},
        "policyTypes": ["Ingress"],
        "ingress": [_from_executors(owner)],
    }
    return build_object(
        owner, "NetworkPolicy", "networking.k8s.io/v1", copies_name(owner.name), COPY_ROLE, {"spec": spec}
    )


def _from_executors(owner: Owner) -> dict[str, Any]:
    executors = {"matchLabels": {PIPELINE_LABEL: owner.name, ROLE_LABEL: EXECUTOR_ROLE}}
    ports = [{"protocol": "TCP", "port": port} for port in (DRIVER_PORT, BLOCK_PORT)]
    return {"from": [{"podSelector": executors}], "ports": ports}


def build_executor_policy(owner: Owner) -> dict[str, Any] | None:
    """Return the NetworkPolicy that lets in drivers, copies and other executors, or None if there are no executors."""
    if owner.spec.driver.mode is not DriverMode.CLUSTER:
        return None
    peers = [
        {"podSelector": {"matchLabels": {PIPELINE_LABEL: owner.name, ROLE_LABEL: role}}}
        for role in (DRIVER_CONTAINER, COPY_ROLE, EXECUTOR_ROLE)
    ]
    spec = {
        "podSelector": {"matchLabels": {PIPELINE_LABEL: owner.name, ROLE_LABEL: EXECUTOR_ROLE}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": peers}],
    }
    return build_object(
        owner, "NetworkPolicy", "networking.k8s.io/v1", executor_name(owner.name), EXECUTOR_ROLE, {"spec": spec}
    )
