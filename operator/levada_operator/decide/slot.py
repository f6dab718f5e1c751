"""Samples of the replication slot: by the driver, or by a short Job while no driver runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from levada import codes
from levada.errors import NeedsOperator
from levada.spec import Manifests
from levada.status import SlotProgress, read_slot
from levada.values import age_of
from levada_operator.desired.jobs import LAG_ROLE
from levada_operator.names import driver_name, lag_name
from levada_operator.observe.observed import Observed
from levada_operator.observe.pods import PodState, output_document
from levada_operator.observe.progress import ProgressReport

LOGIN_ERRORS: Final = (
    codes.SOURCE_AUTH_FAILED,
    codes.SOURCE_ACCESS_DENIED,
    codes.SOURCE_DATABASE_MISSING,
    codes.SECRET_MISSING,
)
"""Error codes of a source that refuses every further attempt too, until a Secret or a right is corrected."""
_LOGIN_EVERY_S: Final = 60
_DRIVER_EVERY: Final = timedelta(seconds=60)
_OLDEST: Final = timedelta(days=365)
"""The longest age that is computed with. A driver's clock, or its image, may report any time."""


@dataclass(frozen=True, slots=True)
class SlotSample:
    """A sample of the slot. If a Job could not sample, ``report`` is None and ``failure`` has the error.

    ``taken_at`` is by the operator's clock.
    """

    report: SlotProgress | None
    taken_at: datetime
    by_job: bool = False
    failure: str = ""


def slot_sample(observed: Observed) -> SlotSample | None:
    """Return the newest sample, or None if there is none."""
    reported = _reported(observed.report)
    if observed.fresh_progress is not None and reported is not None:
        return reported
    probes = [p for p in observed.pods if p.role == LAG_ROLE and p.ended]
    for pod in sorted(probes, key=lambda p: p.created, reverse=True):
        if observed.report is not None and pod.created < observed.report.fetched_at:
            break
        if (sample := _sample_of(pod)) is not None:
            return sample
        ended = pod.last_termination
        if ended is not None and ended.message and not _logged_in_since(observed, pod):
            return SlotSample(None, pod.created, by_job=True, failure=f"{ended.message} [{ended.code}]")
    return reported


def _logged_in_since(observed: Observed, probe: PodState) -> bool:
    """Return True if the driver's preflight has passed after a Job failed, so that the cause is gone.

    The cause may be a Secret, which the operator does not read.
    """
    passed = None if observed.driver is None else observed.driver.preflight_passed
    return passed is not None and passed > probe.created


def outdated_since(observed: Observed, sample: SlotSample, manifests: Manifests | None) -> datetime | None:
    """Return when a sample was taken that is older than twice its interval, and so is unknown by now, else None."""
    return sample.taken_at if age_of(sample.taken_at, observed.now) > longest_age(observed, manifests) else None


def longest_age(observed: Observed, manifests: Manifests | None) -> timedelta:
    """Return the age up to which a sample counts. A driver samples every few seconds, Jobs as the spec says."""
    by_jobs = observed.fresh_progress is None and manifests is not None
    every = manifests.pipeline.spec.health.lag_probe_seconds if by_jobs and manifests is not None else 0
    return 2 * max(timedelta(seconds=every), _DRIVER_EVERY)


def _reported(report: ProgressReport | None) -> SlotSample | None:
    """Return the driver's sample. Its age when it was fetched is by the driver's clock alone."""
    if report is None:
        return None
    progress = report.progress
    age = progress.at - progress.slot.sampled_at if progress.slot.sampled_at is not None else timedelta()
    return SlotSample(progress.slot, report.fetched_at - min(max(age, timedelta()), _OLDEST))


def _sample_of(pod: PodState) -> SlotSample | None:
    """Return the sample in the output of a Job's pod, or None without one."""
    document = output_document(pod)
    if document is None:
        return None
    try:
        return SlotSample(read_slot(document), pod.created, by_job=True)
    except NeedsOperator as error:
        return SlotSample(None, pod.created, by_job=True, failure=f"{error.message} [{error.code}]")


def lag_turn(observed: Observed, manifests: Manifests) -> int | None:
    """Return the interval for which a slot-sampling Job is due now, or None.

    Intervals last health.lagProbeSeconds and are numbered from the Unix epoch. After a refused login they are shorter,
    so that a corrected Secret is noticed within a minute.
    """
    every = manifests.pipeline.spec.health.lag_probe_seconds
    if (last := _last_probe(observed)) is not None and last.last_termination is not None:
        every = min(every, _LOGIN_EVERY_S) if last.last_termination.code in LOGIN_ERRORS else every
    if (
        not every
        or observed.fresh_progress is not None
        or not _driver_is_down(observed, manifests, timedelta(seconds=every))
    ):
        return None
    turn = int(observed.now.timestamp()) // every
    known = {j.name for j in observed.jobs if j.role == LAG_ROLE}
    recent = any(
        abs(observed.now - j.created) < timedelta(seconds=every) / 2 for j in observed.jobs if j.role == LAG_ROLE
    )
    return None if recent or lag_name(observed.pipeline.name, turn) in known else turn


def _last_probe(observed: Observed) -> PodState | None:
    probes = [p for p in observed.pods if p.role == LAG_ROLE and p.ended]
    return max(probes, key=lambda p: p.created, default=None)


def _driver_is_down(observed: Observed, manifests: Manifests, patience: timedelta) -> bool:
    """Return True if no driver runs. One that is starting has ``patience`` to become ready."""
    pod = observed.driver
    if manifests.pipeline.spec.suspend:
        return pod is None
    if pod is None:
        made = observed.owned.get("StatefulSet", driver_name(observed.pipeline.name)) is not None
        return made and abs(observed.now - observed.pipeline.created) > patience
    return pod.failure is not None or (not pod.ready and abs(observed.now - pod.created) > patience)
