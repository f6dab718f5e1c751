"""Every field of a Pipeline's spec, its change class, and another value for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from levada.spec import Change, PipelineSpec
from levada.spec.model import CHANGE, Model

PATCHES: dict[str, Any] = {
    "suspend": True,
    "approval": "Manual",
    "approvalAbove": "1Gi",
    "rollback": "None",
    "restartNonce": 1,
    "source.host": "other.pg.svc",
    "source.port": 5433,
    "source.otherHosts": ["second.pg.svc"],
    "source.targetSessionAttrs": "Primary",
    "source.keepalive.idleSeconds": 20,
    "source.keepalive.intervalSeconds": 5,
    "source.keepalive.count": 4,
    "source.database": "other",
    "source.credentialsSecretRef.name": "other-cdc",
    "source.tls.mode": "VerifyCA",
    "source.tls.caSecretRef.name": "other-ca",
    "source.tls.caSecretRef.key": "other.crt",
    "source.tls.certSecretRef.name": "other-certificate",
    "source.slot.name": "other_slot",
    "source.slot.failover": True,
    "source.slot.onLost": "Resync",
    "source.publication.name": "other_publication",
    "source.publication.management": "External",
    "source.heartbeatSeconds": 30,
    "source.ddlTrigger": "None",
    "tables.include": [{"schema": "public", "name": "o*"}],
    "tables.exclude": [{"schema": "public", "name": "tmp_*"}],
    "tables.onUnstreamable": "Hold",
    "tables.deletes": "Mark",
    "tables.onPartitionGone": "Keep",
    "tables.maskKeySecretRef.name": "other-masks",
    "tables.maskKeySecretRef.key": "other",
    "tables.keyless": "Append",
    "tables.metadata": ["CommitTime", "Lsn"],
    "copy.mode": "None",
    "copy.exceptFor": [{"schema": "audit"}],
    "copy.maxConcurrentTables": 2,
    "copy.connectionsPerTable": 2,
    "apply.maxConcurrentTables": 2,
    "memory": "512Mi",
    "batch.maxFillMs": 500,
    "batch.maxBytes": "32Mi",
    "freshnessSeconds": 30,
    "onSchemaChange": "Fail",
    "onUnrepresentable": "Text",
    "destination.iceberg.catalog.type": "Hive",
    "destination.iceberg.catalog.uri": "https://other.data.svc",
    "destination.iceberg.catalog.warehouse": "s3://other",
    "destination.iceberg.catalog.properties": {"s3.endpoint": "https://s3.data.svc"},
    "destination.iceberg.namespace": "other",
    "destination.iceberg.mode": "Changelog",
    "destination.iceberg.formatVersion": 3,
    "destination.iceberg.credentialsSecretRef.name": "other-s3",
    "destination.iceberg.tableProperties": {"write.parquet.compression-codec": "gzip"},
    "destination.iceberg.maintenance.compactEverySeconds": 1800,
    "destination.iceberg.maintenance.expireSnapshotsAfterHours": 48,
    "destination.bigquery.project": "other-project",
    "destination.bigquery.location": "EU",
    "destination.bigquery.dataset": "other",
    "destination.bigquery.metadataDataset": "other",
    "destination.bigquery.mode": "Changelog",
    "destination.bigquery.jsonb": "String",
    "destination.bigquery.layouts": [{"table": "public.orders", "clusterBy": ["placed_at"]}],
    "destination.bigquery.endpoint.rest": "https://other.googleapis.com",
    "destination.bigquery.endpoint.storage": "other.googleapis.com:443",
    "destination.bigquery.credentialsSecretRef.name": "other-account",
    "destination.ducklake.catalog.host": "other.pg.svc",
    "destination.ducklake.catalog.port": 5433,
    "destination.ducklake.catalog.database": "other",
    "destination.ducklake.catalog.schema": "other",
    "destination.ducklake.catalog.tls.mode": "Require",
    "destination.ducklake.dataPath": "s3://other",
    "destination.ducklake.properties": {"s3.region": "eu-central-1"},
    "destination.ducklake.schema": "other",
    "destination.ducklake.mode": "Changelog",
    "destination.ducklake.credentialsSecretRef.name": "other-catalog",
    "destination.opensearch.urls": ["https://other.data.svc:9200"],
    "destination.opensearch.prefix": "other-",
    "destination.opensearch.mode": "Changelog",
    "destination.opensearch.shards": 2,
    "destination.opensearch.replicas": 2,
    "destination.opensearch.credentialsSecretRef.name": "other-search",
    "destination.postgres.host": "other.pg.svc",
    "destination.postgres.port": 5433,
    "destination.postgres.database": "other",
    "destination.postgres.credentialsSecretRef.name": "other-replica",
    "destination.postgres.tls.mode": "Require",
    "destination.postgres.schema": "other",
    "destination.postgres.mode": "Changelog",
    "destination.postgres.ordering": "Pipeline",
    "destination.postgres.stateSchema": "other",
    "destination.custom.type": "other",
    "destination.custom.options": {"url": "https://other"},
    "destination.custom.credentialsSecretRef.name": "other-http",
    "staging.uri": "s3://other/staging",
    "staging.scratch": True,
    "staging.volumeClaim.size": "2Gi",
    "staging.volumeClaim.storageClassName": "other",
    "store.postgres.schema": "other",
    "store.postgres.connection.host": "other.pg.svc",
    "store.postgres.connection.port": 5433,
    "store.postgres.connection.otherHosts": ["second.pg.svc"],
    "store.postgres.connection.targetSessionAttrs": "Primary",
    "store.postgres.connection.keepalive.idleSeconds": 20,
    "store.postgres.connection.keepalive.intervalSeconds": 5,
    "store.postgres.connection.keepalive.count": 4,
    "store.postgres.connection.database": "other",
    "store.postgres.connection.credentialsSecretRef.name": "other-store",
    "store.postgres.connection.tls.mode": "VerifyCA",
    "store.postgres.connection.tls.caSecretRef.name": "other-ca",
    "store.postgres.connection.tls.caSecretRef.key": "other.crt",
    "store.postgres.connection.tls.certSecretRef.name": "other-certificate",
    "store.custom.type": "other",
    "store.custom.options": {"path": "/other"},
    "store.custom.credentialsSecretRef.name": "other-store",
    "retries.maxAttempts": 9,
    "retries.delaySeconds": 20,
    "retries.maxDelaySeconds": 900,
    "health.progressDeadlineSeconds": 600,
    "health.lagProbeSeconds": 60,
    "guard.retainedWal.warn": "10Gi",
    "guard.retainedWal.pauseCopies": "20Gi",
    "guard.retainedWal.parkSlowest": "30Gi",
    "guard.retainedWal.releaseSlot": "40Gi",
    "guard.retainedWalPercent.warn": 50,
    "guard.retainedWalPercent.pauseCopies": 60,
    "guard.retainedWalPercent.parkSlowest": 70,
    "guard.retainedWalPercent.releaseSlot": 90,
    "guard.staged.warn": "10Gi",
    "guard.staged.pauseCopies": "20Gi",
    "guard.staged.parkSlowest": "30Gi",
    "guard.stagingFree.warn": "10Gi",
    "guard.stagingFree.pauseCopies": "5Gi",
    "guard.stagingFree.parkSlowest": "2Gi",
    "cuts.everySeconds": 300,
    "cuts.keep": 12,
    "verify.everyHours": 24,
    "verify.samplePercent": 10,
    "verify.beforeSwap": True,
    "driver.mode": "Cluster",
    "driver.image": "levada:other",
    "driver.resources.requests": {"cpu": "2"},
    "driver.resources.limits": {"memory": "8Gi"},
    "driver.serviceAccount.name": "other",
    "driver.serviceAccount.annotations": {"example.com/role": "other"},
    "driver.tokenSecretRef.name": "other-token",
    "driver.tokenSecretRef.key": "other",
    "driver.sparkConf": {"spark.sql.session.timeZone": "UTC"},
    "driver.podTemplate": {"metadata": {"annotations": {"team": "data"}}},
    "executor.instances.min": 1,
    "executor.instances.max": 8,
    "executor.resources.requests": {"cpu": "1"},
    "executor.resources.limits": {"memory": "4Gi"},
    "executor.podTemplate": {"metadata": {"annotations": {"team": "data"}}},
    "deletionPolicy.slot": "Retain",
    "deletionPolicy.state": "Retain",
    "deletionPolicy.publication": "Delete",
    "deletionPolicy.destinationTables": "Delete",
    "deletionPolicy.cleanupTimeoutSeconds": 120,
}


def fields(model: type[Model], prefix: str = "") -> Iterator[tuple[str, Change]]:
    """Yield every field that has a value of its own, with its class."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        inner = [t for t in (get_args(field.annotation) or (field.annotation,)) if _is_model(t)]
        if inner and path not in PATCHES:
            yield from fields(inner[0], f"{path}.")
        else:
            assert isinstance(field.json_schema_extra, dict)
            yield path, Change(str(field.json_schema_extra[CHANGE]))


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Model)


CLASSES = dict(fields(PipelineSpec))


def patch_of(path: str) -> dict[str, Any]:
    """Return the merge patch that gives the field the other value."""
    patch: Any = PATCHES[path]
    for name in reversed(path.split(".")):
        patch = {name: patch}
    return {"spec": patch}
