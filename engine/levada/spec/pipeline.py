"""The manifest's two kinds of object: Pipeline and TableSync."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model, model_validator
from pydantic.alias_generators import to_camel

from levada.spec.columns import Columns
from levada.spec.destination import KEEPING_SECTIONS, SPARK_SECTIONS, DestinationSpec
from levada.spec.guard import Guard
from levada.spec.model import Change, Model, Rule, StrictBool, StrictInt, at_most_one, setting
from levada.spec.names import Identifier, LakeTable, ObjectName, PipelineName, append_name, default_object_name
from levada.spec.plugins import DESTINATIONS, own_table_sections
from levada.spec.problems import SpecProblem
from levada.spec.quantity import Amount, Bytes
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
    Resources,
    Retries,
    Rollback,
    Staging,
    StoreSpec,
    Verify,
)
from levada.spec.section import DestinationTableSettings, PluginTableSettings
from levada.spec.source import PublicationManagement, Source, Tables
from levada.values import (
    CopyMode,
    Deletes,
    Keyless,
    MaskMethod,
    MetadataColumn,
    OnPartitionGone,
    OnSchemaChange,
    OnUnrepresentable,
    OnUnstreamable,
    QualifiedTable,
    TableMode,
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


_KEEPS_NOTHING: Final = f"must be Apply, except with a destination of {', '.join(map(to_camel, KEEPING_SECTIONS))}"
_KEEPS_TOGETHER: Final = "must be Apply with ordering: Pipeline, whose tables are dropped before they are copied again"
_KEEPS_NO_PARTITION: Final = (
    f"must be Delete, except with {', '.join(map(to_camel, KEEPING_SECTIONS))}, ordering: Table"
)


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
            _KEEPS_NOTHING,
            "self.tables.deletes == 'Apply' || "
            + " || ".join(f"has(self.destination.{to_camel(name)})" for name in KEEPING_SECTIONS),
            lambda s: s.tables.deletes is Deletes.APPLY or s.destination.section.keeps_deleted,
            field="tables.deletes",
        ),
        Rule(
            _KEEPS_TOGETHER,
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
            _KEEPS_NO_PARTITION,
            "self.tables.onPartitionGone == 'Delete' || "
            + " || ".join(f"has(self.destination.{to_camel(name)})" for name in KEEPING_SECTIONS if name != "postgres")
            + " || (has(self.destination.postgres) && self.destination.postgres.ordering != 'Pipeline')",
            lambda s: s.tables.on_partition_gone is OnPartitionGone.DELETE or s.destination.keeps_rows,
            field="tables.onPartitionGone",
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


class CopyDriver(StrEnum):
    """The pod that copies a table."""

    SHARED = "Shared"
    DEDICATED = "Dedicated"


def _unset(value: Any) -> Any:
    return None if value == "" else value


OptionalMode = Annotated[
    TableMode | None,
    BeforeValidator(_unset),
    WithJsonSchema({"type": "string", "enum": ["", *(m.value for m in TableMode)]}),
]


OptionalKeyless = Annotated[
    Keyless | None,
    BeforeValidator(_unset),
    WithJsonSchema({"type": "string", "enum": ["", *(k.value for k in Keyless)]}),
]


OptionalCopyMode = Annotated[
    CopyMode | None,
    BeforeValidator(_unset),
    WithJsonSchema({"type": "string", "enum": ["", *(m.value for m in CopyMode)]}),
]


OptionalOnUnstreamable = Annotated[
    OnUnstreamable | None,
    BeforeValidator(_unset),
    WithJsonSchema({"type": "string", "enum": ["", *(o.value for o in OnUnstreamable)]}),
]


OptionalDeletes = Annotated[
    Deletes | None,
    BeforeValidator(_unset),
    WithJsonSchema({"type": "string", "enum": ["", *(d.value for d in Deletes)]}),
]


OptionalOnPartitionGone = Annotated[
    OnPartitionGone | None,
    BeforeValidator(_unset),
    WithJsonSchema({"type": "string", "enum": ["", *(o.value for o in OnPartitionGone)]}),
]


class PipelineRef(Model):
    """A Pipeline in the same namespace."""

    name: PipelineName = setting(Change.IMMUTABLE)
    """The Pipeline's name."""


class TableRef(Model):
    """A table of the source."""

    schema_name: Identifier = setting(Change.IMMUTABLE, "public", alias="schema")
    """The schema, as the catalog spells it."""
    name: Identifier = setting(Change.IMMUTABLE)
    """The table's name, as the catalog spells it."""

    @property
    def qualified(self) -> QualifiedTable:
        """The table's name as a `QualifiedTable`."""
        return QualifiedTable(self.schema_name, self.name)


