"""The manifest's first kind of object: Pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from levada.spec.destination import KEEPING_SECTIONS, SPARK_SECTIONS, DestinationSpec
from levada.spec.guard import Guard
from levada.spec.model import Change, Model, Rule, StrictBool, StrictInt, setting
from levada.spec.names import ObjectName, PipelineName, append_name, default_object_name
from levada.spec.quantity import Bytes
from levada.spec.running import (
    Apply,
    Approval,
    Batch,
    Copy,
    Cuts,
    DeletionPolicy,
    Driver,
    DriverMode,
    Executor,
    Health,
    Retries,
    Rollback,
    Staging,
    StoreSpec,
    Verify,
)
from levada.spec.source import PublicationManagement, Source, Tables
from levada.values import (
    Deletes,
    Keyless,
    OnPartitionGone,
    OnSchemaChange,
    OnUnrepresentable,
)

_SERVER_FIELDS: Final = {
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
}


class Metadata(Model):
    """An object's name and namespace. Kubernetes' other metadata is ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    name: ObjectName = setting(Change.IMMUTABLE)
    """The object's name."""
    namespace: Annotated[str, Field(max_length=63)] = setting(Change.IMMUTABLE, "")
    """The object's namespace. Empty: the current namespace."""

    @model_validator(mode="before")
    @classmethod
    def _drop_server_fields(cls, given: Any) -> Any:
        return {k: v for k, v in given.items() if k not in _SERVER_FIELDS} if isinstance(given, Mapping) else given


class PipelineMetadata(Metadata):
    """A Pipeline's metadata. The name is part of the default slot name, and so has a shorter limit."""

    name: PipelineName = setting(Change.IMMUTABLE)
    """The Pipeline's name."""


@dataclass(frozen=True, slots=True)
class _SparkSetting:
    """A setting that has no effect without Spark. ``unset`` is a CEL expression, and ``is_set`` its negation."""

    field: str
    unset: str
    is_set: Callable[[PipelineSpec], bool]

    def rule(self) -> Rule:
        """Return the rule that the setting has a destination that may use Spark."""
        given = " || ".join(f"has(self.destination.{to_camel(name)})" for name in SPARK_SECTIONS)
        return Rule(
            f"needs a destination that uses Spark: {' or '.join(map(to_camel, SPARK_SECTIONS))}",
            f"{self.unset} || {given}",
            lambda spec: spec.destination.spark or not self.is_set(spec),
            field=self.field,
        )


_SPARK_SETTINGS: Final = (
    _SparkSetting("driver.mode", "self.driver.mode != 'Cluster'", lambda s: s.driver.mode is DriverMode.CLUSTER),
    _SparkSetting("driver.sparkConf", "size(self.driver.sparkConf) == 0", lambda s: bool(s.driver.spark_conf)),
    _SparkSetting("executor", "!has(self.executor)", lambda s: s.executor is not None),
)


KEEPS_NOTHING: Final = f"must be Apply, except with a destination of {', '.join(map(to_camel, KEEPING_SECTIONS))}"
KEEPS_TOGETHER: Final = "must be Apply with ordering: Pipeline, whose tables are dropped before they are copied again"
KEEPS_NO_PARTITION: Final = f"must be Delete, except with {', '.join(map(to_camel, KEEPING_SECTIONS))}, ordering: Table"


