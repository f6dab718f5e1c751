"""The manifest's second kind of object: TableSync, one table of a Pipeline with settings of its own."""

from __future__ import annotations

from enum import StrEnum
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, create_model

from levada.spec.columns import Columns
from levada.spec.model import Change, Model, Rule, StrictBool, StrictInt, at_most_one, setting
from levada.spec.names import Identifier, LakeTable, PipelineName
from levada.spec.pipeline import KEEPS_NO_PARTITION, KEEPS_NOTHING, KEEPS_TOGETHER, Metadata, PipelineSpec
from levada.spec.plugins import DESTINATIONS, own_table_sections
from levada.spec.problems import SpecProblem
from levada.spec.quantity import Amount
from levada.spec.running import (
    DriverMode,
    Resources,
)
from levada.spec.section import DestinationTableSettings, PluginTableSettings
from levada.spec.source import PublicationManagement
from levada.values import (
    CopyMode,
    Deletes,
    Keyless,
    MaskMethod,
    MetadataColumn,
    OnPartitionGone,
    OnUnstreamable,
    QualifiedTable,
    TableMode,
)


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


class TableContinuous(Model):
    """Comparisons of the table range by range, all the time."""

    every_hours: Annotated[StrictInt, Field(ge=0, le=8760)] | None = setting(Change.HOT, None)
    """Hours in which each row is compared once. 0: the table is not compared by ranges. Unset: as the Pipeline's
    verify.continuous says.
    """


class TableVerify(Model):
    """Comparisons of the table with the source, where they differ from those of verify of the Pipeline."""

    every_hours: Annotated[StrictInt, Field(ge=0, le=8760)] | None = setting(Change.HOT, None)
    """Hours in which the table is compared once. 0: only on request. Unset: as the Pipeline's verify says."""
    sample_percent: Annotated[StrictInt, Field(ge=1, le=100)] | None = setting(Change.HOT, None)
    """The percentage of the rows whose values are compared each time. Unset: as the Pipeline's verify says."""
    before_swap: StrictBool | None = setting(Change.HOT, None)
    """true: the shadow copy of a resync is compared with the source, and replaces the table only if it is equal. false:
    it is not compared. Unset: as the Pipeline's verify says.
    """
    continuous: TableContinuous = setting(Change.HOT, {})
    """Comparisons of the table range by range, all the time."""

    @property
    def is_set(self) -> bool:
        """True if the table has a setting of its own."""
        return self != TableVerify()


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
    verify: TableVerify = setting(Change.HOT, {})
    """Comparisons of the table with the source, where they differ from those of verify of the Pipeline."""
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
        return SpecProblem(("spec", "onPartitionGone"), KEEPS_NO_PARTITION)
    if (table.deletes or Deletes.APPLY) is not Deletes.APPLY:
        if not pipeline.destination.section.keeps_deleted:
            return SpecProblem(("spec", "deletes"), KEEPS_NOTHING)
        if pipeline.destination.in_one_transaction:
            return SpecProblem(("spec", "deletes"), KEEPS_TOGETHER)
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
