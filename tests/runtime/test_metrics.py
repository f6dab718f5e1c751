"""Progress as Prometheus metrics."""

from __future__ import annotations

import math
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.runtime import samples

from levada.runtime.report.metrics import metric_families
from levada.status import CatchUpProgress, CatchUpState, Progress

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def full() -> Progress:
    """Return a snapshot in which every figure is known."""
    return samples.progress(
        samples.table("orders", error=samples.error(), phase="Errored"),
        samples.table(
            "items",
            catch_up=CatchUpProgress(CatchUpState.CATCHING_UP, 90.0),
            verified=samples.verified(),
            proof=samples.proof(),
        ),
        samples.table(
            "payments", copy=samples.copying(), phase="DataSync", copied_again=samples.error(), copied_rows="Part"
        ),
        capture=samples.capture(error=samples.error(code="connection_failed")),
        error=samples.error(code="slot_lost"),
        guard=samples.guard(),
        cuts=samples.cuts(),
        catch_up=CatchUpProgress(CatchUpState.NOT_AT_THIS_RATE),
    )


def value(progress: Progress, name: str, **labels: str) -> float | None:
    """Return one sample's value, None if there is no such sample."""
    found = [
        sample.value
        for family in metric_families(progress)
        for sample in family.samples
        if sample.name == name and {**sample.labels, **labels} == sample.labels
    ]
    assert len(found) <= 1
    return found[0] if found else None


def test_documented_metrics_are_the_metrics_that_exist() -> None:
    """docs/metrics.md lists every metric once with its type, and none that is not served."""
    rows = re.findall(r"^\| `(levada_\w+)` \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE)
    served = {
        (family.name + ("_total" if family.type == "counter" else ""), family.type)
        for family in metric_families(full())
    }
    assert len(rows) == len(set(rows))
    assert set(rows) == served


def test_every_metric_has_the_pipeline_and_a_documentation() -> None:
    """No metric is without the label pipeline, nor without a help text."""
    for family in metric_families(full()):
        assert family.documentation
        assert all(sample.labels["pipeline"] == "shop" for sample in family.samples)


def test_unknown_figures_have_no_sample() -> None:
    """A zero always means zero: what is not known is left out."""
    unknown = samples.progress(
        samples.table(lag_seconds=None, applied_lsn=None, copy=None),
        slot=samples.slot(lag_bytes=None, wal_status=None, active=None, sampled_at=None),
    )
    assert value(unknown, "levada_slot_lag_bytes") is None
    assert value(unknown, "levada_slot_active") is None
    assert value(unknown, "levada_table_lag_seconds") is None
    assert value(unknown, "levada_table_copy_ratio") is None
    assert value(samples.progress(), "levada_slot_lag_bytes") == 0


def test_values_are_those_of_the_snapshot() -> None:
    """Times are Unix seconds, ratios 0 to 1, positions bytes, and a state is 1 for the one that holds."""
    assert value(full(), "levada_progress_time_seconds") == samples.NOON.timestamp()
    assert value(full(), "levada_table_copy_ratio", table="payments") == 0.5
    assert value(full(), "levada_capture_received_lsn_bytes") == 2000
    assert value(full(), "levada_state", state="Running") == 1
    assert value(full(), "levada_state", state="Failed") == 0
    assert value(full(), "levada_slot_wal_status", status="reserved") == 1
    assert value(full(), "levada_slot_wal_status", status="lost") == 0
    assert value(full(), "levada_catch_up_seconds") == math.inf
    assert value(full(), "levada_table_catch_up_seconds", table="items") == 90
    assert value(full(), "levada_table_verified_equal", table="items") == 0
    assert value(full(), "levada_table_verified_differences", table="items") == 2
    assert value(full(), "levada_table_verified_time_seconds", table="items") == samples.NOON.timestamp()
    assert value(full(), "levada_guard_limit_passed", measure="staged", policy="ParkSlowest") == 1
    assert value(full(), "levada_tables", phase="Errored") == 1
    assert value(full(), "levada_table_error", table="orders", code="no_replica_identity") == 1
    assert value(full(), "levada_table_rows_applied_total", table="orders") == 100


def test_a_status_that_is_new_to_us_is_shown() -> None:
    """A wal_status of a later PostgreSQL is a label like the others."""
    assert (
        value(samples.progress(slot=samples.slot(wal_status="frozen")), "levada_slot_wal_status", status="frozen") == 1
    )


def test_exposition_parses() -> None:
    """The page of metrics is in Prometheus' text format, for any name of a table."""
    from prometheus_client.exposition import generate_latest

    from levada.runtime.report.metrics import registry

    odd = samples.progress(samples.table('we"ird\\na\nme'))
    families = list(text_string_to_metric_families(generate_latest(registry(lambda: odd)).decode()))
    assert any(s.labels.get("table") == 'we"ird\\na\nme' for f in families for s in f.samples)
