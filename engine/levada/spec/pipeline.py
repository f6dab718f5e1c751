"""The two kinds of object: Pipeline and TableSync."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from levada.spec.destination import DestinationSpec
from levada.spec.model import Change, Flag, Model, Whole, setting
from levada.spec.names import Identifier, LakeTable, ObjectName, PipelineName, default_object_name
from levada.spec.running import (
    Batch,
    Copy,
    DeletionPolicy,
    Driver,
    Executor,
    Health,
    Retries,
    Staging,
    StoreSpec,
)
from levada.spec.source import Source, Tables
from levada.values import OnSchemaChange, OnUnrepresentable, QualifiedTable, TableMode

_KUBERNETES_OWN: Final = {
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
    """An object's name; what else Kubernetes keeps there is passed over."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    name: ObjectName = setting(Change.IMMUTABLE)
    """The object's name."""
    namespace: Annotated[str, Field(max_length=63)] = setting(Change.IMMUTABLE, "")
    """The object's namespace. Empty: the one that is current."""

    @model_validator(mode="before")
    @classmethod
    def _pass_over(cls, given: Any) -> Any:
        return {k: v for k, v in given.items() if k not in _KUBERNETES_OWN} if isinstance(given, Mapping) else given


class PipelineMetadata(Metadata):
    """A Pipeline's name, which slots are named after."""

    name: PipelineName = setting(Change.IMMUTABLE)
    """The Pipeline's name."""


class PipelineSpec(Model):
    """One source database, one publication, one slot, one destination."""

    suspend: Flag = setting(Change.HOT, False)
    """Whether the pipeline rests: the driver ends, the slot stays and keeps WAL. false: it runs."""
    restart_nonce: Whole = setting(Change.RESTART, 0, ge=0)
    """Change it, and the operator restarts the driver. What was copied and applied is kept."""
    source: Source = setting(Change.RESTART)
    """The source database."""
    tables: Tables = setting(Change.HOT)
    """Which tables are replicated."""
    copy_: Copy = setting(Change.HOT, {}, alias="copy")
    """The initial copy of tables. A statement that needs an exclusive lock on a table waits for the table's copy. The
    copy gives way after 10 seconds, and is made again afterwards."""
    batch: Batch = setting(Change.HOT, {})
    """When changes are staged."""
    freshness_seconds: Whole = setting(Change.HOT, 10, ge=1, le=86400)
    """How far a table may trail the source, in seconds; the more, the cheaper are the destination's writes."""
    on_schema_change: OnSchemaChange = setting(Change.RESTART, OnSchemaChange.PROPAGATE)
    """When a source table's columns change. Propagate: so do the destination's. Fail: the table waits for a person.
    Ignore: the destination's columns stay."""
    on_unrepresentable: OnUnrepresentable = setting(Change.RESYNC, OnUnrepresentable.ERROR)
    """When a value has no place in the destination's type. Error: the table waits for a person. "Null" (in quotes, or
    YAML reads nothing): the value becomes NULL, and is counted. Text: columns that may have such values are kept as
    text."""
    destination: DestinationSpec = setting(Change.IMMUTABLE)
    """Where the tables go."""
    staging: Staging = setting(Change.IMMUTABLE, {})
    """Where changes wait between the WAL and the destination."""
    store: StoreSpec = setting(Change.IMMUTABLE, {"postgres": {}})
    """Where the pipeline's state is kept."""
    retries: Retries = setting(Change.HOT, {})
    """How a failed table is retried."""
    health: Health = setting(Change.HOT, {})
    """When the pipeline counts as stuck."""
    driver: Driver = setting(Change.RESTART, {})
    """The pod that replicates."""
    executor: Executor = setting(Change.RESTART, {})
    """The executors of driver.mode Cluster."""
    deletion_policy: DeletionPolicy = setting(Change.HOT, {})
    """What a deleted Pipeline leaves."""


class PipelineManifest(Model):
    """A Pipeline, as it is written."""

    api_version: Literal["levada.dev/v1alpha1"] = setting(Change.IMMUTABLE)
    """The group and version of the manifest's form."""
    kind: Literal["Pipeline"] = setting(Change.IMMUTABLE)
    """The kind of object."""
    metadata: PipelineMetadata = setting(Change.IMMUTABLE)
    """The object's name."""
    spec: PipelineSpec = setting(Change.HOT)
    """What is wanted."""

    @property
    def slot_name(self) -> str:
        """The replication slot's name, given or derived."""
        return self.spec.source.slot.name or default_object_name(self.metadata.name, self.metadata.namespace)

    @property
    def publication_name(self) -> str:
        """The publication's name, given or derived."""
        return self.spec.source.publication.name or default_object_name(self.metadata.name, self.metadata.namespace)


class CopyDriver(StrEnum):
    """Which pod copies a table."""

    SHARED = "Shared"
    DEDICATED = "Dedicated"


def _unset(value: Any) -> Any:
    return None if value == "" else value


OptionalMode = Annotated[
    TableMode | None,
    BeforeValidator(_unset),
    WithJsonSchema({"type": "string", "enum": ["", *(m.value for m in TableMode)]}),
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
        """The table's name as a value."""
        return QualifiedTable(self.schema_name, self.name)


class Columns(Model):
    """Which columns are replicated."""

    exclude: Annotated[tuple[Identifier, ...], Field(max_length=1600)] = setting(Change.RESYNC, ())
    """Columns that are left out, as the catalog spells them."""


class TableCopy(Model):
    """The copy of this table."""

    driver: CopyDriver = setting(Change.HOT, CopyDriver.SHARED)
    """Shared: the pipeline's driver copies the table. Dedicated: a driver pod of its own does."""


class TableSyncSpec(Model):
    """One table of a Pipeline, and what is different about it."""

    pipeline_ref: PipelineRef = setting(Change.IMMUTABLE)
    """The Pipeline that the table is of."""
    table: TableRef = setting(Change.IMMUTABLE)
    """The table."""
    suspend: Flag = setting(Change.HOT, False)
    """Whether this table rests; its changes are staged and kept. false: it is applied."""
    resync_nonce: Whole = setting(Change.RESYNC, 0, ge=0)
    """Change it, and the table is copied again, beside the present one, which serves until the copy has caught up. Once
    for each value; 0 asks for nothing."""
    retry_nonce: Whole = setting(Change.HOT, 0, ge=0)
    """Change it, and the step that failed is tried again; data is kept. Once for each value; 0 asks for nothing."""
    destination_table: LakeTable = setting(Change.RESYNC, "")
    """The table's name at the destination. Empty: the source's, with characters that are not safe in a path encoded as
    in a URI. A table that is renamed at the source keeps the name that it has at the destination."""
    mode: OptionalMode = setting(Change.RESYNC, "")
    """Upsert: the last state of each row. Changelog: every change, one row each. Empty: as the Pipeline says."""
    columns: Columns = setting(Change.RESYNC, {})
    """Which columns are replicated."""
    copy_: TableCopy = setting(Change.HOT, {}, alias="copy")
    """The copy of this table."""


class TableSyncManifest(Model):
    """A TableSync, as it is written."""

    api_version: Literal["levada.dev/v1alpha1"] = setting(Change.IMMUTABLE)
    """The group and version of the manifest's form."""
    kind: Literal["TableSync"] = setting(Change.IMMUTABLE)
    """The kind of object."""
    metadata: Metadata = setting(Change.IMMUTABLE)
    """The object's name."""
    spec: TableSyncSpec = setting(Change.HOT)
    """What is wanted."""
