"""The pictures of docs/page.md: ``python -m tests.page.pictures``. Their figures are made up."""

from __future__ import annotations

import functools
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

from playwright.sync_api import Route
from tests.page import documents
from tests.runtime import samples
from tests.servers.chromium import chromium

from levada.runtime.report.http import ProgressServer
from levada.status import CatchUpProgress, CatchUpState, History, Progress, StagingProgress

DOCS = Path(__file__).parents[2] / "docs"
STREAMING = ("addresses", "carts", "customers", "orders", "refunds", "reviews", "shipments", "stock_levels")
SIZE = {"width": 1120, "height": 1250}


def shop() -> Progress:
    """Return a shop whose largest table is copied, with one table that is parked."""
    now = datetime.now(UTC)
    reason = "column shipped_on has dates that the destination lacks"
    solution = "correct the rows, then: levada retry MANIFEST public.invoices"
    error = samples.error(code="value_not_representable", reason=reason, solution=solution)
    copy = samples.copying(
        rows=8_214_000,
        total_rows=19_010_000,
        percent=43.2,
        rows_per_second=141_300.0,
        seconds_left=76.0,
        ranges=24,
        ranges_finished=10,
        resumable=True,
    )
    streaming = [
        documents.table(
            i,
            name,
            lag_seconds=0.4 + i / 7,
            rows_applied=37_911 * (i + 3),
            verified=samples.verified(at=now - timedelta(minutes=11 * i + 4), equal=True, differences=0),
        )
        for i, name in enumerate(STREAMING)
    ]
    return samples.progress(
        documents.table(20, "items", phase="DataSync", copy=copy, lag_seconds=None, rows_applied=0),
        documents.table(21, "invoices", phase="Errored", error=error, lag_seconds=None, pending_rows=1245),
        *streaming,
        at=now,
        started_at=now - timedelta(hours=5),
        catch_up=CatchUpProgress(CatchUpState.CAUGHT_UP, 0.0),
        slot=samples.slot(lag_bytes=6 << 20, retained_bytes=92 << 20, safe_wal_bytes=14 << 30, sampled_at=now),
        staging=StagingProgress(True, 120, 42 << 20, 88 << 30),
        capture=samples.capture(rows_per_second=1240.0),
    )


def hour() -> History:
    """Return the history of an hour in which the lake was away for ten minutes."""
    now, ages = datetime.now(UTC), range(3600, 0, -10)
    away = [max(0, min(2400 - age, 600)) if age > 1800 else max(0, 600 - (1800 - age) * 2) for age in ages]
    wave = [math.sin(age / 170) + math.sin(age / 47) / 3 for age in ages]
    return History(
        at=tuple(now - timedelta(seconds=age) for age in ages),
        seconds=(10,) * len(ages),
        lag_bytes=tuple(int((6 + 2 * w) * 2**20) for w in wave),
        retained_bytes=tuple(int((92 + 5 * w) * 2**20) for w in wave),
        staged_bytes=tuple(int((40 + 3 * w + a * 1.3) * 2**20) for w, a in zip(wave, away, strict=True)),
        lag_seconds=tuple(round(1.6 + 0.5 * w + a, 3) for w, a in zip(wave, away, strict=True)),
        rows_per_second=tuple(1240 + 180 * w for w in wave),
    )


def answer(body: str, route: Route) -> None:
    """Answer a request."""
    route.fulfill(body=body)


def main() -> None:
    """Write the pictures."""
    known = json.dumps(hour().to_json())
    with ProgressServer(shop) as server, chromium() as browser:
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme, locale="en-GB", timezone_id="UTC")
            page.route("**/v1/history", functools.partial(answer, known))
            page.goto(f"{server.address}/")
            page.locator(".line-1").wait_for()
            page.wait_for_timeout(500)
            page.screenshot(path=DOCS / f"page-{scheme}.png", animations="disabled")


if __name__ == "__main__":
    main()
