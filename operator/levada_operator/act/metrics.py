"""Metrics of the operator. Each driver serves its own at `/metrics`."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY: Final = CollectorRegistry()

WRITES: Final = Counter(
    "levada_operator_writes_total", "Writes to the API server", ["kind", "result"], registry=REGISTRY
)
POSTPONED: Final = Counter(
    "levada_operator_status_postponed_total", "Status writes of changed counters that were postponed", registry=REGISTRY
)
EVENTS: Final = Counter("levada_operator_events_total", "Events, by their reason", ["reason"], registry=REGISTRY)
RECONCILE: Final = Histogram(
    "levada_operator_reconcile_seconds",
    "How long one reconciliation took, its writes included",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 30),
    registry=REGISTRY,
)
FAILURES: Final = Counter(
    "levada_operator_reconcile_failures_total", "Reconciliations that ended with an error", registry=REGISTRY
)
FAULTS: Final = Counter(
    "levada_operator_faults_total",
    "Objects, answers and lists that could not be read, by the namespace that they are in",
    ["namespace"],
    registry=REGISTRY,
)
PIPELINES: Final = Gauge("levada_operator_pipelines", "Pipelines, by their phase", ["phase"], registry=REGISTRY)
TABLES: Final = Gauge("levada_operator_tablesyncs", "TableSyncs, by their phase", ["phase"], registry=REGISTRY)
LIMITS: Final = Gauge(
    "levada_operator_limits_passed",
    "Pipelines with a passed limit of spec.guard, by the most severe policy, also while no driver runs",
    ["policy"],
    registry=REGISTRY,
)
ABANDONED: Final = Gauge(
    "levada_operator_abandoned_cleanups",
    "Deleted Pipelines of which a slot or other objects may be left, until they are taken off the list",
    registry=REGISTRY,
)
SWEEP: Final = Gauge(
    "levada_operator_last_sweep_timestamp_seconds",
    "When the last sweep over all Pipelines ended, in Unix time",
    registry=REGISTRY,
)
QUEUED: Final = Gauge(
    "levada_operator_queued_pipelines",
    "Pipelines that wait to be reconciled or are being reconciled",
    registry=REGISTRY,
)
LEADER: Final = Gauge("levada_operator_leader", "1 where this process holds the Lease, else 0", registry=REGISTRY)
