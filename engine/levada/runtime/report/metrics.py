"""Progress as Prometheus metrics. docs/metrics.md lists each metric with the question that it answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from levada.status import (
    CatchUpProgress,
    CopyProgress,
    PipelineState,
    Progress,
    ProofProgress,
    TableProgress,
    VerifiedProgress,
)
from levada.values import Lsn
from levada.version import VERSION

WAL_STATUSES: Final = ("reserved", "extended", "unreserved", "lost")
"""The values of `pg_replication_slots.wal_status`, from good to bad."""

Number = float | int | bool | datetime | None


class ProgressCollector(Collector):
    """Turns the newest progress into metrics at each scrape. There are none before the first progress."""

    def __init__(self, progress: Callable[[], Progress | None]) -> None:
        self._progress = progress

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family that has a value."""
        progress = self._progress()
        if progress is not None:
            yield from metric_families(progress)


def registry(progress: Callable[[], Progress | None]) -> CollectorRegistry:
    """Return a new registry with these metrics alone, without the client library's own ones of the process."""
    created = CollectorRegistry(auto_describe=False)
    created.register(ProgressCollector(progress))
    return created


def metric_families(progress: Progress) -> Iterator[Metric]:
    """Yield the metrics of one snapshot. An unknown value has no sample, so that a 0 always means zero."""
    families = [*_pipeline(progress), *_slot(progress), *_capture(progress), *_staging(progress), *_memory(progress)]
    families += _guard(progress)
    families += [*_cuts(progress), *_tables(progress)]
    yield from (family for family in families if family.samples)


def _pipeline(progress: Progress) -> Iterator[Metric]:
    p = _One(progress.pipeline)
    yield p.labelled("pipeline_info", "Constant 1, labelled with the engine's version", {"version": {VERSION: 1}})
    yield p.labelled(
        "state", "1 for the state the process is in", {"state": {s.value: s is progress.state for s in PipelineState}}
    )
    yield p.gauge("ready", "1 while every table is streaming", progress.ready)
    yield p.gauge("epoch", "Epoch of this driver process, raised by each start", progress.epoch)
    yield p.gauge("catch_up_seconds", "Estimated time to catch up, +Inf for never", _left(progress.catch_up))
    yield p.gauge("start_time_seconds", "When this process began, in Unix time", progress.started_at)
    yield p.gauge("progress_time_seconds", "When these figures were taken, in Unix time", progress.at)
    if progress.error is not None:
        yield p.labelled("error", "1 for the error that stops the pipeline", {"code": {progress.error.code: 1}})


def _slot(progress: Progress) -> Iterator[Metric]:
    p, slot = _One(progress.pipeline), progress.slot
    yield p.gauge("slot_lag_bytes", "WAL that the slot has not confirmed", slot.lag_bytes)
    yield p.gauge("slot_retained_bytes", "WAL that the slot keeps on the source's disk", slot.retained_bytes)
    yield p.gauge("slot_safe_wal_bytes", "WAL that may be written before the slot is lost", slot.safe_wal_bytes)
    yield p.gauge("slot_active", "1 while a process reads the slot", slot.active)
    yield p.gauge("slot_sample_time_seconds", "When the slot was sampled, in Unix time", slot.sampled_at)
    if slot.wal_status is not None:
        statuses = {s: s == slot.wal_status for s in (*WAL_STATUSES, slot.wal_status)}
        yield p.labelled("slot_wal_status", "1 for the slot's wal_status", {"status": statuses})


def _capture(progress: Progress) -> Iterator[Metric]:
    p, capture = _One(progress.pipeline), progress.capture
    yield p.gauge("capture_connected", "1 while the replication stream is open", capture.connected)
    yield p.gauge(
        "capture_received_lsn_bytes", "Position up to which WAL was received", _position(capture.received_lsn)
    )
    yield p.gauge("capture_staged_lsn_bytes", "Position up to which changes are staged", _position(capture.staged_lsn))
    yield p.gauge(
        "capture_acknowledged_lsn_bytes",
        "Position that was acknowledged to the slot",
        _position(capture.acknowledged_lsn),
    )
    yield p.counter("capture_rows", "Row changes that were received", capture.rows)
    yield p.counter("capture_transactions", "Transactions that were received", capture.transactions)
    if capture.error is not None:
        yield p.labelled("capture_error", "1 for the error that interrupts capture", {"code": {capture.error.code: 1}})


