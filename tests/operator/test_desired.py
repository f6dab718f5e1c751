"""Every owned object is what its snapshot says: ``UPDATE_SNAPSHOTS=1 pytest tests/operator/test_desired.py``."""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operator.samples import MANIFEST, owner, owner_of, spec

from levada.spec import Change, PipelineManifest, load_manifests, structural
from levada.spec.model import CHANGE
from levada_operator.desired.jobs import build_cleanup_job, build_copy_job, build_lag_job
from levada_operator.desired.manifest import read_manifest, restart_digest
from levada_operator.desired.objects import build_objects
from levada_operator.desired.owner import Owner
from levada_operator.desired.pod import build_driver_template
from levada_operator.desired.secrets import SECRETS_DIR
from levada_operator.desired.spark import build_executor_template
from levada_operator.desired.table_sync import build_adoption_patch, build_table_sync
from levada_operator.desired.templates import merged
from levada_operator.names import table_sync_name

SNAPSHOTS = Path(__file__).parent / "snapshots"
CORPUS = Path(__file__).parents[1] / "spec" / "corpus" / "good"
EXAMPLES = Path(__file__).parents[2] / "examples"

CASES: dict[str, Owner] = {
    "local": owner(),
    "cluster": owner(
        driver={"mode": "Cluster", "podTemplate": {"spec": {"priorityClassName": "high"}}},
        executor={"resources": {"requests": {"cpu": "2", "memory": "6Gi"}}},
    ),
    "config_map_store": owner(store={"configMap": {}}, deletionPolicy={"slot": "Retain", "state": "Retain"}),
    "volume_and_tls": owner(
        staging={"volumeClaim": {"size": "20Gi", "storageClassName": "fast"}},
        source={"tls": {"caSecretRef": {"name": "shop-ca", "key": "ca.crt"}}},
    ),
    "without_spark": owner_of((EXAMPLES / "postgresql" / "pipeline.yaml").read_text()),
    "everything": owner_of((CORPUS / "everything.yaml").read_text()),
}


def compare(name: str, bodies: list[dict[str, Any]]) -> None:
    """Compare objects with a snapshot, or write it."""
    path = SNAPSHOTS / f"{name}.yaml"
    text = yaml.safe_dump_all(bodies, sort_keys=False, width=120)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", CASES)
def test_objects(name: str) -> None:
    """A running Pipeline owns these objects."""
    compare(name, build_objects(CASES[name], running=True))


