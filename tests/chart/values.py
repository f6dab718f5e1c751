"""The three ways to install that the tests look at."""

from __future__ import annotations

from typing import Any, Final

CASES: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "namespaced": {
        "watchNamespaces": ["data", "shop"],
        "crds": {"install": False},
        "rbac": {"executors": False},
    },
    "everything": {
        "fullnameOverride": "sync",
        "image": {
            "repository": "registry.example/levada",
            "digest": f"sha256:{'a' * 64}",
            "pullPolicy": "Always",
            "pullSecrets": [{"name": "registry"}],
        },
        "replicas": 2,
        "updatePolicy": {"maxConcurrent": 3, "deadlineSeconds": 900},
        "stagingVolume": {"use": "Always", "size": "50Gi"},
        "assignedUser": True,
        "driverToken": {"secretName": "driver-token", "namespaces": ["data", "bank"]},
        "driverImage": "registry.example/levada-with-more:1",
        "serviceAccount": {"name": "syncer", "annotations": {"example.com/role": "none"}},
        "podAnnotations": {"example.com/a": "1"},
        "podLabels": {"team": "data"},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "logLevel": "debug",
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
        "extraVolumes": [{"name": "certificates", "configMap": {"name": "certificates"}}],
        "extraVolumeMounts": [{"name": "certificates", "mountPath": "/etc/certificates", "readOnly": True}],
        "priorityClassName": "system-cluster-critical",
        "podDisruptionBudget": {"enabled": True, "maxUnavailable": 0},
        "networkPolicy": {"enabled": True},
        "metrics": {
            "namespace": "monitoring",
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "15s"},
            "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True, "annotations": {"folder": "Data"}},
        },
    },
}
