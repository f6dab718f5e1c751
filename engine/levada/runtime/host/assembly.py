"""Assembly of a pipeline's parts from a manifest: configuration, store, destination and Spark session."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from pydantic.alias_generators import to_snake

from levada.destinations.check_jvm import CheckJvm
from levada.destinations.context import DestinationContext
from levada.destinations.interface import Destination
from levada.mask_keys import MaskKeyFiles
from levada.postgres.client_key import CERTIFICATE, KEY
from levada.postgres.connection import Keepalives, PostgresConnection
from levada.postgres.identity import SourceIdentity
from levada.postgres.server_names import SOURCE, STORE, ServerNames
from levada.postgres.tls import SESSION_ATTRS, SSL_MODES, trusted_certificates
from levada.private import private_folder
from levada.runtime.config import (
    ContinuousConfig,
    CutSchedule,
    GuardLimit,
    PipelineConfig,
    PublicationConfig,
    RetryLimits,
    SlotConfig,
    StagingConfig,
    TableConfig,
    VerifyConfig,
)
from levada.runtime.destination_errors import destination_errors
from levada.runtime.host.masks import open_mask_keys, table_masks
from levada.runtime.host.plugins import (
    custom_store,
    destination_class,
    destination_settings,
    object_store,
    table_settings,
)
from levada.runtime.host.secret_folder import secret_folder
from levada.runtime.host.work_dir import default_work_dir
from levada.runtime.resources.machine import (
    apply_threads,
    available_cores,
    change_memory,
    installed_memory,
    memory_limit,
    require_utf8,
)
from levada.runtime.resources.spark import has_session, spark_session, stop_spark
from levada.runtime.source.ownership import former_names
from levada.runtime.source.record import former_sources, verified_source
from levada.schema.stored_types import StoredTypes
from levada.spec import (
    CopyDriver,
    Manifests,
    OnLostSlot,
    PipelineSpec,
    PublicationManagement,
    TableSyncSpec,
)
from levada.spec.guard import Guard as GuardSpec
from levada.spec.running import Approval, Retries
from levada.spec.running import Verify as VerifySpec
from levada.spec.source import DdlTrigger, PostgresServer
from levada.spec.table_sync import TableVerify
from levada.status import GuardMeasure, GuardPolicy
from levada.stores import ConfigMapStore, MemoryStorage, MemoryStore, PostgresStore
from levada.stores.connection import StoreConnection
from levada.stores.interface import PipelineStore, StoreContext
from levada.stores.postgres import StoreWaits
from levada.values import CopyMode, OnUnstreamable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEDICATED_COPIES: Final = "LEVADA_DEDICATED_COPIES"
"""Environment variable. Set if Jobs run `levada copy` for the copies that a driver orders, as the operator's do."""

PIPELINE_UID: Final = "LEVADA_PIPELINE_UID"
"""Environment variable with the UID of the Pipeline object. The operator sets it in every pod."""


TAKE_OVER_FROM: Final = "LEVADA_TAKE_OVER_FROM"
"""Environment variable with the UID of the owner from which the Pipeline takes over."""

_COMMAND_WAITS: Final = StoreWaits(lock_s=3.0)
"""A person waits for a command, and can repeat it once the lock has ended."""


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """The arguments of a `levada.runtime.pipeline.Pipeline`, as a context manager that closes the store and Spark.

    ``spark`` is None for a destination without the capability ``spark``. ``keeps_spark`` is True if the process had the
    Spark session before, which then stays.
    """

    config: PipelineConfig
    store: PipelineStore
    destination: Destination
    spark: SparkSession | None
    keeps_spark: bool = False

    def close(self) -> None:
        """Close the store, and stop the Spark session if `assemble` has started it. May be called again."""
        self.store.close()
        if self.spark is not None and not self.keeps_spark:
            stop_spark(self.spark)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def assemble(
    manifests: Manifests,
    *,
    secrets: Path | None = None,
    work_dir: Path | None = None,
    memory: MemoryStorage | None = None,
    keys: MaskKeyFiles | None = None,
    outwaits: bool = True,
) -> PipelineParts:
    """Create the parts of the pipeline that the manifests describe.

    If the destination has the capability ``spark``, Spark is started unless the process has a session. No connection is
    opened yet to the source, the store or the destination.

    ``secrets`` is a folder with a folder for each Secret, which has a file for each key. ``work_dir`` holds caches,
    and the staging area if the manifest names none. Its default is `.levada/<pipeline>` in the current folder.
    ``memory`` is the initial content of a store in memory. ``keys`` are as in `pipeline_config`, and ``outwaits``
    is as in `open_store`. Raise InvalidManifest for a manifest that no engine can run, and NeedsOperator
    ``secret_missing`` for a Secret that does not exist.
    """
    config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir, keys=keys)
    kind, settings = destination_class(manifests), destination_settings(manifests)
    store = open_store(manifests, config, secrets, memory, outwaits=outwaits)
    keeps_spark, spark = False, None
    if kind.capabilities.spark:
        keeps_spark = has_session()
        spark = spark_session(
            f"levada {config.name}",
            conf=manifests.pipeline.spec.driver.spark_conf,
            defaults=kind.spark_conf(settings),
            jars=kind.jars(),
        )
    source = SourceIdentity(config.source, partial(verified_source, store), partial(former_sources, store))
    work = config.work_dir / "destination"
    try:
        destination = make_destination(
            manifests, config, secrets, spark, work, source, former=partial(former_names, store)
        )
    except BaseException:
        if spark is not None and not keeps_spark:
            stop_spark(spark)
        store.close()
        raise
    return PipelineParts(config, store, destination, spark, keeps_spark)


