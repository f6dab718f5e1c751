"""Snapshots of progress with all that the page can show."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.runtime import samples

from levada.status import (
    CatchUpProgress,
    CatchUpState,
    ManifestProgress,
    Progress,
    ResyncProgress,
    ResyncStep,
    StagingProgress,
    TableProgress,
    WaitingField,
)
from levada.values import TableId

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</td><script>alert(2)</script>",
    "\"quotes\" 'and' `ticks`",
    "${1+1} {{1+1}} &lt;b&gt;",
    "right \u202eot\u202c left \u2066x\u2069",
    "שלום עולם",
    "line\nfeed\ttab\x1b[31m",
    "🐘 emoji 👩‍💻",
    "__proto__",
    "constructor",
    "x" * 63,
    " ",
)
"""Names of tables that PostgreSQL allows."""


def table(number: int, name: str, **changes: Any) -> TableProgress:
    """Return a table with an OID of its own."""
    caught_up = CatchUpProgress(CatchUpState.CAUGHT_UP, 0.0)
    return samples.table(name, **{"id": TableId(20_000 + number), "catch_up": caught_up, **changes})


def full(*more: TableProgress) -> Progress:
    """Return a pipeline with a table in each state, errors, a guard that acts, and figures of now."""
    now = datetime.now(UTC)
    soon = now + timedelta(seconds=30)
    waits = samples.error(code="lake_away", reason="the lake does not answer", next_retry=soon)
    command = "resolve the cause, then: levada retry MANIFEST public.payments"
    tables = (
        table(1, "orders", lag_seconds=0.4, rows_applied=1_234_567, verified=samples.verified(at=now, equal=True)),
        table(2, "items", phase="DataSync", copy=samples.copying(rows=8_200_000, percent=43.2), lag_seconds=None),
        table(3, "payments", phase="Errored", error=samples.error(solution=command), pending_rows=1245),
        table(4, "refunds", verified=samples.verified(at=now)),
        table(5, "stock", resync=ResyncProgress(ResyncStep.COPYING, samples.copying(), 7, waits), note="it has no key"),
        table(6, "carts", phase="Init", lag_seconds=None, suspended=True, destination_table="shop.carts_2"),
        *more,
    )
    return samples.progress(
        *tables,
        at=now,
        started_at=now - timedelta(hours=5),
        catch_up=CatchUpProgress(CatchUpState.NOT_AT_THIS_RATE),
        staging=StagingProgress(True, 12, 400 << 20, 88 << 30),
        guard=samples.guard(),
        manifest=ManifestProgress(waiting=(WaitingField("spec.store", "Restart"),)),
    )


def many(count: int) -> Progress:
    """Return a pipeline of many tables, one of which is parked."""
    tables = [table(i, f"events_{i:04d}", lag_seconds=i / 100, rows_applied=i) for i in range(count)]
    tables[count // 2] = replace(tables[count // 2], phase="Errored", error=samples.error())
    return samples.progress(*tables, at=datetime.now(UTC))
