"""Whether the operator answers, and whether it has the rights that it needs and no others. For `helm test`."""

import os
import sys
import urllib.request

from kubernetes import client, config

NEEDED = [
    ("levada.dev", "pipelines", "watch"),
    ("levada.dev", "pipelines/status", "patch"),
    ("levada.dev", "tablesyncs", "create"),
    ("apps", "statefulsets", "create"),
    ("batch", "jobs", "create"),
    ("", "configmaps", "patch"),
    ("", "pods", "list"),
    ("", "events", "create"),
]
REFUSED = [
    ("", "secrets", "get"),
    ("", "secrets", "list"),
    ("", "secrets", "watch"),
    ("", "secrets", "create"),
    ("", "pods/exec", "create"),
    ("", "nodes", "list"),
    ("levada.dev", "pipelines", "create"),
    ("levada.dev", "pipelines", "delete"),
    ("rbac.authorization.k8s.io", "clusterroles", "create"),
    ("*", "*", "*"),
]


def may(namespace: str, group: str, resource: str, verb: str) -> bool:
    """Ask the API server whether this account has a right; no namespace means all."""
    name, _, subresource = resource.partition("/")
    asked = client.V1ResourceAttributes(
        namespace=namespace, group=group, resource=name, subresource=subresource, verb=verb
    )
    review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=asked))
    allowed: bool = client.AuthorizationV1Api().create_self_subject_access_review(review).status.allowed
    return allowed


def main() -> int:
    """Return the exit code."""
    with urllib.request.urlopen(os.environ["OPERATOR"], timeout=30) as answer:
        print(f"{os.environ['OPERATOR']}: {answer.status} {answer.read().decode().strip()}")
    config.load_incluster_config()
    wrong = 0
    for namespace in os.environ.get("NAMESPACES", "").split(","):
        for expected, rights in ((True, NEEDED), (False, REFUSED)):
            for group, resource, verb in rights:
                allowed = may(namespace, group, resource, verb)
                wrong += allowed is not expected
                mark = "ok   " if allowed is expected else "WRONG"
                place = namespace or "all namespaces"
                print(f"{mark} {'may' if allowed else 'may not'} {verb} {resource} in {place}")
    return 1 if wrong else 0


sys.exit(main())