def make_destination(
    manifests: Manifests,
    config: PipelineConfig,
    secrets: Path | None,
    spark: SparkSession | None,
    work_dir: Path,
    source: SourceIdentity | None = None,
    *,
    only_checks: bool = False,
    former: Callable[[], Collection[str]] = tuple,
    jvm: CheckJvm | None = None,
) -> Destination:
    """Return the manifest's destination. No connection is opened yet.

    ``work_dir`` is for the destination's caches. ``only_checks``, ``jvm`` and ``former`` go into its context.
    ``former`` returns the names of the pipeline's former owners. Raise the errors of `assemble`.
    """
    kind, settings = destination_class(manifests), destination_settings(manifests)
    context = DestinationContext(
        pipeline=config.name,
        work_dir=work_dir,
        spark=spark,
        credentials=destination_secret(manifests, secrets),
        on_schema_change=manifests.pipeline.spec.on_schema_change,
        source=source or SourceIdentity(config.source),
        only_checks=only_checks,
        namespace=config.namespace,
        former_names=former,
        jvm=jvm,
    )
    private_folder(work_dir)
    with destination_errors(kind, "from_settings"):
        return kind.from_settings(settings, context)


def pipeline_config(
    manifests: Manifests,
    *,
    secrets: Path | None = None,
    work_dir: Path | None = None,
    keys: MaskKeyFiles | None = None,
) -> PipelineConfig:
    """Return the pipeline's configuration. No connection is opened and no folder is created.

    ``keys`` are the keys of masks that a running pipeline has, None for those that the Secret has now.
    Raise NeedsOperator ``locale_not_utf8`` in a process that cannot name every file.
    """
    require_utf8()
    manifest, spec = manifests.pipeline, manifests.pipeline.spec
    name = manifest.metadata.name
    work_dir = (work_dir or default_work_dir(Path.cwd(), name)).absolute()
    keys = open_mask_keys(manifests, secrets) if keys is None else keys
    return PipelineConfig(
        name=name,
        source=server_connection(spec.source, secrets),
        slot=SlotConfig(
            manifest.slot_name,
            failover=spec.source.slot.failover,
            resync_when_lost=spec.source.slot.on_lost is not OnLostSlot.HOLD,
            compare_when_lost=spec.source.slot.on_lost is OnLostSlot.COMPARE,
        ),
        publication=PublicationConfig(
            manifest.publication_name,
            managed=spec.source.publication.management is PublicationManagement.MANAGED,
            generated_columns=spec.tables.generated_columns,
        ),
        staging=_staging(manifests, secrets, work_dir),
        work_dir=work_dir,
        selects=manifests.selects,
        include=spec.tables.include,
        exclude=spec.tables.exclude,
        tables={t.spec.table.qualified: _table_config(t.spec, manifests, keys) for t in manifests.table_syncs},
        default_table=TableConfig(
            mode=spec.destination.mode,
            on_unstreamable=_held(spec.tables.on_unstreamable),
            deletes=spec.tables.deletes,
            copy_mode=spec.copy_.mode,
            keyless=spec.tables.keyless,
            on_partition_gone=spec.tables.on_partition_gone,
            metadata=spec.tables.metadata,
        ),
        copied_otherwise=spec.copy_.except_for,
        largest_own_copy=(spec.approval_above or 0) if spec.approval is Approval.MANUAL else None,
        copy_tables=spec.copy_.max_concurrent_tables,
        copy_connections=spec.copy_.connections_per_table,
        apply_threads=spec.apply.max_concurrent_tables or apply_threads(available_cores()),
        memory_bytes=spec.memory or change_memory(available_cores(), memory_limit(), installed_memory()),
        batch_bytes=spec.batch.max_bytes,
        batch_fill_s=spec.batch.max_fill_ms / 1000,
        freshness_s=float(spec.freshness_seconds),
        heartbeat_s=float(spec.source.heartbeat_seconds),
        ddl_trigger=spec.source.ddl_trigger is DdlTrigger.MANAGED,
        progress_deadline_s=float(spec.health.progress_deadline_seconds),
        retries=_retries(spec.retries),
        cuts=CutSchedule(float(spec.cuts.every_seconds), spec.cuts.keep) if spec.cuts.every_seconds else None,
        verify=_verify(spec.verify),
        guard=_guard_limits(spec.guard),
        on_unrepresentable=spec.on_unrepresentable,
        copies_depend_on=_copies_depend_on(spec),
        destination_place=spec.destination.place,
        namespace=manifest.metadata.namespace,
        uid=os.environ.get(PIPELINE_UID, ""),
        take_over_from=os.environ.get(TAKE_OVER_FROM, ""),
        mask_keys=keys,
    )


