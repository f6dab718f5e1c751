"""The manifest's settings of a pipeline's run: batches, staging, store, retries, pods, and deletion."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from levada.spec.model import CHANGE, Change, Model, Rule, StrictBool, StrictInt, exactly_one, setting
from levada.spec.names import Identifier, OptionalObjectName, StagingUri
from levada.spec.quantity import Amount, Bytes, parse_quantity
from levada.spec.section import PluginSection
from levada.spec.source import PostgresServer, SecretKeyRef, TableSelector
from levada.values import CopyMode, QualifiedTable

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
"""Spark settings that Levada sets itself. A manifest must not contain them."""


class Copy(Model):
    """The initial copy of tables."""

    max_concurrent_tables: StrictInt = setting(Change.HOT, 4, ge=1, le=64)
    """The number of tables that are copied at the same time."""
    connections_per_table: StrictInt = setting(Change.HOT, 4, ge=1, le=64)
    """The number of connections to the source that read one table at the same time."""
    mode: CopyMode = setting(Change.HOT, CopyMode.ALL)
    """The rows that copies take. All: every row. None: no row, so that a table begins empty and receives the
    changes since then. A change applies to later copies, which are those of new tables and of resyncs.
    """
    except_for: tuple[TableSelector, ...] = setting(Change.HOT, (), max_length=1000)
    """Tables for which the other mode holds. With mode All their rows are skipped. With mode None only theirs are
    copied.
    """

    def mode_of(self, table: QualifiedTable) -> CopyMode:
        """Return the mode of a table without one of its own."""
        other = CopyMode.NONE if self.mode is CopyMode.ALL else CopyMode.ALL
        return other if any(selector.matches(table) for selector in self.except_for) else self.mode


class Apply(Model):
    """The application of staged changes to the destination."""

    max_concurrent_tables: StrictInt = setting(Change.RESTART, 0, ge=0, le=64)
    """The number of tables to which changes are applied at the same time. 0: four for each of the driver's CPUs, but at
    least 8 and at most 32. Large batches wait for one another where `memory` is short. A destination that writes all
    tables together ignores it.
    """


class Batch(Model):
    """The limits at which a segment of changes is closed and staged. The first limit reached counts."""

    max_fill_ms: StrictInt = setting(Change.HOT, 1000, ge=1, le=600_000)
    """Milliseconds since the segment's first change."""
    max_bytes: Bytes = setting(Change.HOT, "64Mi", ge=1)
    """The size of the segment's changes."""


class Approval(StrEnum):
    """The approval of changes that copy tables again."""

    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class Rollback(StrEnum):
    """The reaction to a change after which the driver does not become ready."""

    AUTO = "Auto"
    NONE = "None"


class VolumeClaim(Model):
    """A persistent volume claim."""

    size: Bytes = setting(Change.HOT)
    """The size of the volume. It can grow if its storage class allows that."""
    storage_class_name: Annotated[str, Field(max_length=253)] = setting(Change.IMMUTABLE, "")
    """The storage class. Empty: the cluster's default."""


class Staging(Model):
    """The storage of changes between the WAL and the destination.

    It is durable unless scratch is set: the slot is acknowledged as soon as changes are staged. Without any field,
    `levada run` stages in its work folder. The operator decides once for each Pipeline, and creates a volume claim if
    the cluster has a default StorageClass. Otherwise it uses scratch space.
    """

    rules = (
        Rule(
            "set only one of uri, volumeClaim and scratch",
            "[self.uri != '', has(self.volumeClaim), self.scratch].filter(x, x).size() <= 1",
            lambda s: sum((bool(s.uri), s.volume_claim is not None, s.scratch)) <= 1,
        ),
    )

    uri: StagingUri = setting(Change.IMMUTABLE, "")
    """A folder on durable storage: s3://, gs://, abfs:// or file://. Empty: none. S3 is accessed with the catalog's
    properties and Secret, unless the URI has a query with settings of its own.
    """
    volume_claim: VolumeClaim | None = setting(Change.RESTART, None)
    """A persistent volume for the driver. Unset: what the operator decided when the Pipeline was created. A Pipeline on
    scratch space moves to a volume when this is set.
    """
    scratch: StrictBool = setting(Change.RESTART, False)
    """true: changes are staged on scratch space, which may be lost. The slot is acknowledged only after every table has
    applied them. A Pipeline with a volume cannot change to it. false: changes are staged durably.
    """

    @property
    def decided(self) -> bool:
        """True if a place or scratch space is set."""
        return bool(self.uri) or self.volume_claim is not None or self.scratch