class PipelineSpec(Model):
    """One source database, one publication, one slot, one destination."""

    rules = (
        *(one.rule() for one in _SPARK_SETTINGS),
        Rule(
            "where needs a managed publication: give the External one row filters instead",
            "self.source.publication.management != 'External' || self.tables.include.all(t, !has(t.where))",
            lambda s: (
                s.source.publication.management is not PublicationManagement.EXTERNAL
                or all(t.where is None for t in s.tables.include)
            ),
            field="tables.include",
        ),
        Rule(
            KEEPS_NOTHING,
            "self.tables.deletes == 'Apply' || "
            + " || ".join(f"has(self.destination.{to_camel(name)})" for name in KEEPING_SECTIONS),
            lambda s: s.tables.deletes is Deletes.APPLY or s.destination.section.keeps_deleted,
            field="tables.deletes",
        ),
        Rule(
            KEEPS_TOGETHER,
            "self.tables.deletes == 'Apply' || !has(self.destination.postgres)"
            " || self.destination.postgres.ordering != 'Pipeline'",
            lambda s: s.tables.deletes is Deletes.APPLY or not s.destination.in_one_transaction,
            field="tables.deletes",
        ),
        Rule(
            "Append needs a managed publication: give the tables REPLICA IDENTITY FULL instead",
            "self.source.publication.management != 'External' || self.tables.keyless != 'Append'",
            lambda s: (
                s.source.publication.management is not PublicationManagement.EXTERNAL
                or s.tables.keyless is not Keyless.APPEND
            ),
            field="tables.keyless",
        ),
        Rule(
            KEEPS_NO_PARTITION,
            "self.tables.onPartitionGone == 'Delete' || "
            + " || ".join(f"has(self.destination.{to_camel(name)})" for name in KEEPING_SECTIONS if name != "postgres")
            + " || (has(self.destination.postgres) && self.destination.postgres.ordering != 'Pipeline')",
            lambda s: s.tables.on_partition_gone is OnPartitionGone.DELETE or s.destination.keeps_rows,
            field="tables.onPartitionGone",
        ),
        Rule(
            "needs approval: Manual. With Automatic no change waits, whatever its size",
            "!has(self.approvalAbove) || self.approval == 'Manual'",
            lambda s: s.approval_above is None or s.approval is Approval.MANUAL,
            field="approvalAbove",
        ),
    )

    suspend: StrictBool = setting(Change.HOT, False)
    """true: the pipeline is suspended. The driver stops, and the slot stays and retains WAL. false: the pipeline
    runs.
    """
    approval: Approval = setting(Change.HOT, Approval.AUTOMATIC)
    """Treatment of changed fields that copy tables again, except resyncNonce. Automatic: they take effect. Manual: they
    wait until their cost is approved, and all other changes take effect. `levada run` needs the option --approve.
    """
    approval_above: Bytes | None = setting(Change.HOT, None)
    """With approval Manual, the total size of the tables to copy again above which a change waits. A smaller change
    takes effect. The sizes are those at the source, or those of the last copies if the operator knows larger ones.
    Tables of unknown size count as larger. Unset: every such change waits. A single larger table is not copied again by
    itself after a change at the source (tables.onUnstreamable).
    """
    rollback: Rollback = setting(Change.HOT, Rollback.AUTO)
    """Reaction of the operator to a change after which the driver's pod is not Ready within
    health.progressDeadlineSeconds. Auto: the fields that restart the driver get the values of the last spec whose pod
    became Ready, until they are changed again. None: the change stays.
    """
    restart_nonce: StrictInt = setting(Change.RESTART, 0, ge=0)
    """Change it to any other value to restart the driver. Copied and applied data is kept."""
    source: Source = setting(Change.RESTART)
    """The source database."""
    tables: Tables = setting(Change.HOT)
    """The tables to replicate."""
    copy_: Copy = setting(Change.HOT, {}, alias="copy")
    """The initial copy of tables. A statement that needs an exclusive lock on a table waits for the table's copy. The
    copy is interrupted after such a wait of half a second, and starts again afterwards.
    """
    apply: Apply = setting(Change.RESTART, {})
    """The application of staged changes to the destination."""
    memory: Bytes | None = setting(Change.RESTART, None)
    """The memory for changes, which capture and apply share. While batches hold what capture needs, capture waits, and
    the status shows it. The programs themselves, Spark and copies need more. Unset: what the container's limit leaves,
    and at least 352Mi.
    """
    batch: Batch = setting(Change.HOT, {})
    """The limits at which a batch of changes is closed and staged."""
    freshness_seconds: StrictInt = setting(Change.HOT, 10, ge=1, le=86400)
    """Seconds by which a table may trail the source. A larger value makes the destination's writes cheaper."""
    on_schema_change: OnSchemaChange = setting(Change.RESTART, OnSchemaChange.PROPAGATE)
    """Reaction to changed columns of a source table. Propagate: the destination's columns change likewise. Fail: the
    table is parked. Ignore: the destination's columns stay.
    """
    on_unrepresentable: OnUnrepresentable = setting(Change.RESYNC, OnUnrepresentable.ERROR)
    """Treatment of values that the destination's type cannot represent. Error: the table is parked. "Null" (in quotes,
    because YAML reads Null as nothing): the value becomes NULL and is counted, and in a key it parks the table. Text:
    columns whose type has such values are stored as text.
    """
    destination: DestinationSpec = setting(Change.IMMUTABLE)
    """The destination of the tables."""
    staging: Staging = setting(Change.IMMUTABLE, {})
    """The storage of changes between the WAL and the destination."""
    store: StoreSpec = setting(Change.IMMUTABLE, {"postgres": {}})
    """The store of the pipeline's state."""
    retries: Retries = setting(Change.HOT, {})
    """The retries of a failed table."""
    health: Health = setting(Change.HOT, {})
    """The limits beyond which a pipeline counts as stuck."""
    verify: Verify = setting(Change.HOT, {})
    """Comparisons of the tables with the source, as `levada verify` makes them. Tables that differ are reported."""
    cuts: Cuts = setting(Change.HOT, {})
    """Cuts: every table is kept as of one LSN, under one name. A reader of all tables at a cut sees whole transactions.
    """
    guard: Guard = setting(Change.HOT, {})
    """Limits on what the pipeline may fill, and what is done when they are passed."""
    driver: Driver = setting(Change.RESTART, {})
    """The driver: the pod that replicates."""
    executor: Executor | None = setting(Change.RESTART, None)
    """The executors of driver.mode Cluster. Unset: the defaults of its fields."""
    deletion_policy: DeletionPolicy = setting(Change.HOT, {})
    """Deletion of the slot, the state, the publication and the tables when the Pipeline is deleted."""

    @property
    def spark_settings(self) -> tuple[str, ...]:
        """The paths of the settings that have no effect without Spark, below ``spec``."""
        return tuple(one.field for one in _SPARK_SETTINGS if one.is_set(self))


class PipelineManifest(Model):
    """A pipeline: one source database, its replicated tables, and their destination."""

    api_version: Literal["levada.dev/v1alpha1"] = setting(Change.IMMUTABLE)
    """The API group and version."""
    kind: Literal["Pipeline"] = setting(Change.IMMUTABLE)
    """The kind of object."""
    metadata: PipelineMetadata = setting(Change.IMMUTABLE)
    """The object's name."""
    spec: PipelineSpec = setting(Change.HOT)
    """The desired state."""

    @property
    def slot_name(self) -> str:
        """The replication slot's name, configured or default."""
        return self.spec.source.slot.name or default_object_name(self.metadata.name, self.metadata.namespace)

    @property
    def append_publication_name(self) -> str:
        """The name of the second publication, of tables without a replica identity that are only appended to."""
        return append_name(self.publication_name)

    @property
    def publication_name(self) -> str:
        """The publication's name, configured or default."""
        return self.spec.source.publication.name or default_object_name(self.metadata.name, self.metadata.namespace)