def _staging(progress: Progress) -> Iterator[Metric]:
    p, staging = _One(progress.pipeline), progress.staging
    yield p.gauge("staging_bytes", "Bytes in the staging area", staging.bytes)
    yield p.gauge("staging_segments", "Segments in the staging area", staging.segments)
    yield p.gauge("staging_free_bytes", "Free space of the staging area's volume", staging.free_bytes)
    yield p.gauge("staging_durable", "1 if staged changes are acknowledged to the slot", staging.durable)


def _memory(progress: Progress) -> Iterator[Metric]:
    p, memory = _One(progress.pipeline), progress.memory
    yield p.gauge("memory_budget_bytes", "Memory for changes, which capture and apply share", memory.budget_bytes)
    yield p.gauge("memory_used_bytes", "Memory that segments and batches hold, by an estimate", memory.used_bytes)
    yield p.gauge("memory_capture_waits", "1 while capture waits for memory", memory.waiting)


def _guard(progress: Progress) -> Iterator[Metric]:
    guard = progress.guard
    names = ["pipeline", "measure", "policy"]
    passed = GaugeMetricFamily(
        "levada_guard_limit_passed", "1 for each limit of the guard that is passed", labels=names
    )
    for limit in guard.passed:
        passed.add_metric([progress.pipeline, limit.measure, limit.policy], 1)
    yield passed
    yield _One(progress.pipeline).gauge("guard_copies_paused", "1 while no copy may begin", guard.pauses_copies)


def _cuts(progress: Progress) -> Iterator[Metric]:
    p, cuts = _One(progress.pipeline), progress.cuts
    last = None if cuts.last_complete is None else cuts.last_complete.at
    yield p.gauge("cut_interval_seconds", "Interval of scheduled cuts", cuts.every_seconds)
    yield p.gauge("cuts_kept", "Complete cuts that are kept", cuts.kept)
    yield p.gauge("cut_complete_time_seconds", "When the newest complete cut was chosen, in Unix time", last)


def _tables(progress: Progress) -> Iterator[Metric]:
    counts = progress.tables_by_phase
    if counts:
        yield _One(progress.pipeline).labelled("tables", "Tables in the phase", {"phase": counts})
    each = _Each(progress)
    yield each.info("table_phase", "1 for the phase that the table is in", "phase", lambda t: t.phase)
    yield each.gauge("table_lag_seconds", "Age of the oldest change not at the destination", lambda t: t.lag_seconds)
    yield each.gauge(
        "table_catch_up_seconds", "Estimated time until it has caught up, +Inf for never", lambda t: _left(t.catch_up)
    )
    yield each.gauge(
        "table_applied_lsn_bytes", "Position up to which changes are applied", lambda t: _position(t.applied_lsn)
    )
    yield each.gauge("table_pending_segments", "Segments that wait for apply", lambda t: t.pending_segments)
    yield each.gauge("table_pending_rows", "Row changes that wait for apply", lambda t: t.pending_rows)
    yield each.gauge("table_staged_bytes", "Bytes that wait for apply", lambda t: t.staged_bytes)
    yield each.counter("table_rows_applied", "Row changes at the destination", lambda t: t.rows_applied)
    yield each.gauge("table_last_apply_seconds", "How long the last apply took", lambda t: t.last_apply_seconds)
    yield each.gauge("table_last_commit_time_seconds", "Last commit, in Unix time", lambda t: t.last_commit_at)
    yield each.counter("table_unrepresentable_values", "Values that became NULL", lambda t: t.unrepresentable)
    yield each.gauge("table_verified_time_seconds", "Last verification, in Unix time", _of_verified(lambda v: v.at))
    yield each.gauge("table_verified_equal", "1 if it equalled the source then", _of_verified(lambda v: v.equal))
    yield each.gauge("table_verified_differences", "Keys that differed then", _of_verified(lambda v: v.differences))
    yield each.gauge("table_proof_time_seconds", "Age of the oldest proof, in Unix time", _of_proof(lambda p: p.oldest))
    yield each.counter("table_proof_differences", "Keys found to differ by ranges", _of_proof(lambda p: p.differences))
    yield each.gauge("table_copy_rows", "Rows copied so far", _of_copy(lambda c: c.rows))
    yield each.gauge("table_copy_bytes", "Bytes copied so far", _of_copy(lambda c: c.bytes))
    yield each.gauge("table_copy_ratio", "Completed part of the copy, 0 to 1", _of_copy(lambda c: c.percent / 100))
    yield each.gauge("table_copy_seconds_left", "Estimated time left", _of_copy(lambda c: c.seconds_left))
    yield each.info("table_copied_rows", "1 for the rows that its copy took", "rows", lambda t: t.copied_rows or None)
    yield each.info("table_error", "1 for the error that parks the table", "code", _error_code)
    yield each.info(
        "table_copied_again", "1 for the error because of which it is copied by itself", "code", _copied_again
    )
    yield each.gauge("table_error_attempts", "Tries that failed in a row", _error_attempts)


