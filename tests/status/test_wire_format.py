"""The JSON of ``/v1/progress``, which other programs read."""

from __future__ import annotations

import json
from datetime import timedelta, timezone
from pathlib import Path

import pytest
from tests.runtime import samples

from levada.runtime.job import Job
from levada.runtime.report.http import ProgressServer
from levada.runtime.report.snapshot import starting_progress
from levada.status import (
    CaptureProgress,
    CatchUpProgress,
    CatchUpState,
    ManifestProgress,
    MemoryProgress,
    Progress,
    PublicationProgress,
    ResyncProgress,
    ResyncStep,
    StagingProgress,
    StoreProgress,
    WaitingField,
)
from levada.values import Lsn, TableId

GOLDEN = Path(__file__).parent / "golden"
EAST = timezone(timedelta(hours=5, minutes=30))


def full() -> Progress:
    """Return a snapshot in which every field has a value, with times in several zones and numbers to be rounded."""
    retried = samples.error(
        code="lake_away", reason="no route to the läke", retry_policy="TimedRetry", next_retry=samples.seconds(61.2345)
    )
    return samples.progress(
        samples.table(
            "orders",
            mode="Changelog",
            note="the table has no key",
            lag_seconds=1.23456,
            catch_up=CatchUpProgress(CatchUpState.CATCHING_UP, 61.234),
            verified=samples.verified(),
            verify_tried=samples.seconds(-10),
            verify_error=samples.error(code="lock_timeout"),
            verify_nonce=6,
            proof=samples.proof(),
            pending_segments=3,
            pending_rows=1200,
            staged_bytes=1 << 20,
            source_bytes=3 << 30,
            last_apply_seconds=0.98765,
            last_apply_tasks=4,
            last_commit_at=samples.seconds(0.0005).astimezone(EAST),
            unrepresentable=2,
            suspended=True,
            retry_nonce=4,
            resync_nonce=5,
            resync=ResyncProgress(ResyncStep.COPYING, samples.copying(percent=49.96, seconds_left=4.449), 7, retried),
            job=Job.READ_WATERMARK,
            job_since=samples.seconds(-5),
            destination_table="shop_public.orders",
        ),
        samples.table(
            "payments",
            phase="DataSync",
            copy=samples.copying(
                rows_per_second=33.333,
                total_rows=None,
                seconds_left=None,
                ranges=8,
                ranges_finished=3,
                resumable=True,
                note="the interrupted copy begins again",
                unrepresentable=3,
            ),
            applied_lsn=None,
            lag_seconds=None,
            last_apply_seconds=None,
            last_commit_at=None,
            copy_order="0123abcd",
        ),
        samples.table('a "b"\n[c]', id=TableId(4294967295), phase="Errored", error=samples.error()),
        capture=samples.capture(received_lsn=Lsn(0x1_0000_00FF), rows_per_second=12.34, error=retried),
        staging=StagingProgress(durable=True, segments=2, bytes=2048, free_bytes=4096),
        memory=MemoryProgress(budget_bytes=1 << 30, used_bytes=1 << 20, waiting=True),
        guard=samples.guard(),
        cuts=samples.cuts(),
        catch_up=CatchUpProgress(CatchUpState.NOT_AT_THIS_RATE),
        error=samples.error(code="stale_epoch", retry_policy="NoRetry"),
        manifest=ManifestProgress(
            samples.error(),
            (WaitingField("spec.source.host", "Restart"),),
            "/srv/pipeline.yaml --secrets /srv/secrets",
            "kubectl exec shop-driver-0 --",
            "0123456789abcdef",
            samples.error(code="approval_required"),
        ),
        publication=PublicationProgress(retried, retried, trigger=retried),
        store=StoreProgress(retried),
        verified_lsn=Lsn(1),
    )


DOCUMENTS = {
    "full": full(),
    "empty": samples.progress(capture=CaptureProgress()),
    "starting": starting_progress("shop", "levada_shop", samples.NOON),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_document_is_pinned(name: str) -> None:
    """Names, their order, times, rounding and nulls are those of the golden file, byte by byte."""
    with ProgressServer(lambda: DOCUMENTS[name]) as server:
        body = server.respond("/v1/progress", "").body
    expected = json.loads((GOLDEN / f"{name}.json").read_text())
    assert body.decode() == json.dumps(expected, separators=(",", ":"), ensure_ascii=False)