class CopyResources(Resources):
    """Resource requests and limits of the container of a dedicated copy. A change applies to the next copy."""

    requests: Annotated[dict[str, Amount], Field(max_length=7)] = setting(Change.HOT, {})
    """Reserved amounts by resource: cpu, memory, ephemeral-storage."""
    limits: Annotated[dict[str, Amount], Field(max_length=7)] = setting(Change.HOT, {})
    """Upper limits by resource."""


_NEEDS_DEDICATED: Final = "needs driver: Dedicated, because a Shared copy runs in the pipeline's driver"


class TableCopy(Model):
    """The initial copy of this table."""

    rules = (
        Rule(
            _NEEDS_DEDICATED,
            "self.driver == 'Dedicated' || (size(self.resources.requests) == 0 && size(self.resources.limits) == 0)",
            lambda c: c.driver is CopyDriver.DEDICATED or not (c.resources.requests or c.resources.limits),
            field="resources",
        ),
        Rule(
            _NEEDS_DEDICATED,
            "self.driver == 'Dedicated' || self.executors == 0",
            lambda c: c.driver is CopyDriver.DEDICATED or not c.executors,
            field="executors",
        ),
        Rule(
            "needs a mode other than None, with which no row is copied",
            "self.mode != 'None' || !has(self.where)",
            lambda c: c.mode is not CopyMode.NONE or c.where is None,
            field="where",
        ),
    )

    driver: CopyDriver = setting(Change.HOT, CopyDriver.SHARED)
    """Shared: the pipeline's driver copies the table. Dedicated: a separate driver pod copies it."""
    resources: CopyResources = setting(Change.HOT, {})
    """The resources of the pod's container. An amount that is in neither requests nor limits is that of the driver.
    Only for driver Dedicated.
    """
    executors: StrictInt = setting(Change.HOT, 0, ge=0, le=1000)
    """The number of executors that copy the table, as pods of their own with the resources of spec.executor. 0: the
    copy's own pod copies it. No more than copy.connectionsPerTable tasks run at a time. Only for driver Dedicated, and
    for a Pipeline with driver.mode Cluster.
    """
    mode: OptionalCopyMode = setting(Change.HOT, "")
    """The rows that a copy of this table takes. All: every row. None: no row. Empty: as the Pipeline's copy says. A
    change applies to the next copy.
    """
    where: Annotated[str, Field(min_length=1, max_length=2000)] | None = setting(Change.HOT, None)
    """The rows that a copy of this table takes, as a condition in SQL on its columns. All changes are streamed, also
    those of other rows. A change applies to the next copy. Unset: every row.
    """


class CustomTableSettings(PluginTableSettings):
    """Settings of the table for a destination from another Python package."""


_TABLE_SECTIONS: Final = {**own_table_sections(DESTINATIONS), "custom": CustomTableSettings}


class TableSyncFields(Model):
    """One table of a Pipeline, and the settings in which it differs from the Pipeline's."""

    pipeline_ref: PipelineRef = setting(Change.IMMUTABLE)
    """The Pipeline that replicates the table."""
    table: TableRef = setting(Change.IMMUTABLE)
    """The source table."""
    suspend: StrictBool = setting(Change.HOT, False)
    """true: the table is suspended. Its changes are staged and kept. false: its changes are applied."""
    resync_nonce: StrictInt = setting(Change.RESYNC, 0, ge=0)
    """Change it to another value to resync the table. The table is copied into a shadow copy, and stays readable until
    the shadow copy has caught up and replaces it. Each value triggers one resync. 0 triggers none.
    """
    retry_nonce: StrictInt = setting(Change.HOT, 0, ge=0)
    """Change it to another value to retry the step that failed. Data is kept. Each value triggers one retry. 0 triggers
    none.
    """
    verify_nonce: StrictInt = setting(Change.HOT, 0, ge=0)
    """Change it to another value to compare the table with the source, as soon as it is Ready. The result is in
    status.verified. Each value triggers one comparison. 0 triggers none.
    """
    destination_table: LakeTable = setting(Change.RESYNC, "")
    """The table's name at the destination. Empty: the source's name, with characters that are not safe in a path
    percent-encoded as in a URI. Renaming the source table does not rename the destination's table.
    """
    mode: OptionalMode = setting(Change.RESYNC, "")
    """Upsert: the table holds the last state of each row. Changelog: it holds one row per change. Empty: the Pipeline's
    mode.
    """
    on_unstreamable: OptionalOnUnstreamable = setting(Change.HOT, "")
    """Reaction to changes of this table that are not in the stream. Resync: the table is copied again by itself, and
    stays readable meanwhile. In mode Changelog the copy has no history. Hold: it is parked, with the command that
    copies it again. Empty: Hold in mode Changelog, else tables.onUnstreamable of the Pipeline.
    """
    deletes: OptionalDeletes = setting(Change.RESYNC, "")
    """The effect of DELETE and TRUNCATE, as tables.deletes of the Pipeline. Empty: that setting."""
    metadata: Annotated[tuple[MetadataColumn, ...], Field(max_length=5)] | None = setting(Change.RESYNC, None)
    """Columns that describe the last change of each row, as tables.metadata of the Pipeline. Unset: that setting. []:
    none.
    """
    keyless: OptionalKeyless = setting(Change.HOT, "")
    """Treatment of the table if it has no replica identity, as tables.keyless of the Pipeline. Empty: as that says."""
    on_partition_gone: OptionalOnPartitionGone = setting(Change.HOT, "")
    """The effect of a partition that is gone, as tables.onPartitionGone of the Pipeline. Empty: that setting."""
    columns: Columns = setting(Change.RESYNC, {})
    """The replicated columns."""
    copy_: TableCopy = setting(Change.HOT, {}, alias="copy")
    """The initial copy of this table."""

    @property
    def destination_section(self) -> tuple[str, DestinationTableSettings] | None:
        """The table's settings for the destination with the name of their section, or None if there are none."""
        sections = ((name, getattr(self, name)) for name in _TABLE_SECTIONS)
        return next(((name, section) for name, section in sections if section is not None), None)


