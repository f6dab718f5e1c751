"""How a pipeline runs: pace, staging, store, retries, pods, and what deletion leaves."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from levada.spec.model import CHANGE, Change, Model, Rule, Whole, exactly_one, setting
from levada.spec.names import Identifier, OptionalObjectName, StagingUri
from levada.spec.quantity import Amount, Bytes
from levada.spec.source import SecretKeyRef

OWNED_SPARK_CONF = (
    "spark.master",
    "spark.submit.deployMode",
    "spark.driver.host",
    "spark.driver.port",
    "spark.driver.bindAddress",
    "spark.kubernetes.namespace",
    "spark.kubernetes.driver.pod.name",
    "spark.kubernetes.executor.podNamePrefix",
)
"""Settings of Spark that Levada makes itself."""


class Copy(Model):
    """The initial copy of tables."""

    max_concurrent_tables: Whole = setting(Change.HOT, 4, ge=1, le=64)
    """How many tables are copied at once."""
    connections_per_table: Whole = setting(Change.HOT, 4, ge=1, le=64)
    """How many connections to the source read one table at once."""


class Batch(Model):
    """When a segment of the WAL is closed and staged: at the first of the two."""

    max_fill_ms: Whole = setting(Change.HOT, 1000, ge=1, le=600_000)
    """Milliseconds after the segment's first change."""
    max_bytes: Bytes = setting(Change.HOT, "64Mi", ge=1)
    """The size of the segment's changes."""


class VolumeClaim(Model):
    """A persistent volume."""

    size: Bytes = setting(Change.HOT)
    """How large the volume is; it can grow where its storage class allows that."""
    storage_class_name: Annotated[str, Field(max_length=253)] = setting(Change.IMMUTABLE, "")
    """The storage class. Empty: the cluster's default."""


class Staging(Model):
    """Where changes wait between the WAL and the destination; neither of the two: on scratch, and the slot is
    acknowledged only after they are applied."""

    rules = (
        Rule(
            "give a uri or a volumeClaim, not both",
            "self.uri == '' || !has(self.volumeClaim)",
            lambda s: not (s.uri and s.volume_claim),
        ),
    )

    uri: StagingUri = setting(Change.IMMUTABLE, "")
    """A folder on durable storage: s3://, gs://, abfs:// or file://. Empty: none. S3 is reached as the catalog's
    properties and Secret say, unless the URI has a query of its own."""
    volume_claim: VolumeClaim | None = setting(Change.IMMUTABLE, None)
    """A persistent volume for the driver. Without it: none."""


class PostgresStoreSpec(Model):
    """State in the source's database."""

    schema_name: Identifier = setting(Change.IMMUTABLE, "levada", alias="schema")
    """The schema that holds the tables of the state; several Pipelines may share it."""


class ConfigMapStoreSpec(Model):
    """State in ConfigMaps beside the Pipeline: for sources that cannot be written to, and few tables."""


class MemoryStoreSpec(Model):
    """State that is lost with the driver, which then copies every table again: for trials."""


class StoreSpec(Model):
    """Where the pipeline's state is kept: exactly one place."""

    rules = (exactly_one("postgres", "config_map", "memory", what="store"),)

    postgres: PostgresStoreSpec | None = setting(Change.IMMUTABLE, None)
    """State in the source's database."""
    config_map: ConfigMapStoreSpec | None = setting(Change.IMMUTABLE, None)
    """State in ConfigMaps beside the Pipeline."""
    memory: MemoryStoreSpec | None = setting(Change.IMMUTABLE, None)
    """State that is lost with the driver."""


class Retries(Model):
    """How a table is retried after an error that may mend itself; the delay doubles with each attempt."""

    rules = (
        Rule(
            "must not be below delaySeconds",
            "self.maxDelaySeconds >= self.delaySeconds",
            lambda r: r.max_delay_seconds >= r.delay_seconds,
            field="maxDelaySeconds",
        ),
    )

    max_attempts: Whole = setting(Change.HOT, 5, ge=0, le=1000)
    """How many retries before the table waits for a person. 0: it waits at once. With the default delays, 5 last for
    five minutes, 1000 for a week."""
    delay_seconds: Whole = setting(Change.HOT, 10, ge=1, le=86400)
    """Seconds before the first retry."""
    max_delay_seconds: Whole = setting(Change.HOT, 600, ge=1, le=86400)
    """The longest delay between two retries, in seconds."""


class Health(Model):
    """When a pipeline counts as stuck."""

    progress_deadline_seconds: Whole = setting(Change.HOT, 900, ge=30, le=86400)
    """Seconds without movement, while there is WAL to read, after which the driver is restarted."""
    lag_probe_seconds: Whole = setting(Change.HOT, 300, ge=0, le=86400)
    """How often, in seconds, a short Job samples the slot's lag while no driver runs. 0: never."""


class DriverMode(StrEnum):
    """Where Spark's tasks run."""

    LOCAL = "Local"
    CLUSTER = "Cluster"


class Resources(Model):
    """What a container asks for and what it may use, as in a pod."""

    requests: dict[str, Amount] = setting(Change.RESTART, {})
    """What is reserved, by resource: cpu, memory, ephemeral-storage."""
    limits: dict[str, Amount] = setting(Change.RESTART, {})
    """What is never exceeded, by resource."""