def open_store(
    manifests: Manifests,
    config: PipelineConfig,
    secrets: Path | None,
    memory: MemoryStorage | None = None,
    *,
    outwaits: bool = False,
) -> PipelineStore:
    """Return the store that the manifest names.

    With ``outwaits`` its calls wait for the end of an outage or a lock, as an engine does. A command has less time.
    A ConfigMap store is in the namespace of this pod, or in the manifest's namespace outside of a pod. Raise
    InvalidManifest and NeedsOperator for a store of another package that cannot be created.
    """
    store = _made_store(manifests, config, secrets, memory, None if outwaits else _COMMAND_WAITS)
    if not outwaits:
        store.stop_waiting()
    return store


def _made_store(
    manifests: Manifests,
    config: PipelineConfig,
    secrets: Path | None,
    memory: MemoryStorage | None,
    waits: StoreWaits | None,
) -> PipelineStore:
    spec = manifests.pipeline.spec.store
    if spec.postgres is not None:
        connection = store_connection(manifests, config, secrets)
        return PostgresStore(connection, config.name, spec.postgres.schema_name, waits=waits)
    if spec.config_map is not None:
        return ConfigMapStore(config.name, manifests.pipeline.metadata.namespace)
    if spec.custom is not None:
        reference = spec.custom.credentials_secret_ref
        credentials = None if reference is None else secret_folder(secrets, reference.name)
        return custom_store(manifests, StoreContext(config.name, config.namespace, credentials))
    return MemoryStore(config.name, memory)


