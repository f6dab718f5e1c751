"""The operator as a process, against a real API server. The driver is an endpoint that only reports progress."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.api.pipelines import condition, events, shop, sql, streaming, told
from tests.cluster.api.processes import FakeDriver, Operator, make_pod
from tests.cluster.kubectl import PATIENCE, Kubectl, eventually
from tests.operator.kstatus import kstatus, waited_for
from tests.operator.samples import document, error_document, table_document

from levada.spec import default_object_name
from levada_operator.names import MANIFEST_DIGEST


def test_pipeline_runs(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """From apply to Ready: the driver's objects, a TableSync for each table, and statuses that kubectl prints."""
    streaming(kubectl, driver)
    assert kubectl.get("statefulset", "shop-driver")["spec"]["replicas"] == 1
    eventually(lambda: len(kubectl.get("tablesyncs")) == 2)
    eventually(lambda: all(t.get("status", {}).get("phase") == "Ready" for t in kubectl.get("tablesyncs")))
    printed = kubectl("get", "pipelines").splitlines()[1].split()
    assert printed[:5] == ["shop", "True", "Streaming", "2/2", "1.2Mi"]
    one = kubectl.get("pipeline", "shop")
    assert one["status"]["observedGeneration"] == one["metadata"]["generation"]
    assert one["metadata"]["finalizers"] == ["levada.dev/cleanup"]
    tsync = kubectl.get("tablesyncs")[0]
    assert "finalizers" not in tsync["metadata"]
    assert tsync["metadata"]["ownerReferences"][0]["uid"] == one["metadata"]["uid"]