def test_secrets_of_stores() -> None:
    """The clean-up's pod has the Secrets of a store in another database, and of another package's store.

    Executors, which have no part in the state, do not have them.
    """
    server = {
        "host": "state",
        "database": "state",
        "credentialsSecretRef": {"name": "state-login"},
        "tls": {"caSecretRef": {"name": "state-ca", "key": "ca.crt"}, "certSecretRef": {"name": "state-cert"}},
    }
    for store, names in (
        ({"postgres": {"connection": server}}, {"state-login", "state-ca", "state-cert"}),
        ({"custom": {"type": "theirs", "credentialsSecretRef": {"name": "their-login"}}}, {"their-login"}),
    ):
        pod = build_cleanup_job(owner(store=store))["spec"]["template"]["spec"]
        mounted = {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
        assert names < mounted
        assert {m["mountPath"] for m in pod["containers"][0]["volumeMounts"]} > {f"{SECRETS_DIR}/{n}" for n in names}
        template = build_executor_template(owner(store=store, driver={"mode": "Cluster"}))
        assert template is not None
        on_executors = {v["secret"]["secretName"] for v in template["spec"]["volumes"] if "secret" in v}
        assert on_executors, "those of the source and of the destination"
        assert not names & on_executors


def test_jobs_and_table_syncs() -> None:
    """The short Jobs and the TableSyncs are these."""
    one = CASES["local"]
    compare(
        "jobs_and_tables",
        [
            build_lag_job(one, 7),
            build_copy_job(CASES["volume_and_tls"], "public", "Orders", "token"),
            build_cleanup_job(one),
            build_table_sync(one, "public", "orders"),
            build_adoption_patch(one, "written-by-hand"),
        ],
    )


def with_copy(copy: str, **changes: Any) -> Owner:
    """Return an owner with a TableSync of public.orders."""
    sync = (
        "---\napiVersion: levada.dev/v1alpha1\nkind: TableSync\nmetadata: {name: orders}\n"
        f"spec: {{pipelineRef: {{name: shop}}, table: {{name: orders}}, copy: {copy}}}\n"
    )
    return owner_of(yaml.safe_dump(yaml.safe_load(MANIFEST) | {"spec": spec(**changes)}) + sync)


def test_resources_of_a_dedicated_copy() -> None:
    """An amount that the TableSync does not set is that of the driver. No other table and no other Job has them."""
    own = "{driver: Dedicated, resources: {requests: {cpu: '4'}, limits: {memory: 8Gi}}}"
    one = with_copy(own, driver={"resources": {"limits": {"ephemeral-storage": "9Gi"}}})

    def resources(job: dict[str, Any]) -> Any:
        return job["spec"]["template"]["spec"]["containers"][0]["resources"]

    assert resources(build_copy_job(one, "public", "orders", "o")) == {
        "requests": {"cpu": "4"},
        "limits": {"memory": "8Gi", "ephemeral-storage": "9Gi"},
    }
    drivers = {"requests": {"cpu": "1", "memory": "3Gi"}, "limits": {"memory": "3Gi", "ephemeral-storage": "9Gi"}}
    for job in (build_copy_job(one, "public", "others", "o"), build_copy_job(one, "x", "orders", "o")):
        assert resources(job) == drivers
    assert resources(build_cleanup_job(one)) == drivers


def test_executors_of_a_dedicated_copy() -> None:
    """The copy's pod is the driver of its own Spark, with that many executors and the operator's other properties."""
    one = with_copy("{driver: Dedicated, executors: 3}", driver={"mode": "Cluster"})
    pod = build_copy_job(one, "public", "orders", "o")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is True
    environment = pod["containers"][0]["env"]
    names = [variable["name"] for variable in environment]
    assert names[-4:] == ["LEVADA_POD_NAME", "LEVADA_POD_IP", "LEVADA_SPARK_PROPERTIES", "LEVADA_SPARK_CONF"]
    assert environment[-1]["value"].splitlines() == [
        "spark.driver.host $(LEVADA_POD_IP)",
        "spark.dynamicAllocation.enabled false",
        "spark.executor.instances 3",
        "spark.kubernetes.driver.pod.name $(LEVADA_POD_NAME)",
    ]
    other = build_copy_job(one, "public", "others", "o")["spec"]["template"]["spec"]["containers"][0]
    assert "LEVADA_SPARK_PROPERTIES" not in {variable["name"] for variable in other["env"]}


@pytest.mark.parametrize("name", CASES)
def test_pods_meet_the_restricted_standard(name: str) -> None:
    """Every container of every pod: not root, no new privileges, no capability, seccomp, its root read-only."""
    one = CASES[name]
    bodies = [
        *build_objects(one, running=True),
        build_lag_job(one, 1),
        build_cleanup_job(one),
        build_copy_job(one, "s", "t", "o"),
    ]
    pods = [b["spec"]["template"]["spec"] for b in bodies if b["kind"] in ("StatefulSet", "Job")]
    pods += [yaml.safe_load(b["data"]["executor.yaml"])["spec"] for b in bodies if "executor.yaml" in b.get("data", {})]
    assert len(pods) >= 3
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*pod["containers"], *pod.get("initContainers", ())]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
        assert not any("hostPath" in volume for volume in pod.get("volumes", ()))


