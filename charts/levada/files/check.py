"""Whether the operator answers, and whether it has the rights that it needs and no others. For `helm test`."""

import os
import sys
import time
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
ANSWER_S = 60


def ask(address: str) -> None:
    """Print what the operator answers. Raise OSError if it is not ready within `ANSWER_S` seconds.

    Right after an installation, the rules of the Service and of the NetworkPolicy may not be on this node yet.
    """
    end = time.monotonic() + ANSWER_S
    # A proxy of the environment is for the internet.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(address, timeout=10) as answer:
                print(f"{address}: {answer.status} {answer.read().decode().strip()}")
                return
        except OSError as error:
            print(f"{address}: {error}")
            if time.monotonic() > end:
                raise
        time.sleep(1)


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
    ask(os.environ["OPERATOR"])
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