if TYPE_CHECKING:
    TableSyncSpec = TableSyncFields
else:

    def _table_sync_spec() -> type[TableSyncFields]:
        fields: dict[str, Any] = {
            name: (section | None, setting(Change.HOT, None, description=getdoc(section)))
            for name, section in _TABLE_SECTIONS.items()
        }
        made = create_model("TableSyncSpec", __base__=TableSyncFields, **fields)
        made.__doc__ = TableSyncFields.__doc__
        made.rules = (at_most_one(*_TABLE_SECTIONS, what="section of a destination"),)
        return made

    TableSyncSpec = _table_sync_spec()


def table_settings_problem(pipeline: PipelineSpec, table: TableSyncFields) -> SpecProblem | None:
    """Return the problem of a TableSync with settings that do not fit its Pipeline, or None.

    They are settings for another destination than the Pipeline's, deletes that it does not keep, executors without
    driver.mode Cluster, masks by HMAC without a key, and keyless Append with an External publication.
    """
    hashed = [name for name, mask in table.columns.mask.items() if mask.method is MaskMethod.HMAC]
    if hashed and pipeline.tables.mask_key_secret_ref is None:
        path = ("spec", "columns", "mask", hashed[0], "method")
        return SpecProblem(path, "needs tables.maskKeySecretRef in the Pipeline, which names the Secret with the key")
    external = pipeline.source.publication.management is PublicationManagement.EXTERNAL
    if table.keyless is Keyless.APPEND and external:
        return SpecProblem(("spec", "keyless"), "needs a Pipeline with a managed publication")
    if table.copy_.executors and pipeline.driver.mode is not DriverMode.CLUSTER:
        return SpecProblem(("spec", "copy", "executors"), "needs a Pipeline with driver.mode: Cluster")
    if table.on_partition_gone is OnPartitionGone.KEEP and not pipeline.destination.keeps_rows:
        return SpecProblem(("spec", "onPartitionGone"), _KEEPS_NO_PARTITION)
    if (table.deletes or Deletes.APPLY) is not Deletes.APPLY:
        if not pipeline.destination.section.keeps_deleted:
            return SpecProblem(("spec", "deletes"), _KEEPS_NOTHING)
        if pipeline.destination.in_one_transaction:
            return SpecProblem(("spec", "deletes"), _KEEPS_TOGETHER)
    found = table.destination_section
    if found is None or getattr(pipeline.destination, found[0]) is not None:
        return None
    return SpecProblem(("spec", found[0]), f"the Pipeline's destination is {pipeline.destination.type}")


class TableSyncManifest(Model):
    """One table of a Pipeline with settings of its own."""

    api_version: Literal["levada.dev/v1alpha1"] = setting(Change.IMMUTABLE)
    """The API group and version."""
    kind: Literal["TableSync"] = setting(Change.IMMUTABLE)
    """The kind of object."""
    metadata: Metadata = setting(Change.IMMUTABLE)
    """The object's name."""
    spec: TableSyncSpec = setting(Change.HOT)
    """The desired state."""