class PostgresStoreSpec(Model):
    """State in a PostgreSQL database, by default in the source database."""

    schema_name: Identifier = setting(Change.IMMUTABLE, "levada", alias="schema")
    """The schema that holds the state's tables. Several Pipelines may share it. The source's tables in a schema of this
    name are not replicated.
    """
    connection: PostgresServer | None = setting(Change.IMMUTABLE, None)
    """The database that holds the state. Unset: the source database."""


class ConfigMapStoreSpec(Model):
    """State in ConfigMaps in the Pipeline's namespace, for sources that cannot be written to, and for few tables."""


class MemoryStoreSpec(Model):
    """State in the driver's memory, for trials. A restarted driver copies every table again."""


class CustomStore(PluginSection):
    """A store from another Python package."""

    type: str = setting(Change.IMMUTABLE, min_length=1, max_length=253)
    """The store's name in the entry-point group levada.stores."""


class StoreSpec(Model):
    """The store of the pipeline's state. Exactly one kind must be set."""

    rules = (exactly_one("postgres", "config_map", "memory", "custom", what="store"),)

    postgres: PostgresStoreSpec | None = setting(Change.IMMUTABLE, None)
    """State in a PostgreSQL database, by default in the source database."""
    config_map: ConfigMapStoreSpec | None = setting(Change.IMMUTABLE, None)
    """State in ConfigMaps in the Pipeline's namespace."""
    memory: MemoryStoreSpec | None = setting(Change.IMMUTABLE, None)
    """State in the driver's memory, which a restart loses."""
    custom: CustomStore | None = setting(Change.IMMUTABLE, None)
    """A store from another Python package."""


class Retries(Model):
    """The retries of a table after an error that another attempt may resolve. The delay doubles with each attempt."""

    rules = (
        Rule(
            "must not be below delaySeconds",
            "self.maxDelaySeconds >= self.delaySeconds",
            lambda r: r.max_delay_seconds >= r.delay_seconds,
            field="maxDelaySeconds",
        ),
    )

    max_attempts: StrictInt = setting(Change.HOT, 5, ge=0, le=1000)
    """The number of retries before the table is parked. 0: the table is parked after the first error. With the default
    delays, 5 retries last for five minutes, and 1000 for a week. While the destination is away or full, so that no
    table can be written, the retries do not count, and one table at a time tries it, at least once a minute. Those
    after a refused login or access never count. Those of a copy do not count either while the source is away or refuses
    it, or while the table is locked. A first start whose destination does not answer is retried as often, before it
    fails.
    """
    delay_seconds: StrictInt = setting(Change.HOT, 10, ge=1, le=86400)
    """Seconds before the first retry."""
    max_delay_seconds: StrictInt = setting(Change.HOT, 600, ge=1, le=86400)
    """The longest delay between two retries, in seconds."""


class Health(Model):
    """The limits beyond which a pipeline counts as stuck."""

    progress_deadline_seconds: StrictInt = setting(Change.HOT, 900, ge=30, le=86400)
    """Seconds without progress after which the driver is restarted, if there is WAL to read."""
    lag_probe_seconds: StrictInt = setting(Change.HOT, 300, ge=0, le=86400)
    """Seconds between two short Jobs that sample the slot's lag while no driver runs. 0: no such Job runs."""