def store_connection(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> PostgresConnection:
    """Return the connection parameters of a PostgreSQL store, which is in the source's database by default."""
    postgres = manifests.pipeline.spec.store.postgres
    if postgres is None or postgres.connection is None:
        return config.source
    return server_connection(postgres.connection, secrets, StoreConnection, STORE)


def server_connection(
    server: PostgresServer,
    secrets: Path | None,
    kind: type[PostgresConnection] = PostgresConnection,
    names: ServerNames = SOURCE,
) -> PostgresConnection:
    """Return the connection parameters of the source or of a store. Hints name its settings by ``names``.

    Without a Secret for the credentials, libpq takes user and password from its environment variables. Raise
    NeedsOperator ``secret_missing`` if a Secret or a key does not exist.
    """
    credentials, authority = server.credentials_secret_ref, server.tls.ca_secret_ref
    certificate = server.tls.cert_secret_ref
    login = ("username", "password") if certificate is None else ("username",)
    return kind(
        server.host,
        server.port,
        server.database,
        credentials=None if credentials is None else secret_folder(secrets, credentials.name, *login),
        certificate=None if certificate is None else secret_folder(secrets, certificate.name, CERTIFICATE, KEY),
        sslmode=SSL_MODES[server.tls.mode],
        sslrootcert=(
            trusted_certificates(server.tls.mode)
            if authority is None
            else secret_folder(secrets, authority.name, authority.key) / authority.key
        ),
        names=names,
        other_hosts=server.other_hosts,
        session_attrs=SESSION_ATTRS[server.target_session_attrs],
        keepalives=Keepalives(server.keepalive.idle_seconds, server.keepalive.interval_seconds, server.keepalive.count),
    )


def destination_secret(manifests: Manifests, secrets: Path | None) -> Path | None:
    """Return the folder of the destination's Secret, or None without one. Raise the errors of `secret_folder`."""
    reference = manifests.pipeline.spec.destination.section.credentials_secret_ref
    return None if reference is None else secret_folder(secrets, reference.name)


def _table_config(spec: TableSyncSpec, manifests: Manifests, keys: MaskKeyFiles) -> TableConfig:
    pipeline = manifests.pipeline.spec
    # Without the operator no Job runs a dedicated copy, and a store in memory cannot be shared with one.
    can_dedicate = bool(os.environ.get(DEDICATED_COPIES)) and pipeline.store.memory is None
    return TableConfig(
        suspended=spec.suspend,
        excluded_columns=frozenset(spec.columns.exclude),
        stored_types=StoredTypes.of(spec.columns.types),
        mode=spec.mode or pipeline.destination.mode,
        on_unstreamable=spec.on_unstreamable or _held(pipeline.tables.on_unstreamable),
        deletes=spec.deletes or pipeline.tables.deletes,
        on_partition_gone=spec.on_partition_gone or pipeline.tables.on_partition_gone,
        destination_table=spec.destination_table,
        retry_nonce=spec.retry_nonce,
        resync_nonce=spec.resync_nonce,
        verify_nonce=spec.verify_nonce,
        dedicated_copy=can_dedicate and spec.copy_.driver is CopyDriver.DEDICATED,
        settings=table_settings(manifests, spec),
        masks=table_masks(spec.columns.mask, keys),
        copy_mode=CopyMode.ALL if spec.copy_.where else spec.copy_.mode or pipeline.copy_.mode_of(spec.table.qualified),
        copy_where=spec.copy_.where or "",
        keyless=spec.keyless or pipeline.tables.keyless,
        metadata=pipeline.tables.metadata if spec.metadata is None else spec.metadata,
        verify=_verify(pipeline.verify, spec.verify) if spec.verify.is_set else None,
    )


def _held(of_all_tables: OnUnstreamable) -> OnUnstreamable | None:
    """Return a table's setting under that of all tables. Their Resync does not apply to a changelog."""
    return OnUnstreamable.HOLD if of_all_tables is OnUnstreamable.HOLD else None


def _staging(manifests: Manifests, secrets: Path | None, work_dir: Path) -> StagingConfig:
    staging, properties = manifests.pipeline.spec.staging, partial(object_store, manifests, secrets)
    if not staging.uri:
        # The operator mounts the volume there.
        return StagingConfig(str(work_dir / "staging"), durable=not staging.scratch, object_store=properties)
    return StagingConfig(staging.uri, named=staging.uri, object_store=properties)


def _copies_depend_on(spec: PipelineSpec) -> str:
    return f"{spec.on_unrepresentable.value} {spec.destination.copies_depend_on}".strip()


def _retries(spec: Retries) -> RetryLimits:
    # The manifest counts retries. The engine counts attempts, so the first one is added.
    return RetryLimits(spec.max_attempts + 1, float(spec.delay_seconds), float(spec.max_delay_seconds))


def _verify(verify: VerifySpec, own: TableVerify | None = None) -> VerifyConfig:
    """Return the comparisons of all tables, or of one with settings of its own."""
    own = own or TableVerify()
    every_hours = verify.every_hours if own.every_hours is None else own.every_hours
    sample_percent = verify.sample_percent if own.sample_percent is None else own.sample_percent
    rolling_hours = own.continuous.every_hours
    if rolling_hours is None:
        rolling_hours = verify.continuous.every_hours
    return VerifyConfig(
        every_hours * 3600.0,
        sample_percent / 100,
        verify.before_swap if own.before_swap is None else own.before_swap,
        ContinuousConfig(rolling_hours * 3600.0, verify.continuous.max_source_load_percent / 100),
    )


def _guard_limits(guard: GuardSpec) -> tuple[GuardLimit, ...]:
    return tuple(
        GuardLimit(measure, policy, value)
        for measure in GuardMeasure
        for policy in GuardPolicy
        if (value := getattr(getattr(guard, to_snake(measure)), to_snake(policy), None))
    )