def _left(catch_up: CatchUpProgress | None) -> float | None:
    if catch_up is None:
        return None
    return math.inf if catch_up.seconds_left is None else catch_up.seconds_left


def _of_copy(value: Callable[[CopyProgress], Number]) -> Callable[[TableProgress], Number]:
    return lambda table: None if table.copy is None else value(table.copy)


def _of_verified(value: Callable[[VerifiedProgress], Number]) -> Callable[[TableProgress], Number]:
    return lambda table: None if table.verified is None else value(table.verified)


def _of_proof(value: Callable[[ProofProgress], Number]) -> Callable[[TableProgress], Number]:
    return lambda table: None if table.proof is None else value(table.proof)


def _error_code(table: TableProgress) -> str | None:
    return None if table.error is None else table.error.code


def _copied_again(table: TableProgress) -> str | None:
    return None if table.copied_again is None else table.copied_again.code


def _error_attempts(table: TableProgress) -> int | None:
    return None if table.error is None else table.error.attempts


class _One:
    """Families with the one label ``pipeline``."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline

    def gauge(self, name: str, documentation: str, value: Number) -> Metric:
        family = GaugeMetricFamily(f"levada_{name}", documentation, labels=["pipeline"])
        return _add(family, [self._pipeline], value)

    def counter(self, name: str, documentation: str, value: Number) -> Metric:
        family = CounterMetricFamily(f"levada_{name}", documentation, labels=["pipeline"])
        return _add(family, [self._pipeline], value)

    def labelled(self, name: str, documentation: str, values: Mapping[str, Mapping[str, int | bool]]) -> Metric:
        [(label, by_value)] = values.items()
        family = GaugeMetricFamily(f"levada_{name}", documentation, labels=["pipeline", label])
        for label_value, value in by_value.items():
            _add(family, [self._pipeline, label_value], value)
        return family


class _Each:
    """Families with the labels ``pipeline``, ``schema``, ``table``, a sample for each table that has a value."""

    def __init__(self, progress: Progress) -> None:
        self._tables = [([progress.pipeline, t.schema, t.name], t) for t in progress.tables]

    def gauge(self, name: str, documentation: str, value: Callable[[TableProgress], Number]) -> Metric:
        family = GaugeMetricFamily(f"levada_{name}", documentation, labels=["pipeline", "schema", "table"])
        return self._fill(family, value)

    def counter(self, name: str, documentation: str, value: Callable[[TableProgress], Number]) -> Metric:
        family = CounterMetricFamily(f"levada_{name}", documentation, labels=["pipeline", "schema", "table"])
        return self._fill(family, value)

    def info(self, name: str, documentation: str, label: str, value: Callable[[TableProgress], str | None]) -> Metric:
        family = GaugeMetricFamily(f"levada_{name}", documentation, labels=["pipeline", "schema", "table", label])
        for labels, table in self._tables:
            text = value(table)
            if text is not None:
                family.add_metric([*labels, text], 1)
        return family

    def _fill(
        self, family: GaugeMetricFamily | CounterMetricFamily, value: Callable[[TableProgress], Number]
    ) -> Metric:
        for labels, table in self._tables:
            _add(family, labels, value(table))
        return family


def _add(family: GaugeMetricFamily | CounterMetricFamily, labels: list[str], value: Number) -> Metric:
    if isinstance(value, datetime):
        value = value.timestamp()
    if value is not None:
        family.add_metric(labels, float(value))
    return family


def _position(lsn: Lsn | None) -> int | None:
    return None if lsn is None else int(lsn)