def test_pods_ask_for_no_user_where_the_cluster_assigns_one() -> None:
    """Neither a user nor a group is in any pod, and the rest of the security context stays."""
    one = CASES["cluster"]
    one = replace(one, defaults=replace(one.defaults, assigned_user=True))
    bodies = [*build_objects(one, running=True), build_lag_job(one, 1), build_copy_job(one, "s", "t", "o")]
    pods = [b["spec"]["template"]["spec"] for b in bodies if b["kind"] in ("StatefulSet", "Job")]
    pods += [yaml.safe_load(b["data"]["executor.yaml"])["spec"] for b in bodies if "executor.yaml" in b.get("data", {})]
    assert len(pods) == 4
    asked = {key for pod in pods for key in pod["securityContext"]}
    assert asked == {"runAsNonRoot", "fsGroupChangePolicy", "seccompProfile"}


def test_user_template_cannot_loosen_the_pod() -> None:
    """The operator's values override those of a template. The template's other values stay."""
    loose = {"spec": {"securityContext": {"runAsNonRoot": False}, "tolerations": [{"key": "spot"}], "containers": [
        {"name": "driver", "securityContext": {"privileged": True, "readOnlyRootFilesystem": False},
         "env": [{"name": "AWS_REGION", "value": "eu"}, {"name": "HOME", "value": "/root"}]},
        {"name": "sidecar", "image": "proxy"},
    ]}}  # fmt: skip
    (template,) = (
        b["spec"]["template"]
        for b in build_objects(owner(driver={"podTemplate": loose}), running=True)
        if b["kind"] == "StatefulSet"
    )
    pod = template["spec"]
    driver, sidecar = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["tolerations"] == [{"key": "spot"}]
    assert driver["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "AWS_REGION", "value": "eu"} in driver["env"]
    assert [e["value"] for e in driver["env"] if e["name"] == "HOME"] == ["/var/lib/levada"]
    assert sidecar == {"name": "sidecar", "image": "proxy"}


@pytest.mark.parametrize(("given", "wanted"), [(30, 30), (0, 0), (600, 300), (None, 300), ("30", 300), (True, 300)])
def test_a_shorter_grace_period_is_the_users(given: object, wanted: int) -> None:
    """A driver has five minutes to end, or as few seconds as the pod template gives it."""
    template = {"spec": {} if given is None else {"terminationGracePeriodSeconds": given}}
    built = build_driver_template(owner(driver={"podTemplate": template}))
    assert built["spec"]["terminationGracePeriodSeconds"] == wanted


def test_merge_keeps_ours_first_and_whole() -> None:
    """Merging into an empty template is no change."""
    ours = {"a": [{"name": "x", "v": 1}], "b": {"c": [1, 2]}}
    assert merged({}, ours) == ours
    assert merged({"a": [{"name": "y"}, {"name": "x", "w": 2}], "b": {"c": [2, 3]}}, ours) == {
        "a": [{"name": "x", "w": 2, "v": 1}, {"name": "y"}],
        "b": {"c": [1, 2, 3]},
    }


@pytest.mark.parametrize("name", CASES)
def test_manifest_is_read_back(name: str) -> None:
    """The ConfigMap says what was accepted, word for word, so that no other memory is needed."""
    body = build_objects(CASES[name], running=True)[0]
    read = read_manifest(body)
    assert read is not None
    assert read.pipeline == CASES[name].manifests.pipeline


def test_manifest_has_only_table_syncs_that_say_something() -> None:
    """Thousands of TableSyncs that change nothing do not fill the ConfigMap."""
    plain = "---\napiVersion: levada.dev/v1alpha1\nkind: TableSync\nmetadata: {{name: t-{0}}}\nspec: {{pipelineRef: {{name: shop}}, table: {{name: t{0}}}{1}}}\n"  # noqa: E501 - one document
    text = MANIFEST + "".join(plain.format(i, "") for i in range(50)) + plain.format("x", ", suspend: true")
    read = read_manifest(build_objects(owner_of(text), running=True)[0])
    assert read is not None
    assert [t.metadata.name for t in read.table_syncs] == ["t-x"]


def hot_paths() -> list[tuple[str, bool]]:
    """Return each scalar field of a Pipeline's spec that has a range or a switch, and whether it is Hot."""
    found = []

    def walk(schema: dict[str, Any], path: tuple[str, ...]) -> None:
        for name, field in schema.get("properties", {}).items():
            if field.get("type") in ("integer", "boolean") and "default" in field:
                found.append((".".join((*path, name)), field[CHANGE] == Change.HOT))
            walk(field, (*path, name))

    walk(structural(PipelineManifest)["properties"]["spec"], ())
    return found


NEEDED = {
    "volumeClaim": {"size": "1Gi"},
    "connection": {"host": "state", "database": "state"},
    "destination.ducklake": {"catalog": {"host": "catalog", "database": "lake"}},
    "destination.opensearch": {"urls": ["https://search:9200"]},
    "destination.postgres": {"host": "replica", "database": "replica"},
}
"""The required fields of optional objects, by their name or path."""


@pytest.mark.parametrize(("path", "hot"), hot_paths())
def test_driver_is_restarted_by_cold_fields_alone(path: str, hot: bool) -> None:
    """A change of a Hot field leaves the pod's template alone. Any other change rolls the pod."""
    *above, last = path.split(".")
    changed = spec()
    at: Any = changed
    if path.startswith("destination."):
        changed["destination"] = {kind: value for kind, value in changed["destination"].items() if kind == above[1]}
    for i, step in enumerate(above):
        at = at.setdefault(step, deepcopy(NEEDED.get(".".join(above[: i + 1]), NEEDED.get(step, {}))))
    unchanged = deepcopy(changed)
    default: Any = structural(PipelineManifest)["properties"]["spec"]
    for step in path.split("."):
        default = default["properties"][step]
    at[last] = not default["default"] if default["type"] == "boolean" else default["default"] + 1
    if path in ("executor.instances.min", "verify.samplePercent"):
        at[last] = 1
    manifest = yaml.safe_load(MANIFEST)
    before, after = (load_manifests(yaml.safe_dump(manifest | {"spec": s})) for s in (unchanged, changed))
    assert (restart_digest(before) == restart_digest(after)) is hot


def test_table_sync_names_are_unique_and_valid() -> None:
    """Names that differ at the source differ here, whatever their letters.

    Long ones are cut, and plain ones are kept.
    """
    assert table_sync_name("shop", "public", "orders") == "shop-public-orders"
    tricky = [("public", "Orders"), ("public", "order_s"), ("public", "order-s"), ("public-a", "b"), ("public", "a-b"),
              ("ü", "ö"), ("a.b", "c"), ("a", "b.c"), ("x" * 63, "y" * 63)]  # fmt: skip
    names = [table_sync_name("shop", *t) for t in tricky]
    assert len(set(names)) == len(names)
    assert all(len(n) <= 253 and n == n.lower() and n[-1].isalnum() for n in names)


def test_every_container_sees_what_the_driver_sees() -> None:
    """Volumes and variables that a user's template gives the driver are the preflight's and the clean-up's too."""
    mounts = [{"name": "lake", "mountPath": "/lake"}, {"name": "lake", "mountPath": "/more", "subPath": "more"}]
    given = {"name": "driver", "env": [{"name": "REGION", "value": "x"}], "volumeMounts": mounts}
    one = owner(driver={"podTemplate": {"spec": {"containers": [given], "volumes": [{"name": "lake"}]}}})
    pod = build_objects(one, running=True)[-1]["spec"]["template"]["spec"]
    jobs = [job["spec"]["template"]["spec"] for job in (build_cleanup_job(one), build_lag_job(one, 1))]
    for spec_ in (pod, *jobs):
        assert {"name": "lake"} in spec_["volumes"]
        for container in [*spec_.get("initContainers", ()), *spec_["containers"]]:
            assert [m for m in container["volumeMounts"] if m["name"] == "lake"] == mounts
            assert {"name": "REGION", "value": "x"} in container["env"]