class Continuous(Model):
    """Comparisons of each table range by range, all the time. Rows that differ are written again.

    The destination must compare ranges of keys. Iceberg, DuckLake and PostgreSQL do.
    """

    every_hours: StrictInt = setting(Change.HOT, 0, ge=0, le=8760)
    """Hours in which each row is compared once. 0: tables are not compared by ranges."""
    max_source_load_percent: StrictInt = setting(Change.HOT, 1, ge=1, le=100)
    """The percentage of the time for which one connection computes checksums at the source. Between two ranges nothing
    is read. If it is too low for `everyHours`, the comparison of all rows takes longer.
    """


class Verify(Model):
    """Comparisons of the tables with the source, as `levada verify` makes them. Tables that differ are reported."""

    every_hours: StrictInt = setting(Change.HOT, 0, ge=0, le=8760)
    """Hours in which each table is compared once. The comparisons are spread over that time. One waits while a table
    trails by more than batching causes. 0: tables are compared only on request.
    """
    sample_percent: StrictInt = setting(Change.HOT, 100, ge=1, le=100)
    """The percentage of the rows whose values are compared each time. The keys of all rows are compared."""
    before_swap: StrictBool = setting(Change.HOT, False)
    """true: the shadow copy of a resync is compared with the source, all of its values, and replaces the table only if
    it is equal. Otherwise the resync ends with an error, and the table stays as it is. false: it is not compared.
    """
    continuous: Continuous = setting(Change.HOT, {})
    """Comparisons of each table range by range, all the time. Rows that differ are written again."""


class Cuts(Model):
    """Cuts: every table is kept as of one LSN, under one name. A reader of all tables at a cut sees whole transactions.

    The destination must keep former states of tables. Iceberg keeps them as tags.
    """

    every_seconds: StrictInt = setting(Change.HOT, 0, ge=0, le=31_536_000)
    """Seconds between two cuts. Each costs one commit of metadata in each table. A cut begins after the last one has
    ended, so a slow table makes the interval longer. 0: cuts are made only on request, by `levada cut`.
    """
    keep: StrictInt = setting(Change.HOT, 24, ge=1, le=1000)
    """The number of the newest complete cuts to keep, and of the newest incomplete ones. The storage that they need is
    freed by the maintenance of tables. Cuts that were made on request are kept until they are dropped, so the field
    has no effect while everySeconds is 0.
    """


class DriverMode(StrEnum):
    """The place where Spark's tasks run. Without Spark, tasks run in processes of the driver's pod."""

    LOCAL = "Local"
    CLUSTER = "Cluster"


class Resources(Model):
    """Resource requests and limits of a container, as in a pod."""

    rules = (
        Rule(
            "must not be above limits",
            "self.requests.all(k, !(k in self.limits) || quantity(string(self.requests[k]))"
            ".compareTo(quantity(string(self.limits[k]))) <= 0)",
            lambda r: all(parse_quantity(r.limits.get(k, v)) >= parse_quantity(v) for k, v in r.requests.items()),
            field="requests",
        ),
    )

    # More than 7 would exceed the API server's budget for the rule's cost.
    requests: Annotated[dict[str, Amount], Field(max_length=7)] = setting(Change.RESTART, {})
    """Reserved amounts by resource: cpu, memory, ephemeral-storage."""
    limits: Annotated[dict[str, Amount], Field(max_length=7)] = setting(Change.RESTART, {})
    """Upper limits by resource."""


def _check_shape(template: dict[str, Any]) -> dict[str, Any]:
    """Raise an error if Levada's own parts cannot be merged into a pod template, else return the template.

    The API server checks the template's other fields.
    """
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
    """The service account of the pipeline's pods."""

    rules = (
        Rule(
            "set either name or annotations, not both: the operator does not change an existing account",
            "self.name == '' || size(self.annotations) == 0",
            lambda a: not (a.name and a.annotations),
        ),
    )

    name: OptionalObjectName = setting(Change.RESTART, "")
    """An existing service account for the driver, its Jobs and its executors. Empty: the operator creates accounts."""
    annotations: Annotated[dict[str, str], Field(max_length=50)] = setting(Change.RESTART, {})
    """Annotations of the accounts that the operator creates, such as the cloud role that they assume."""