def _check_shape(template: dict[str, Any]) -> dict[str, Any]:
    """Refuse a pod template that Levada's own parts cannot be merged into. The API server checks the fields."""
    pod = template.get("spec")
    if not isinstance(pod, dict | None):
        raise PydanticCustomError("pod_template", "spec must be an object")
    for field, key in _POD_LISTS.items():
        _check_list(pod or {}, f"spec.{field}", field, key)
    for container in (pod or {}).get("containers") or ():
        for field, key in _CONTAINER_LISTS.items():
            _check_list(container, f"spec.containers[].{field}", field, key)
    return template


def _check_list(owner: dict[str, Any], path: str, field: str, key: str) -> None:
    items = owner.get(field)
    if not isinstance(items, list | None):
        raise PydanticCustomError("pod_template", "{path} must be a list", {"path": path})
    if not all(isinstance(i, dict) and isinstance(i.get(key), str) for i in items or ()):
        raise PydanticCustomError("pod_template", "each of {path} must have a {key}", {"path": path, "key": key})


_POD_LISTS: Final = {"containers": "name", "initContainers": "name", "volumes": "name"}
_CONTAINER_LISTS: Final = {"env": "name", "volumeMounts": "mountPath"}
PodTemplate = Annotated[dict[str, Any], AfterValidator(_check_shape)]


def _pod_template() -> Any:
    return Field({}, json_schema_extra={CHANGE: Change.RESTART.value, "x-kubernetes-preserve-unknown-fields": True})


class ServiceAccount(Model):
    """The account of the pipeline's pods."""

    rules = (
        Rule(
            "give a name or annotations, not both: the operator does not change an account that is there",
            "self.name == '' || size(self.annotations) == 0",
            lambda a: not (a.name and a.annotations),
        ),
    )

    name: OptionalObjectName = setting(Change.RESTART, "")
    """An account of the namespace, for the driver, its Jobs and its executors. Empty: the operator makes accounts."""
    annotations: Annotated[dict[str, str], Field(max_length=50)] = setting(Change.RESTART, {})
    """Annotations of the accounts that the operator makes, such as the cloud's role that they stand for."""


class Driver(Model):
    """The driver: the pod that replicates."""

    rules = (
        Rule(
            "must not have what Levada sets itself: " + ", ".join(OWNED_SPARK_CONF),
            "self.sparkConf.all(k, !(k in [" + ", ".join(f"'{k}'" for k in OWNED_SPARK_CONF) + "]))",
            lambda d: not set(OWNED_SPARK_CONF) & d.spark_conf.keys(),
            field="sparkConf",
        ),
    )

    mode: DriverMode = setting(Change.RESTART, DriverMode.LOCAL)
    """Local: Spark's tasks run in the driver's pod. Cluster: in executor pods."""
    image: Annotated[str, Field(max_length=1024)] = setting(Change.RESTART, "")
    """The container image of the driver and its executors. Empty: the operator's own version."""
    resources: Resources = setting(
        Change.RESTART, {"requests": {"cpu": "1", "memory": "3Gi"}, "limits": {"memory": "3Gi"}}
    )
    """What the driver's container asks for."""
    spark_conf: Annotated[dict[str, str], Field(max_length=500)] = setting(Change.RESTART, {})
    """Further settings of Spark, by Spark's names; values are strings."""
    service_account: ServiceAccount = setting(Change.RESTART, {})
    """The account of the pods."""
    token_secret_ref: SecretKeyRef | None = setting(Change.RESTART, None)
    """A token, without which the driver answers neither /v1/progress nor /metrics. Without it: it answers everyone. The
    operator must have the same token: the chart's driverToken."""
    pod_template: PodTemplate = _pod_template()
    """A pod template that the driver's pod is merged into: labels, tolerations, priority and the like."""


class Instances(Model):
    """How many executors."""

    rules = (
        Rule(
            "must not be below min",
            "self.max >= self.min",
            lambda i: i.max >= i.min,
            field="max",
        ),
    )

    min: Whole = setting(Change.RESTART, 0, ge=0, le=1000)
    """How many executors are kept while there is nothing to do. 0: none."""
    max: Whole = setting(Change.RESTART, 4, ge=1, le=1000)
    """How many executors there may be."""


class Executor(Model):
    """The executors of driver.mode Cluster; without a meaning for Local."""

    instances: Instances = setting(Change.RESTART, {})
    """How many executors."""
    resources: Resources = setting(Change.RESTART, {})
    """What each executor's container asks for. Without requests: what the driver's asks for."""
    pod_template: PodTemplate = _pod_template()
    """A pod template that the executors' pods are merged into."""


class Remains(StrEnum):
    """What becomes of a thing when its Pipeline is deleted."""

    DELETE = "Delete"
    RETAIN = "Retain"


class DeletionPolicy(Model):
    """What a deleted Pipeline leaves."""

    rules = (
        Rule(
            "Retain needs slot: Retain, since state that outlives its slot would skip changes",
            "self.state != 'Retain' || self.slot == 'Retain'",
            lambda d: d.state is not Remains.RETAIN or d.slot is Remains.RETAIN,
            field="state",
        ),
    )

    slot: Remains = setting(Change.HOT, Remains.DELETE)
    """The replication slot. A retained slot keeps WAL on the source's disk until somebody drops it."""
    state: Remains = setting(Change.HOT, Remains.DELETE)
    """What the store keeps of the pipeline."""
    publication: Remains = setting(Change.HOT, Remains.RETAIN)
    """The publication, if it is managed; an external one always stays."""
    destination_tables: Remains = setting(Change.HOT, Remains.RETAIN)
    """The tables at the destination, with their data."""
    cleanup_timeout_seconds: Whole = setting(Change.HOT, 600, ge=30, le=86400)
    """Seconds after which deletion ends even if the clean-up failed; an Event then says what is left."""