def test_no_spec_is_copied_into_an_annotation(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """The operator stores no copy of an object. The only annotation is kubectl's own."""
    streaming(kubectl, driver)
    operator.swept_twice()
    annotations = kubectl.get("pipeline", "shop")["metadata"].get("annotations", {})
    assert set(annotations) <= {"kubectl.kubernetes.io/last-applied-configuration"}
    for tsync in kubectl.get("tablesyncs"):
        assert not tsync["metadata"].get("annotations", {}).keys() - {"levada.dev/applied"}


def test_operator_restart_changes_nothing(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """A new operator, after a clean end or a kill, leaves every object as it is."""
    streaming(kubectl, driver)
    operator.swept_twice()

    def written() -> dict[str, list[dict[str, Any]]]:
        """Return what the operator has written of each object, and when. Its controller writes the status."""
        kinds = "statefulset,service,configmap,networkpolicy,serviceaccount"
        found = kubectl.get(kinds, labels="levada.dev/pipeline=shop")
        fields = {f"{o['kind']}/{o['metadata']['name']}": o["metadata"]["managedFields"] for o in found}
        return {name: [f for f in of if f["manager"] == "levada-operator"] for name, of in fields.items()}

    before = written()
    assert len(before) == 5
    assert all(before.values())
    for number in (signal.SIGTERM, signal.SIGKILL):
        operator.stop(number)
        operator.start()
        operator.swept_twice()
        assert written() == before


def test_rests_without_writes(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """A Pipeline in which only positions and times move costs no write at all."""
    streaming(kubectl, driver)
    eventually(lambda: len(kubectl.get("tablesyncs")) == 2)

    def writes() -> float:
        metrics = eventually(operator.metrics)
        return sum(v for k, v in metrics.items() if k.startswith("levada_operator_writes_total"))

    def rests() -> bool:
        before = writes()
        operator.swept_twice()
        return writes() == before

    eventually(rests)
    before = writes()
    for lsn in range(3):
        driver.document = document(table_document(appliedLsn=f"0/{lsn + 5}"), table_document("events"))
        operator.swept_twice()
    assert writes() == before


def test_two_managers_do_not_fight(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """Additions of others stay, and their changes of the operator's fields are undone.

    A TableSync keeps a user's settings.
    """
    streaming(kubectl, driver)
    theirs = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "shop-driver", "labels": {"x": "y"}}}
    kubectl.apply(theirs, options=("--server-side", "--field-manager=somebody"))
    kubectl.patch("statefulset", "shop-driver", {"spec": {"replicas": 3}})
    eventually(lambda: kubectl.get("statefulset", "shop-driver")["spec"]["replicas"] == 1)
    assert kubectl.get("statefulset", "shop-driver")["metadata"]["labels"]["x"] == "y"
    name = "shop-public-orders"
    eventually(lambda: kubectl.get("tablesync", name))
    own = {"apiVersion": "levada.dev/v1alpha1", "kind": "TableSync", "metadata": {"name": name}, "spec": {
        "suspend": True, "pipelineRef": {"name": "shop"}, "table": {"schema": "public", "name": "orders"}}}  # fmt: skip
    kubectl.apply(own, options=("--server-side", "--field-manager=gitops"))
    eventually(lambda: "suspend: true" in kubectl.get("configmap", "shop-manifest")["data"]["pipeline.yaml"])
    operator.swept_twice()
    assert kubectl.get("tablesync", name)["spec"]["suspend"] is True


def test_hot_change_leaves_the_pod_alone(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """A Hot field reaches the mounted manifest alone, and a Restart field rolls the pod.

    Events name class and field.
    """
    streaming(kubectl, driver)
    before = kubectl.get("statefulset", "shop-driver")["spec"]["template"]
    kubectl.patch("pipeline", "shop", {"spec": {"freshnessSeconds": 30}})
    eventually(lambda: "freshnessSeconds: 30" in kubectl.get("configmap", "shop-manifest")["data"]["pipeline.yaml"])
    eventually(lambda: events(kubectl, "SpecChanged") == ["Hot: spec.freshnessSeconds"])
    operator.swept_twice()
    assert kubectl.get("statefulset", "shop-driver")["spec"]["template"] == before
    kubectl.patch("pipeline", "shop", {"spec": {"driver": {"image": "levada:other"}}})
    eventually(lambda: "Restart: spec.driver.image" in events(kubectl, "SpecChanged"))
    eventually(lambda: kubectl.get("statefulset", "shop-driver")["spec"]["template"] != before)


TYPO = {"driver": {"podTemplate": {"spec": {"schedulerName": "nobody", "tolerationz": []}}}}


def test_typo_in_a_pod_template(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """A new Pipeline with a typo in its pod template has a status.

    A running one keeps its driver, and reports the typo.
    """
    wrong = shop("wrong", source={"slot": {"name": "other"}})
    wrong["spec"]["driver"] = TYPO["driver"]
    kubectl.apply(wrong)
    eventually(lambda: condition(kubectl, "Accepted", "wrong") == ("False", "RefusedByCluster"))
    assert condition(kubectl, "DriverAvailable", "wrong") == ("False", "RefusedByCluster")
    assert kubectl.get("configmap", "wrong-manifest") is None
    assert kubectl("get", "pipeline", "wrong").splitlines()[1].split()[:4] == ["wrong", "False", "Failed", "0/0"]
    streaming(kubectl, driver)
    before = kubectl.get("statefulset", "shop-driver")["spec"]["template"]
    kubectl.patch("pipeline", "shop", {"spec": {"freshnessSeconds": 30, **TYPO}})
    eventually(lambda: condition(kubectl, "Accepted") == ("False", "RefusedByCluster"))
    assert kubectl.get("statefulset", "shop-driver")["spec"]["template"] == before
    assert "freshnessSeconds: 30" not in kubectl.get("configmap", "shop-manifest")["data"]["pipeline.yaml"]
    messages = [
        c["message"] for c in kubectl.get("pipeline", "shop")["status"]["conditions"] if c["type"] == "Accepted"
    ]
    assert "tolerationz" in messages[0]
    assert "correct spec.driver.podTemplate" in messages[0]
    kubectl.patch("pipeline", "shop", {"spec": {"driver": {"podTemplate": {"spec": {"tolerationz": None}}}}})
    eventually(lambda: condition(kubectl, "Accepted") == ("True", "Valid"))
    eventually(lambda: "freshnessSeconds: 30" in kubectl.get("configmap", "shop-manifest")["data"]["pipeline.yaml"])


def test_pod_that_pod_security_refuses(kubectl: Kubectl, operator: Operator, controllers: None) -> None:
    """A sidecar that the namespace's standard forbids is named by a condition and an Event, with what to do."""
    side = {"name": "side", "image": "busybox", "securityContext": {"privileged": True}}
    kubectl.apply(shop(driver={"podTemplate": {"spec": {"containers": [side]}}}))
    eventually(lambda: condition(kubectl, "DriverAvailable") == ("False", "PodRefused"))
    message = told(kubectl, "PodRefused")
    assert "violates PodSecurity" in message
    assert "spec.driver.podTemplate" in message
    kubectl.patch("pipeline", "shop", {"spec": {"driver": {"podTemplate": {"spec": {"containers": None}}}}})
    eventually(lambda: kubectl.get("pod", "shop-driver-0"))
    eventually(lambda: condition(kubectl, "DriverAvailable")[1] != "PodRefused")


REFUSED = {
    "host network": ({"hostNetwork": True}, "violates PodSecurity"),
    "privileged": ({"containers": [{"name": "side", "image": "busybox", "securityContext": {"privileged": True}}]},
                   "violates PodSecurity"),
    "priority": ({"priorityClassName": "nowhere"}, "no PriorityClass with name nowhere was found"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_pod_that_is_refused_never_ends_the_one_that_runs(
    kubectl: Kubectl, operator: Operator, driver: FakeDriver, name: str
) -> None:
    """A change whose pod the cluster refuses says so, and touches neither the pod nor the StatefulSet."""
    template, words = REFUSED[name]
    streaming(kubectl, driver)

    def versions() -> tuple[str, str]:
        pod, stateful_set = kubectl.get("pod", "shop-driver-0"), kubectl.get("statefulset", "shop-driver")
        return pod["metadata"]["uid"], str(stateful_set["metadata"]["generation"])

    before = versions()
    kubectl.patch("pipeline", "shop", {"spec": {"driver": {"podTemplate": {"spec": template}}}})
    eventually(lambda: condition(kubectl, "Accepted") == ("False", "RefusedByCluster"))
    assert words in told(kubectl, "RefusedByCluster")
    operator.swept_twice()
    assert versions() == before
    assert condition(kubectl, "DriverAvailable") == ("True", "PodReady")
    kubectl.patch("pipeline", "shop", {"spec": {"driver": {"podTemplate": {"spec": dict.fromkeys(template)}}}})
    eventually(lambda: condition(kubectl, "Accepted") == ("True", "Valid"))


def test_ready_is_of_the_newest_spec(
    kubectl: Kubectl, operator: Operator, driver: FakeDriver, controllers: None
) -> None:
    """A poll finds no ready Pipeline before the new pod is ready, or before the driver has read a hot change."""
    streaming(kubectl, driver)

    def in_progress_until(done: Callable[[], bool]) -> None:
        def polled() -> bool:
            body = kubectl.get("pipeline", "shop")
            assert (kstatus(body), waited_for(body)) == ("InProgress", False)
            return done()

        eventually(polled)

    def image() -> str:
        pod = kubectl.get("pod", "shop-driver-0")
        return str(pod["spec"]["containers"][0]["image"]) if pod else ""

    kubectl.patch("pipeline", "shop", {"spec": {"driver": {"image": "levada:other"}}})
    in_progress_until(lambda: image() == "levada:other")
    in_progress_until(lambda: condition(kubectl, "DriverAvailable")[0] == "False")
    make_pod(kubectl, driver.address)
    eventually(lambda: kstatus(kubectl.get("pipeline", "shop")) == "Current")
    former = kubectl.get("configmap", "shop-manifest")["metadata"]["annotations"][MANIFEST_DIGEST]
    driver.document = driver.document | {"manifest": {"digest": former}}
    kubectl.patch("pipeline", "shop", {"spec": {"freshnessSeconds": 30}})
    in_progress_until(lambda: condition(kubectl, "Ready") == ("False", "Updating"))
    operator.swept_twice()
    in_progress_until(lambda: True)
    now = kubectl.get("configmap", "shop-manifest")["metadata"]["annotations"][MANIFEST_DIGEST]
    driver.document = driver.document | {"manifest": {"digest": now}}
    eventually(lambda: kstatus(kubectl.get("pipeline", "shop")) == "Current")


def test_trouble_is_told(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """A failed preflight and a failed table are conditions and Events, with their remedies."""
    streaming(kubectl, driver)
    driver.document = document(table_document(phase="Errored", error=error_document()), table_document("events"))
    eventually(lambda: condition(kubectl, "TablesHealthy") == ("False", "SomeErrored"))
    assert condition(kubectl, "Ready") == ("False", "TablesErrored")
    eventually(lambda: any("REPLICA IDENTITY FULL" in m for m in events(kubectl, "TableErrored")))
    message = "error: no login [source_auth_failed]\n  hint: check the password\n"
    status = {"conditions": [{"type": "Ready", "status": "False"}], "initContainerStatuses": [{
        "name": "preflight", "image": "levada:test", "imageID": "", "ready": False, "restartCount": 2,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 3, "reason": "Error", "message": message}}}]}  # fmt: skip
    driver.document = {}
    kubectl.patch("pod", "shop-driver-0", {"status": status}, "status")
    eventually(lambda: condition(kubectl, "DriverAvailable") == ("False", "PreflightFailed"))
    eventually(lambda: events(kubectl, "PreflightFailed") == ["no login; check the password [source_auth_failed]"])


def test_suspend_and_the_lag_meanwhile(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """A suspended Pipeline scales its driver to 0, and a short Job samples the slot. The sample is in the status."""
    streaming(kubectl, driver, health={"lagProbeSeconds": 3600})
    kubectl.patch("pipeline", "shop", {"spec": {"suspend": True}})
    eventually(lambda: kubectl.get("statefulset", "shop-driver")["spec"]["replicas"] == 0)
    kubectl.run("delete", "pod", "shop-driver-0", "--force", "--grace-period=0", check=False)
    driver.document = {}
    eventually(lambda: condition(kubectl, "Suspended") == ("True", "Drained"))
    assert condition(kubectl, "Ready") == ("False", "Suspended")
    job = eventually(lambda: next(iter(kubectl.get("jobs", labels="levada.dev/role=lag")), None))
    sample = {"name": "levada_shop", "lagBytes": 5 << 30, "retainedBytes": 6 << 30, "walStatus": "extended",
              "safeWalBytes": None, "active": False, "sampledAt": "2030-01-31T11:59:00+00:00"}  # fmt: skip
    template = job["spec"]["template"]
    # Not the Job's own labels: its controller would adopt the pod, and remove one of the two.
    labels = {name: value for name, value in template["metadata"]["labels"].items() if name.startswith("levada.dev/")}
    own = [{"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}]
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
           "metadata": {"name": "probe", "labels": labels, "ownerReferences": own}}  # fmt: skip
    kubectl.apply(pod)
    ended = {"phase": "Succeeded", "containerStatuses": [{
        "name": "lag", "image": "levada:test", "imageID": "", "ready": False, "restartCount": 0,
        "state": {"terminated": {"exitCode": 0, "message": json.dumps(sample)}}}]}  # fmt: skip
    kubectl.patch("pod", "probe", {"status": ended}, "status")
    eventually(lambda: kubectl.get("pipeline", "shop")["status"]["display"]["lag"] == "5Gi")
    assert condition(kubectl, "SlotHealthy") == ("True", "Extended")


def test_second_pipeline_on_a_slot_never_runs(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """The younger of two says which is the older, has no finalizer, and its deletion harms nothing."""
    streaming(kubectl, driver)
    kubectl.apply(shop("copy", source={"slot": {"name": default_object_name("shop", kubectl.namespace)}}))
    eventually(lambda: condition(kubectl, "Accepted", "copy") == ("False", "ConflictingPipeline"))
    assert kubectl.get("statefulset", "copy-driver") is None
    kubectl("delete", "pipeline", "copy", PATIENCE)
    assert kubectl.get("statefulset", "shop-driver")["spec"]["replicas"] == 1


def deleted(kubectl: Kubectl) -> None:
    """Delete the Pipeline without waiting, and its pod, as its controller would."""
    kubectl("delete", "pipeline", "shop", "--wait=false")
    eventually(
        lambda: (kubectl.get("statefulset", "shop-driver") or {"spec": {"replicas": 0}})["spec"]["replicas"] == 0
    )
    kubectl.run("delete", "pod", "shop-driver-0", "--force", "--grace-period=0", check=False)


def test_deletion_cleans_up(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """The driver stops, the clean-up Job runs, the Pipeline is released. A killed operator continues."""
    streaming(kubectl, driver)
    deleted(kubectl)
    eventually(lambda: kubectl.get("job", "shop-cleanup"))
    operator.stop(signal.SIGKILL)
    operator.start()
    eventually(lambda: kubectl.get("pipeline", "shop")["status"]["phase"] == "Deleting")
    complete(kubectl)
    eventually(lambda: kubectl.get("pipeline", "shop") is None)
    assert len(eventually(lambda: events(kubectl, "CleanupFinished"))) == 1


def complete(kubectl: Kubectl) -> None:
    """Write the clean-up Job's success, as its controller would."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    conditions = [{"type": t, "status": "True", "lastTransitionTime": now} for t in ("SuccessCriteriaMet", "Complete")]
    # Where there is a controller of Jobs, it may have written when this one began: that stays.
    began = kubectl.get("job", "shop-cleanup").get("status", {}).get("startTime", now)
    done = {
        "conditions": conditions,
        "succeeded": 1,
        "startTime": began,
        "completionTime": now,
        "active": 0,
        "ready": 0,
    }
    kubectl.patch("job", "shop-cleanup", {"status": done}, "status")


def test_deletion_ends_when_time_is_over(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """A clean-up that never ends is given up, and an Event names the slot and the SQL that drops it."""
    streaming(kubectl, driver, deletionPolicy={"cleanupTimeoutSeconds": 30})
    deleted(kubectl)
    eventually(lambda: kubectl.get("pipeline", "shop") is None)
    assert sql(kubectl) in told(kubectl, "CleanupAbandoned")


def test_deletion_can_be_skipped(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """An annotation lets the Pipeline go at once, and an Event has the SQL."""
    streaming(kubectl, driver)
    kubectl("annotate", "pipeline", "shop", "levada.dev/skip-cleanup=true")
    kubectl("delete", "pipeline", "shop", PATIENCE)
    assert sql(kubectl) in told(kubectl, "CleanupAbandoned")


@pytest.fixture
def elsewhere(cluster: Kubectl) -> Iterator[Kubectl]:
    """Another namespace, for the Lease of an operator that serves the test's."""
    one = cluster.make_namespace(f"levada-{uuid.uuid4().hex[:8]}")
    yield one
    one.remove_namespace()


def test_namespace_goes(
    kubectl: Kubectl, elsewhere: Kubectl, driver: FakeDriver, controllers: None, tmp_path: Path
) -> None:
    """A Pipeline does not block the deletion of its namespace. The Event is then at the namespace itself."""
    operator = Operator(elsewhere.namespace, tmp_path / "operator.log", serves=kubectl.namespace)
    operator.start()
    try:
        streaming(kubectl, driver)
        kubectl("delete", "namespace", kubectl.namespace, "--wait=false")
        eventually(lambda: kubectl.get("pipeline", "shop") is None)
        chosen = f"involvedObject.name={kubectl.namespace}"
        eventually(lambda: any(sql(kubectl) in e["message"] for e in Kubectl("default").get("events", fields=chosen)))
    finally:
        operator.stop()
        print(operator.log.read_text())


def test_everything_goes_with_its_pipeline(
    kubectl: Kubectl, operator: Operator, driver: FakeDriver, controllers: None
) -> None:
    """Kubernetes removes the objects of a Pipeline, the TableSyncs too. Retained objects are released first."""
    streaming(kubectl, driver, deletionPolicy={"slot": "Retain", "state": "Retain"})
    eventually(lambda: len(kubectl.get("tablesyncs")) == 2)
    deleted(kubectl)
    eventually(lambda: kubectl.get("job", "shop-cleanup"))
    complete(kubectl)
    eventually(lambda: kubectl.get("pipeline", "shop") is None)
    eventually(lambda: kubectl.get("tablesyncs,statefulset,configmap", labels="levada.dev/pipeline=shop") == [])


def test_pods_know_whose_they_are(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """Every container has the Pipeline's UID. The annotation of a takeover reaches the driver and its check."""
    streaming(kubectl, driver)
    uid = kubectl.get("pipeline", "shop")["metadata"]["uid"]

    def given(name: str) -> list[str | None]:
        pod = kubectl.get("statefulset", "shop-driver")["spec"]["template"]["spec"]
        variables = [
            {e["name"]: e.get("value") for e in c["env"]} for c in (*pod["initContainers"], *pod["containers"])
        ]
        return [v.get(name) for v in variables]

    assert given("LEVADA_PIPELINE_UID") == [uid, uid]
    assert given("LEVADA_TAKE_OVER_FROM") == [None, None]
    kubectl("annotate", "pipeline", "shop", "levada.dev/take-over-from=uid-of-another")
    eventually(lambda: given("LEVADA_TAKE_OVER_FROM") == ["uid-of-another"] * 2)


def test_two_installations(kubectl: Kubectl, elsewhere: Kubectl, operator: Operator, tmp_path: Path) -> None:
    """The second one changes nothing of a Pipeline, and says so, until the first one has released its Lease."""
    kubectl.apply(shop())
    eventually(lambda: condition(kubectl, "Accepted") == ("True", "Valid"))
    other = Operator(elsewhere.namespace, tmp_path / "other.log", image="levada:other", serves=kubectl.namespace)
    other.start()
    try:
        assert f"{kubectl.namespace}/levada-operator" in told(kubectl, "ForeignOperator")
        other.swept_twice()
        assert "ForeignOperator" in kubectl("describe", "pipeline", "shop").split("\nEvents:")[1]
        assert condition(kubectl, "Accepted") == ("True", "Valid")
        assert "levada:other" not in str(kubectl.get("statefulset", "shop-driver")["spec"])
        # A Pipeline whose first spec is refused has no StatefulSet.
        kubectl.apply(shop("odd", driver={"podTemplate": {"spec": {"containres": []}}}))
        eventually(lambda: condition(kubectl, "Accepted", "odd") == ("False", "RefusedByCluster"))

        def rests() -> bool:
            before = kubectl.get("pipeline", "odd")["metadata"]["resourceVersion"]
            for one in (operator, other):
                one.swept_twice()
            return bool(kubectl.get("pipeline", "odd")["metadata"]["resourceVersion"] == before)

        eventually(rests)
        operator.stop()
        eventually(lambda: "levada:other" in str(kubectl.get("statefulset", "shop-driver")["spec"]))
        operator.start()
        eventually(lambda: len(events(kubectl, "ForeignOperator")) > 1)
    finally:
        other.stop()


def test_two_managers_of_a_spec(kubectl: Kubectl, operator: Operator) -> None:
    """The second one has a conflict with the first, and never with the operator, which owns no field of a spec."""

    def apply(manager: str, *options: str, **changes: object) -> subprocess.CompletedProcess[str]:
        text = json.dumps(shop(**changes))
        command = ("apply", "--server-side", f"--field-manager={manager}", *options, "-f", "-")
        return kubectl.run(*command, stdin=text, check=False)

    assert not apply("one", freshnessSeconds=20).returncode
    eventually(lambda: condition(kubectl, "Accepted") == ("True", "Valid"))
    refused = apply("two", freshnessSeconds=30)
    assert 'with "one"' in refused.stderr
    assert "levada-operator" not in refused.stderr
    assert not apply("two", "--force-conflicts", freshnessSeconds=30).returncode
    eventually(lambda: "freshnessSeconds: 30" in kubectl.get("configmap", "shop-manifest")["data"]["pipeline.yaml"])
    entries = kubectl.get("pipeline", "shop")["metadata"]["managedFields"]
    mine = [e["fieldsV1"] for e in entries if e["manager"] == "levada-operator"]
    assert mine
    assert not any("f:spec" in fields for fields in mine)