class Driver(Model):
    """The driver: the pod that replicates."""

    rules = (
        Rule(
            "must not contain a setting that Levada sets itself: " + ", ".join(OWNED_SPARK_CONF),
            "self.sparkConf.all(k, !(k in [" + ", ".join(f"'{k}'" for k in OWNED_SPARK_CONF) + "]))",
            lambda d: not set(OWNED_SPARK_CONF) & d.spark_conf.keys(),
            field="sparkConf",
        ),
    )

    mode: DriverMode = setting(Change.RESTART, DriverMode.LOCAL)
    """Local: tasks run in the driver's pod. Cluster: Spark's tasks run in executor pods."""
    image: Annotated[str, Field(max_length=1024)] = setting(Change.RESTART, "")
    """The container image of the driver and its executors. Empty: the image of the operator's version."""
    resources: Resources = setting(Change.RESTART, {})
    """The resources of the driver's container. An amount that is in neither requests nor limits has a default. It is 1
    CPU and 3Gi of memory for a destination that uses Spark or is of another package, else 500m and 1Gi. That memory is
    also the limit.
    """
    spark_conf: Annotated[dict[str, str], Field(max_length=500)] = setting(Change.RESTART, {})
    """Further Spark settings, by Spark's names. Values are strings. Only for a destination that uses Spark."""
    service_account: ServiceAccount = setting(Change.RESTART, {})
    """The service account of the pods."""
    token_secret_ref: SecretKeyRef | None = setting(Change.RESTART, None)
    """A token that requests to the driver's port must carry. Unset: the driver answers requests for progress and
    metrics, and over loopback those that write or return values. The operator needs the same token, under the
    namespace's name, in the Secret of the chart's driverToken.
    """
    pod_template: PodTemplate = _pod_template()
    """A pod template into which the driver's pod is merged, for labels, tolerations, priority and the like."""


class Instances(Model):
    """The number of executors."""

    rules = (
        Rule(
            "must not be below min",
            "self.max >= self.min",
            lambda i: i.max >= i.min,
            field="max",
        ),
    )

    min: StrictInt = setting(Change.RESTART, 0, ge=0, le=1000)
    """The number of executors that are kept while there is nothing to do. 0: none."""
    max: StrictInt = setting(Change.RESTART, 4, ge=1, le=1000)
    """The largest number of executors."""


class Executor(Model):
    """The executors of driver.mode Cluster. Ignored if driver.mode is Local."""

    instances: Instances = setting(Change.RESTART, {})
    """The number of executors."""
    resources: Resources = setting(Change.RESTART, {})
    """The resources of each executor's container. Without requests: the driver's requests."""
    pod_template: PodTemplate = _pod_template()
    """A pod template into which the executors' pods are merged."""


class DeletionAction(StrEnum):
    """The action on an object when its Pipeline is deleted."""

    DELETE = "Delete"
    RETAIN = "Retain"


class DeletionPolicy(Model):
    """Deletion of the slot, the state, the publication and the tables when the Pipeline is deleted."""

    rules = (
        Rule(
            "Retain requires slot: Retain, because state that outlives its slot would skip changes",
            "self.state != 'Retain' || self.slot == 'Retain'",
            lambda d: d.state is not DeletionAction.RETAIN or d.slot is DeletionAction.RETAIN,
            field="state",
        ),
    )

    slot: DeletionAction = setting(Change.HOT, DeletionAction.DELETE)
    """The replication slot. A retained slot retains WAL on the source's disk until it is dropped."""
    state: DeletionAction = setting(Change.HOT, DeletionAction.DELETE)
    """The pipeline's state in the store."""
    publication: DeletionAction = setting(Change.HOT, DeletionAction.RETAIN)
    """The publication, if its management is Managed. An external publication always stays."""
    destination_tables: DeletionAction = setting(Change.HOT, DeletionAction.RETAIN)
    """The tables at the destination, with their data."""
    cleanup_timeout_seconds: StrictInt = setting(Change.HOT, 600, ge=30, le=86400)
    """Seconds after which deletion completes even if the clean-up failed. An Event then lists what is left."""
