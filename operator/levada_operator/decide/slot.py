"""Samples of the replication slot: by the driver, or by a short Job while no driver runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from levada.spec import Manifests
from levada_operator.desired.jobs import LAG_ROLE
from levada_operator.names import driver_name, lag_name
from levada_operator.observe.observed import Observed
from levada_operator.observe.pods import output_document
from levada_operator.observe.progress import SlotReport, read_slot


@dataclass(frozen=True, slots=True)
class SlotSample:
    """A sample of the slot. If a Job could not sample, ``report`` is None and ``failure`` has the error."""

    report: SlotReport | None
    by_job: bool = False
    failure: str = ""


def slot_sample(observed: Observed) -> SlotSample | None:
    """Return the newest sample, or None if there is none."""
    reported = observed.progress.slot if observed.progress else None
    if observed.fresh_progress is not None and reported is not None:
        return SlotSample(reported)
    probes = [p for p in observed.pods if p.role == LAG_ROLE and p.ended]
    for pod in sorted(probes, key=lambda p: p.created, reverse=True):
        if observed.progress is not None and pod.created < observed.progress.fetched_at:
            break
        if (document := output_document(pod)) is not None:
            return SlotSample(read_slot(document), by_job=True)
        ended = pod.last_termination
        if ended is not None and ended.message:
            return SlotSample(None, by_job=True, failure=f"{ended.message} [{ended.code}]")
    return SlotSample(reported) if reported is not None else None


def lag_turn(observed: Observed, manifests: Manifests) -> int | None:
    """Return the interval for which a slot-sampling Job is due now, or None.

    Intervals last health.lagProbeSeconds and are numbered from the Unix epoch.
    """
    every = manifests.pipeline.spec.health.lag_probe_seconds
    if (
        not every
        or observed.fresh_progress is not None
        or not _driver_is_down(observed, manifests, timedelta(seconds=every))
    ):
        return None
    turn = int(observed.now.timestamp()) // every
    known = {j.name for j in observed.jobs if j.role == LAG_ROLE}
    recent = any(observed.now - j.created < timedelta(seconds=every) / 2 for j in observed.jobs if j.role == LAG_ROLE)
    return None if recent or lag_name(observed.pipeline.name, turn) in known else turn


def _driver_is_down(observed: Observed, manifests: Manifests, patience: timedelta) -> bool:
    """Return True if no driver runs. One that is starting has ``patience`` to become ready."""
    pod = observed.driver
    if manifests.pipeline.spec.suspend:
        return pod is None
    if pod is None:
        made = observed.owned.get("StatefulSet", driver_name(observed.pipeline.name)) is not None
        return made and observed.now - observed.pipeline.created > patience
    return pod.failure is not None or (not pod.ready and observed.now - pod.created > patience)
